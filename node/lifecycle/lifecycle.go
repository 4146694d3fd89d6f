// Package lifecycle computes the lifecycle conditions of a host's Node (KEP-5683) from the host's
// own record: which of them are True, which of those on the Node are lockkeeper's, and what has
// to be written.
//
// Everything here is data in, data out. No decision depends on these conditions, and this
// package must not know how they are written.
package lifecycle

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/local"
)

// Types are the types of the conditions that lockkeeper writes, in the order of a turn.
//
// GracefulNodeShutdownInProgress is not among them: it describes the kubelet's graceful
// node shutdown, and lockkeeper does not know whether the kubelet does one.
var Types = []corev1.NodeConditionType{
	corev1.NodeMaintenancePlanned, corev1.NodeMaintenanceInProgress, corev1.NodeDrainInProgress, corev1.NodeDrained,
}

// The reasons of the conditions, one for each type.
const (
	ReasonChangesPending = "ChangesPending" // MaintenancePlanned
	ReasonInTurn         = "InTurn"         // MaintenanceInProgress
	ReasonDraining       = "Draining"       // DrainInProgress
	ReasonDrainCompleted = "DrainCompleted" // Drained
)

// prefix begins each message.
const prefix = "lockkeeper: "

// ours reports whether lockkeeper has written the condition. Kubernetes defines no owner
// of these types, and the record in managedFields gets lost: the API server keeps ten
// updaters, and anyone may clear it. Server-side apply would not do either: it removes a
// condition that someone else has changed meanwhile. So a condition is lockkeeper's as
// long as its status, its reason and the prefix of its message are.
func ours(c *corev1.NodeCondition) bool {
	return c.Status == corev1.ConditionTrue && c.Reason == reasons[c.Type] && strings.HasPrefix(c.Message, prefix)
}

var reasons = map[corev1.NodeConditionType]string{
	corev1.NodeMaintenancePlanned: ReasonChangesPending, corev1.NodeMaintenanceInProgress: ReasonInTurn,
	corev1.NodeDrainInProgress: ReasonDraining, corev1.NodeDrained: ReasonDrainCompleted,
}

// Change returns what has to be written to the status of a Node that has these
// conditions: those to set, at now, and the types of those to remove. h is what the host
// knows; nil stands for a host that is to have none of the conditions. Change never names
// a condition that anyone else has written, and nothing while h does not say what the host
// does.
//
// A condition that is over is not on the Node at all. One that stays True keeps its
// transition time.
func Change(has []corev1.NodeCondition, h *local.Host, now time.Time) (set []corev1.NodeCondition, drop []corev1.NodeConditionType) {
	wanted := map[corev1.NodeConditionType]string{}
	if h != nil {
		var known bool
		if wanted, known = messages(has, h); !known {
			return nil, nil
		}
	}
	at := metav1.NewTime(now.UTC().Truncate(time.Second))
	for _, kind := range Types {
		c := find(has, kind)
		message, is := wanted[kind]
		switch {
		case c != nil && !ours(c):
		case !is && c != nil:
			drop = append(drop, kind)
		case is && (c == nil || c.Message != message):
			next := corev1.NodeCondition{
				Type: kind, Status: corev1.ConditionTrue, Reason: reasons[kind], Message: message,
				LastTransitionTime: at, LastHeartbeatTime: at,
			}
			if c != nil {
				next.LastTransitionTime = c.LastTransitionTime
			}
			set = append(set, next)
		}
	}
	return set, drop
}

// messages returns the messages of the conditions that are True, by their types; known
// is false while that is not known.
func messages(has []corev1.NodeCondition, h *local.Host) (wanted map[corev1.NodeConditionType]string, known bool) {
	wanted = map[corev1.NodeConditionType]string{}
	add := func(kind corev1.NodeConditionType, message string) {
		wanted[kind] = v1alpha1.OneLine(prefix+message, v1alpha1.MaxUpdateText)
	}
	course := h.Course
	switch {
	case h.Withdrawn:
		return wanted, true
	case h.UID == "" || !h.State.Known() || h.State.InTurn() && course == nil: // the coordinator repairs a damaged grant
		return nil, false
	case !h.State.InTurn() && h.Wants == "":
		// Not every source was read in this boot: a plan that was there stays.
		if c := find(has, corev1.NodeMaintenancePlanned); c != nil {
			wanted[c.Type] = c.Message
		}
	case !h.State.InTurn() && h.Wants.Something():
		add(corev1.NodeMaintenancePlanned, "the host wants: "+string(h.Wants))
	case h.State.InTurn():
		add(corev1.NodeMaintenanceInProgress, "the host is in its turn "+h.Turn+": "+string(course.Wants))
		if !course.Drains || !h.Cordoned || h.State == v1alpha1.StateBeforeDrain {
			break
		}
		if h.State == v1alpha1.StateDraining {
			add(corev1.NodeDrainInProgress, "evicts the node's pods")
		} else if course.Result == "" || course.Result == v1alpha1.ResultFailed {
			// A turn fails only in rebooting and applying, and so after its drain.
			add(corev1.NodeDrained, "evicted the node's pods")
		}
	}
	return wanted, true
}

func find(all []corev1.NodeCondition, kind corev1.NodeConditionType) *corev1.NodeCondition {
	if i := slices.IndexFunc(all, func(c corev1.NodeCondition) bool { return c.Type == kind }); i >= 0 {
		return &all[i]
	}
	return nil
}
