package step

import (
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

func delayOf(d time.Duration) v1alpha1.Terms {
	return v1alpha1.Terms{Exclusions: v1alpha1.Exclusions{ExcludeFromLoadBalancers: true, LoadBalancerDelay: metav1.Duration{Duration: d}}}
}

// TestLoadBalancerDelay checks from when the delay counts: from the time in the mark, in every process.
func TestLoadBalancerDelay(t *testing.T) {
	for name, c := range map[string]struct {
		mark  string // %s is the time of the cordon
		ago   time.Duration
		grant v1alpha1.Terms
		own   *v1alpha1.Terms
		state v1alpha1.State
		left  time.Duration
	}{
		"just cordoned":                    {ago: 0, grant: delayOf(time.Minute), left: time.Minute},
		"a process that was started again": {ago: 40 * time.Second, grant: delayOf(time.Minute), left: 20 * time.Second},
		"over":                             {ago: time.Minute, grant: delayOf(time.Minute)},
		"long over":                        {ago: 2000 * time.Hour, grant: delayOf(time.Minute)},
		"a clock that was set back":        {ago: -time.Hour, grant: delayOf(time.Minute), left: time.Minute},
		"no delay":                         {ago: 0, grant: delayOf(0)},
		"a delay without the label":        {ago: 0, grant: v1alpha1.Terms{Exclusions: v1alpha1.Exclusions{LoadBalancerDelay: metav1.Duration{Duration: time.Minute}}}},
		"the host's own policy has more":   {ago: 0, grant: delayOf(time.Minute), own: new(delayOf(2 * time.Minute)), left: 2 * time.Minute},
		"the host's own policy has less":   {ago: 0, grant: delayOf(time.Minute), own: new(delayOf(time.Second)), left: time.Minute},
		"only the host's own policy":       {ago: 0, own: new(delayOf(time.Minute)), left: time.Minute},
		"a grant beyond the bound":         {ago: 0, grant: delayOf(100 * time.Hour), left: 10 * time.Minute},
		"the label was there before":       {mark: "t1/%s/Cordon,ScaleDown", grant: delayOf(time.Minute)},
		"a cordon that was there before":   {mark: "t1/%s/LoadBalancers", grant: delayOf(time.Minute), left: time.Minute},
		"a mark that does not say":         {mark: "t1", grant: delayOf(time.Minute)},
		"another state":                    {state: v1alpha1.StateRebooting, grant: delayOf(time.Minute)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				at := time.Now().Add(-c.ago)
				mark := (&v1alpha1.Cordon{Turn: "t1", At: at, Set: []string{v1alpha1.CordonOurs, v1alpha1.ExclusionLoadBalancers}}).String()
				switch c.mark {
				case "":
				case "t1":
					mark = c.mark
				default:
					mark = c.mark[:3] + at.UTC().Format(time.RFC3339) + c.mark[5:]
				}
				state := v1alpha1.StateDraining
				if c.state != "" {
					state = c.state
				}
				n := &turn.Node{UID: "u", Keys: v1alpha1.ReadKeys(nil, map[string]string{v1alpha1.AnnotationCordon: mark})}
				n.State, n.Turn, n.Grant = state, "t1", &v1alpha1.Grant{Turn: "t1", NodeUID: "u", Terms: c.grant}
				var d LoadBalancerDelay
				if _, left := d.Until(n, c.own, time.Now()); left != c.left {
					t.Errorf("%v left, expected %v", left, c.left)
				}
				time.Sleep(15 * time.Second)
				if _, left := d.Until(n, c.own, time.Now()); left != max(0, c.left-15*time.Second) {
					t.Errorf("%v left after 15s, expected %v", left, max(0, c.left-15*time.Second))
				}
			})
		})
	}
}

// TestDelayOfTheNextTurn checks that the delay of a turn does not use the time of another one.
func TestDelayOfTheNextTurn(t *testing.T) {
	var d LoadBalancerDelay
	now := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	at := func(turnID string, cordoned time.Time) time.Duration {
		n := &turn.Node{UID: "u"}
		n.State, n.Turn, n.Grant = v1alpha1.StateDraining, turnID, &v1alpha1.Grant{Turn: turnID, NodeUID: "u", Terms: delayOf(time.Minute)}
		n.Mark, n.Cordon = true, v1alpha1.Cordon{Turn: turnID, At: cordoned, Set: []string{v1alpha1.ExclusionLoadBalancers}}
		_, left := d.Until(n, nil, now)
		return left
	}
	if left := at("t1", now.Add(-30*time.Second)); left != 30*time.Second {
		t.Errorf("the first turn: %v left", left)
	}
	if left := at("t2", now); left != time.Minute {
		t.Errorf("the second turn: %v left", left)
	}
}
