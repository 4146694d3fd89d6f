package lifecycle

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/local"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC)

// apply returns the conditions after a write.
func apply(has, set []corev1.NodeCondition, drop []corev1.NodeConditionType) []corev1.NodeCondition {
	has = slices.DeleteFunc(slices.Clone(has), func(c corev1.NodeCondition) bool { return slices.Contains(drop, c.Type) })
	for _, c := range set {
		if old := find(has, c.Type); old != nil {
			*old = c
		} else {
			has = append(has, c)
		}
	}
	return has
}

func typesOf(all []corev1.NodeCondition) string {
	var names []string
	for _, kind := range Types {
		if c := find(all, kind); c != nil {
			names = append(names, fmt.Sprintf("%s=%s", c.Type, c.Status))
		}
	}
	return strings.Join(names, " ")
}

func idle(wants v1alpha1.Wants) *local.Host {
	return &local.Host{UID: "u", State: v1alpha1.StateIdle, Wants: wants}
}

// inTurn is a host in a turn with a drain and a reboot.
func inTurn(state v1alpha1.State, change ...func(*local.Host)) *local.Host {
	h := &local.Host{UID: "u", State: state, Turn: "t1", Wants: v1alpha1.WantsReboot, Cordoned: true, Course: &local.Course{Wants: v1alpha1.WantsReboot, Drains: true}}
	for _, f := range change {
		f(h)
	}
	return h
}

func uncordoned(h *local.Host) { h.Cordoned = false }
func noDrain(h *local.Host)    { h.Course.Drains = false }
func unknown(h *local.Host)    { h.Wants = "" }
func ended(r v1alpha1.Result) func(*local.Host) {
	return func(h *local.Host) { h.Course.Result = r }
}

const (
	planned    = "MaintenancePlanned=True"
	inProgress = "MaintenanceInProgress=True"
	draining   = "MaintenanceInProgress=True DrainInProgress=True"
	drained    = "MaintenanceInProgress=True Drained=True"
)

// TestChange leads a Node without conditions, and one that has all of them, to what each host is to have.
func TestChange(t *testing.T) {
	all, _ := Change(nil, inTurn(v1alpha1.StateDraining), now.Add(-time.Hour))
	for _, h := range []*local.Host{idle(v1alpha1.WantsReboot), inTurn(v1alpha1.StateRebooting)} {
		set, _ := Change(all, h, now.Add(-time.Hour))
		all = apply(all, set, nil)
	}
	if got := typesOf(all); got != "MaintenancePlanned=True MaintenanceInProgress=True DrainInProgress=True Drained=True" {
		t.Fatalf("all are %s", got)
	}
	const same = "as it is"
	for _, c := range []struct {
		name string
		host *local.Host
		want string
	}{
		{"it wants nothing", idle(v1alpha1.WantsNothing), ""},
		{"it wants an apply", idle(v1alpha1.WantsApply), planned},
		{"it wants a drain", idle(v1alpha1.WantsDrain), planned},
		{"it wants a reboot", idle(v1alpha1.WantsReboot), planned},
		{"paused", &local.Host{UID: "u", State: v1alpha1.StatePaused, Wants: v1alpha1.WantsReboot}, planned},
		{"not adopted", &local.Host{UID: "u", Wants: v1alpha1.WantsReboot}, planned},
		{"released", &local.Host{UID: "u", Wants: v1alpha1.WantsReboot, Withdrawn: true}, ""},
		{"never managed, and no Node was seen", &local.Host{Withdrawn: true}, ""},
		{"switched off", nil, ""},

		{"before-drain", inTurn(v1alpha1.StateBeforeDrain, uncordoned), inProgress},
		{"before-drain of a node that an admin cordoned", inTurn(v1alpha1.StateBeforeDrain), inProgress},
		{"draining, not committed", inTurn(v1alpha1.StateDraining, uncordoned), inProgress},
		{"draining", inTurn(v1alpha1.StateDraining), draining},
		{"before-reboot", inTurn(v1alpha1.StateBeforeReboot), drained},
		{"rebooting", inTurn(v1alpha1.StateRebooting), drained},
		{"rebooting, another boot", inTurn(v1alpha1.StateRebooting, unknown), drained},
		{"rebooting, someone uncordoned", inTurn(v1alpha1.StateRebooting, uncordoned), inProgress},
		{"rebooting without a drain", inTurn(v1alpha1.StateRebooting, noDrain, uncordoned), inProgress},
		{"rebooting without a drain, an admin cordoned", inTurn(v1alpha1.StateRebooting, noDrain), inProgress},
		{"applying", inTurn(v1alpha1.StateApplying), drained},
		{"before-uncordon", inTurn(v1alpha1.StateBeforeUncordon), drained},
		{"before-uncordon, failed", inTurn(v1alpha1.StateBeforeUncordon, ended(v1alpha1.ResultFailed)), drained},
		{"before-uncordon, backed out", inTurn(v1alpha1.StateBeforeUncordon, ended(v1alpha1.ResultBackedOut)), inProgress},
		{"before-uncordon, cancelled", inTurn(v1alpha1.StateBeforeUncordon, ended(v1alpha1.ResultCancelled)), inProgress},
		{"uncordoning", inTurn(v1alpha1.StateUncordoning), drained},
		{"uncordoned", inTurn(v1alpha1.StateUncordoning, uncordoned), inProgress},

		{"its Node was not seen", &local.Host{Wants: v1alpha1.WantsReboot}, same},
		{"a damaged grant", inTurn(v1alpha1.StateDraining, func(h *local.Host) { h.Course = nil }), same},
		{"an unknown state", inTurn("melting"), same},
	} {
		for from, has := range map[string][]corev1.NodeCondition{"": nil, typesOf(all): all} {
			set, drop := Change(has, c.host, now)
			want := c.want
			if want == same {
				want = from
			}
			then := apply(has, set, drop)
			if got := typesOf(then); got != want {
				t.Errorf("%s: from %q to %q, expected %q", c.name, from, got, want)
			}
			for _, s := range set {
				if old := find(has, s.Type); old != nil && !s.LastTransitionTime.Equal(&old.LastTransitionTime) {
					t.Errorf("%s: %s stays True, and its time is another one", c.name, s.Type)
				} else if old == nil && !s.LastTransitionTime.Time.Equal(now.Truncate(time.Second)) {
					t.Errorf("%s: the time of %s is %v", c.name, s.Type, s.LastTransitionTime)
				}
			}
			if set, drop := Change(then, c.host, now.Add(time.Minute)); len(set)+len(drop) != 0 {
				t.Errorf("%s: what was just written is written again: %v %v", c.name, set, drop)
			}
		}
	}
}

