// Package policy says what changes cost and how fast the fleet may roll: data
// in, data out. Until policies are objects in the cluster there is one, built
// in; tests hand in others.
//
// This room is pure: no client, no file, no clock.
package policy

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Policy is how fast the nodes that it selects may roll, and on what terms a
// turn runs. The zero Policy is not valid; start from [Default].
type Policy struct {
	Name       string
	Generation int64

	// MaxUnavailable is how many nodes may be unavailable at once, 1 to 10000.
	MaxUnavailable int
	// MaxFailed is how many failed nodes, not forgiven, stop the line when
	// exceeded; 0 to 10000.
	MaxFailed int
	// Settle is how long nothing is granted after the end of a turn, or after
	// a Node's creation; 0 to 24h.
	Settle time.Duration
	// Backoff is how long a node that was turned back waits for its next turn;
	// it doubles each time, up to BackoffMax. 1s to 24h.
	Backoff, BackoffMax time.Duration
	// Paused: nothing is granted.
	Paused bool

	// Terms are what each turn's grant records.
	Terms v1alpha1.Terms
}

// Default is the built-in policy: one node at a time, no hooks.
func Default() Policy {
	minutes := func(n int) metav1.Duration { return metav1.Duration{Duration: time.Duration(n) * time.Minute} }
	return Policy{
		Name:           "built-in",
		MaxUnavailable: 1,
		Settle:         time.Minute,
		Backoff:        time.Minute,
		BackoffMax:     time.Hour,
		Terms: v1alpha1.Terms{
			Seen:         minutes(2),
			Draining:     minutes(60),
			DrainTimeout: v1alpha1.OnTimeoutAbort,
			Rebooting:    minutes(30),
			Applying:     minutes(15),
			HostHooks:    minutes(30),
			Uncordoning:  minutes(5),
		},
	}
}

// Validate says which field is out of its bounds, or nil.
func (p *Policy) Validate() error {
	between := func(field string, d, low, high time.Duration) error {
		if d < low || d > high {
			return fmt.Errorf("%s: %v, expected %v to %v", field, d, low, high)
		}
		return nil
	}
	if p.MaxUnavailable < 1 || p.MaxUnavailable > 10000 {
		return fmt.Errorf("max_unavailable: %d, expected 1 to 10000", p.MaxUnavailable)
	}
	if p.MaxFailed < 0 || p.MaxFailed > 10000 {
		return fmt.Errorf("max_failed: %d, expected 0 to 10000", p.MaxFailed)
	}
	const day = 24 * time.Hour
	t := &p.Terms
	for _, d := range []struct {
		field    string
		d        time.Duration
		low, max time.Duration
	}{
		{"settle", p.Settle, 0, day},
		{"backoff", p.Backoff, time.Second, day},
		{"backoff_max", p.BackoffMax, p.Backoff, day},
		{"seen", t.Seen.Duration, time.Second, day},
		{"draining", t.Draining.Duration, time.Second, 7 * day},
		{"rebooting", t.Rebooting.Duration, time.Second, 7 * day},
		{"applying", t.Applying.Duration, time.Second, 7 * day},
		{"host_hooks", t.HostHooks.Duration, time.Second, 7 * day},
		{"uncordoning", t.Uncordoning.Duration, time.Second, 7 * day},
	} {
		if err := between(d.field, d.d, d.low, d.max); err != nil {
			return err
		}
	}
	if t.DrainTimeout != v1alpha1.OnTimeoutWait && t.DrainTimeout != v1alpha1.OnTimeoutAbort {
		return fmt.Errorf("drain_on_timeout: %q, expected Wait or Abort", t.DrainTimeout)
	}
	return validateHooks(t)
}

func validateHooks(t *v1alpha1.Terms) error {
	seen := map[string]v1alpha1.State{}
	for _, stage := range []v1alpha1.State{v1alpha1.StateBeforeDrain, v1alpha1.StateBeforeReboot, v1alpha1.StateBeforeUncordon} {
		for _, h := range t.Hooks(stage) {
			if err := v1alpha1.ValidateHookName(h.Name); err != nil {
				return fmt.Errorf("hooks of %s: %w", stage, err)
			}
			if other, twice := seen[h.Name]; twice {
				// One annotation confirms one stage; in two stages the
				// confirmation of the first would confirm the second.
				return fmt.Errorf("hook %q stands in %s and in %s, expected one stage only", h.Name, other, stage)
			}
			seen[h.Name] = stage
			if h.Timeout.Duration < time.Second || h.Timeout.Duration > 7*24*time.Hour {
				return fmt.Errorf("hook %q: timeout %v, expected 1s to 168h", h.Name, h.Timeout.Duration)
			}
			switch h.OnTimeout {
			case v1alpha1.OnTimeoutWait, v1alpha1.OnTimeoutContinue:
			case v1alpha1.OnTimeoutAbort:
				if stage == v1alpha1.StateBeforeUncordon {
					return fmt.Errorf("hook %q: on_timeout Abort is not possible in before-uncordon, where a turn that is aborted goes", h.Name)
				}
			default:
				return fmt.Errorf("hook %q: on_timeout %q, expected Wait, Continue or Abort", h.Name, h.OnTimeout)
			}
		}
	}
	return nil
}

// Plan says what the changes cost taken together: the strongest want, and
// whether the node has to be drained for it. A change that no rule names costs
// a reboot on a drained node; rules come with policies in the cluster.
func Plan(changes []v1alpha1.Change) (wants v1alpha1.Wants, drains bool) {
	if len(changes) == 0 {
		return v1alpha1.WantsNothing, false
	}
	return v1alpha1.WantsReboot, true
}
