package client

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/lifecycle"
	"lockkeeper.dev/lockkeeper/node/local"
)

// patchStatus writes the status of a Node under the name of a field manager, as a kubelet or an operator does.
func patchStatus(t *testing.T, name, manager, patch string) {
	t.Helper()
	_, err := cp(t).Client().CoreV1().Nodes().Patch(context.Background(), name, types.StrategicMergePatchType, []byte(patch),
		metav1.PatchOptions{FieldManager: manager}, "status")
	must(t, err)
}

// conditionsOf returns the conditions of a Node as "Type=Status by Reason", sorted.
func conditionsOf(n *corev1.Node) string {
	var all []string
	for _, c := range n.Status.Conditions {
		all = append(all, fmt.Sprintf("%s=%s by %s", c.Type, c.Status, c.Reason))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// TestLifecycleConditions checks, against an API server, three assumptions about a host's writes of its conditions. The
// kubelet's credential may send them. They change no other condition. They neither change nor remove a condition that
// another writer has set or taken over.
func TestLifecycleConditions(t *testing.T) {
	freshLease(t)
	const name = "c1"
	playHost(t, name, false)
	client := nodeWire(t, name).client("host")
	patchStatus(t, name, "operator", `{"status":{"conditions":[{"type":"Drained","status":"False","reason":"Operator","message":"theirs"}]}}`)
	host := &local.Host{UID: "u", State: v1alpha1.StateDraining, Turn: "t1", Cordoned: true, Course: &local.Course{Wants: v1alpha1.WantsReboot, Drains: true}}

	next := func(h *local.Host) kube.Patch {
		t.Helper()
		n := getNode(t, name)
		set, drop := lifecycle.Change(n.Status.Conditions, h, time.Now())
		return kube.Patch{Node: name, ResourceVersion: n.ResourceVersion, Conditions: set, DropConditions: drop, Manager: "lockkeeper-host"}
	}
	write := func(client *kube.Client, p kube.Patch) kube.Outcome {
		t.Helper()
		n, outcome, err := kube.Write(t.Context(), client, p)
		t.Logf("%s: %v", outcome, err)
		if outcome == kube.Written && conditionsOf(n) != conditionsOf(getNode(t, name)) {
			t.Errorf("the answer contains %s", conditionsOf(n))
		}
		return outcome
	}
	is := func(want string) {
		t.Helper()
		if got := conditionsOf(getNode(t, name)); got != want {
			t.Errorf("the conditions are\n\t%s\nexpected\n\t%s", got, want)
		}
	}

	p := next(host)
	if got := write(client, p); got != kube.Written {
		t.Fatal(got)
	}
	is("DrainInProgress=True by Draining, Drained=False by Operator, MaintenanceInProgress=True by InTurn, Ready=True by KubeletReady")
	if p := next(host); len(p.Conditions)+len(p.DropConditions) != 0 {
		t.Errorf("an unchanged host writes again: %+v", p)
	}
	// In the next state of the turn one condition goes away. Another writer owns Drained.
	host.State = v1alpha1.StateRebooting
	if got := write(client, next(host)); got != kube.Written {
		t.Fatal(got)
	}
	is("Drained=False by Operator, MaintenanceInProgress=True by InTurn, Ready=True by KubeletReady")

	// The kubelet's writes keep the host's conditions. A write of the kubelet in between causes a conflict.
	host.State = v1alpha1.StateDraining
	p = next(host)
	patchStatus(t, name, "kubelet", `{"status":{"$setElementOrder/conditions":[{"type":"Drained"},{"type":"Ready"}],"conditions":[{"type":"Ready","status":"False","reason":"Stopped"}]}}`)
	if got := write(client, p); got != kube.Conflict {
		t.Errorf("write of conditions that are based on an older version: %s", got)
	}
	if got := write(client, next(host)); got != kube.Written {
		t.Fatal(got)
	}
	// Another tool takes a condition over. The condition stays when the host removes its own.
	patchStatus(t, name, "operator", `{"status":{"conditions":[{"type":"DrainInProgress","status":"False"}]}}`)
	if got := write(client, next(nil)); got != kube.Written {
		t.Fatal(got)
	}
	is("DrainInProgress=False by Draining, Drained=False by Operator, Ready=False by Stopped")
	if p := next(nil); len(p.Conditions)+len(p.DropConditions) != 0 {
		t.Errorf("the host owns no condition, but writes %+v", p)
	}

	// The API server refuses the credential of another host.
	playHost(t, "c2", false)
	if got := write(nodeWire(t, "c2").client("host"), kube.Patch{
		Node: name, ResourceVersion: getNode(t, name).ResourceVersion, Manager: "lockkeeper-host",
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeDrained, Status: corev1.ConditionTrue}},
	}); got != kube.Refused {
		t.Errorf("write by another host: %s", got)
	}
}