// TestChangeKeepsThePlan: what a host wants is not known before it has read all sources. Only its plan stays until then.
func TestChangeKeepsThePlan(t *testing.T) {
	plan, _ := Change(nil, idle(v1alpha1.WantsReboot), now)
	drain, _ := Change(nil, inTurn(v1alpha1.StateDraining), now)
	set, drop := Change(append(plan, drain...), idle(""), now)
	if len(set) != 0 || !slices.Equal(drop, []corev1.NodeConditionType{corev1.NodeMaintenanceInProgress, corev1.NodeDrainInProgress}) {
		t.Errorf("set %v, drop %v", set, drop)
	}
	if set, drop := Change(nil, idle(""), now); len(set)+len(drop) != 0 {
		t.Errorf("of nothing: set %v, drop %v", set, drop)
	}
}

// TestChangeLeavesOthers: a condition that differs in its status, its reason or its message's prefix from what lockkeeper
// writes is another writer's. It is neither changed nor removed.
func TestChangeLeavesOthers(t *testing.T) {
	mine := corev1.NodeCondition{Type: corev1.NodeDrainInProgress, Status: corev1.ConditionTrue, Reason: ReasonDraining, Message: "lockkeeper: evicts the node's pods"}
	if _, drop := Change([]corev1.NodeCondition{mine}, nil, now); len(drop) != 1 {
		t.Fatalf("it does not remove its own: %v", drop)
	}
	for name, change := range map[string]func(*corev1.NodeCondition){
		"status":   func(c *corev1.NodeCondition) { c.Status = corev1.ConditionFalse },
		"unknown":  func(c *corev1.NodeCondition) { c.Status = corev1.ConditionUnknown },
		"reason":   func(c *corev1.NodeCondition) { c.Reason = "AdminRequested" },
		"message":  func(c *corev1.NodeCondition) { c.Message = "evicts the node's pods" },
		"no words": func(c *corev1.NodeCondition) { c.Reason, c.Message = "", "" },
		"graceful": func(c *corev1.NodeCondition) { c.Type = corev1.NodeGracefulNodeShutdownInProgress },
		"ready":    func(c *corev1.NodeCondition) { c.Type = corev1.NodeReady },
	} {
		c := mine
		c.LastTransitionTime = metav1.NewTime(now)
		change(&c)
		for _, h := range []*local.Host{nil, idle(v1alpha1.WantsNothing), inTurn(v1alpha1.StateDraining)} {
			set, drop := Change([]corev1.NodeCondition{c}, h, now)
			if find(set, c.Type) != nil || slices.Contains(drop, c.Type) {
				t.Errorf("%s: it writes another's condition: set %v, drop %v", name, set, drop)
			}
		}
	}
}

// TestMessages: a reason is CamelCase, a message is one line within bounds whatever a host's turn is called, and another want is
// another message.
func TestMessages(t *testing.T) {
	set, _ := Change(nil, inTurn(v1alpha1.StateRebooting, func(h *local.Host) { h.Turn = "a\nb\x1b[31m" + strings.Repeat("x", 5000) }), now)
	for _, c := range set {
		if strings.ContainsAny(c.Message, "\n\x1b") || len(c.Message) > v1alpha1.MaxUpdateText || !v1alpha1.Reason(c.Reason).Valid() {
			t.Errorf("%s: reason %q, message %q", c.Type, c.Reason, c.Message)
		}
	}
	apply, _ := Change(nil, idle(v1alpha1.WantsApply), now)
	if set, _ := Change(apply, idle(v1alpha1.WantsReboot), now.Add(time.Hour)); len(set) != 1 || set[0].Message != "lockkeeper: the host wants: reboot" || !set[0].LastTransitionTime.Equal(&apply[0].LastTransitionTime) {
		t.Errorf("a want that grows writes %v", set)
	}
}
