package faults

import (
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// kind is a kind of fault.
type kind struct {
	name string
	// in lists the only states in which the fault makes sense for the node in its turn. Empty means any state and any
	// node.
	in []v1alpha1.State
	// lasts keeps the fault until the end, because its damage shows late.
	lasts bool
	// do injects the fault into a host. It returns what it did, or "" if it had no occasion, and a function that lifts
	// the fault, or nil if the fault ends without help.
	do func(c *campaign, h *simhost.Host) (what string, lift func())
}

// kinds lists all kinds, in a fixed order.
var kinds = concat(hostFaults, clusterFaults, peopleFaults, wireFaults)

func concat(all ...[]kind) (kinds []kind) {
	for _, k := range all {
		kinds = append(kinds, k...)
	}
	return kinds
}

const sentinel = "run/reboot-required"

// ignore drops the error of lifting a fault that something else has already undone: a boot, for example, starts all
// programs.
func ignore(error) {}

// told returns what was done, or "" after an error.
func told(what string, err error) string {
	if err != nil {
		return ""
	}
	return what
}

var hostFaults = []kind{
	{name: "restart the bus", do: func(c *campaign, h *simhost.Host) (string, func()) {
		ctx, cancel := within(rig.Soon)
		defer cancel()
		down := time.Duration(c.rng.IntN(1500)) * time.Millisecond
		return told("away for "+down.String(), h.RestartBus(ctx, down)), nil
	}},
	{name: "stop the update engine", do: func(_ *campaign, h *simhost.Host) (string, func()) {
		h.Engine().Stop()
		return "stopped", func() { ignore(h.Engine().Start()) }
	}},
	{name: "an update engine that hangs", do: func(_ *campaign, h *simhost.Host) (string, func()) {
		h.Engine().Hang(true)
		return "hangs", func() { h.Engine().Hang(false) }
	}},
	{name: "an update engine that talks nonsense", do: func(c *campaign, h *simhost.Host) (string, func()) {
		answers := [][]any{{}, {"idle"}, {int64(0), 0.5, "UPDATE_STATUS_DREAMING", "4.9.9", int64(1)}, {int64(-1), -1.0, "", "\x01", int64(-1)}}
		answer := answers[c.rng.IntN(len(answers))]
		return told(fmt.Sprintf("%v", answer), h.Engine().Answer(answer...)), func() { ignore(h.Engine().AnswerTruth()) }
	}},
	{name: "crash, not updated", do: func(_ *campaign, h *simhost.Host) (string, func()) {
		return told("comes up as it was", h.Crash(simhost.CrashOptions{})), nil
	}},
	{name: "crash, updated", do: func(_ *campaign, h *simhost.Host) (string, func()) {
		return told("comes up updated", h.Crash(simhost.CrashOptions{ComesUpUpdated: true})), nil
	}},
	{name: "crash twice in rebooting", in: []v1alpha1.State{v1alpha1.StateRebooting}, do: func(c *campaign, h *simhost.Host) (string, func()) {
		first, second := c.rng.IntN(2) == 0, c.rng.IntN(2) == 0
		err := h.Crash(simhost.CrashOptions{ComesUpUpdated: first})
		if err == nil {
			err = h.Crash(simhost.CrashOptions{ComesUpUpdated: second})
		}
		return told(fmt.Sprintf("updated: %t, %t", first, second), err), nil
	}},
	{name: "stop the kubelet", do: func(_ *campaign, h *simhost.Host) (string, func()) {
		h.StopKubelet()
		return "stopped", func() { ignore(h.StartKubelet()) }
	}},
	{name: "stop lockkeeper", do: func(_ *campaign, h *simhost.Host) (string, func()) {
		h.StopLockkeeper()
		return "stopped", func() { ignore(h.StartLockkeeper()) }
	}},
	{name: "kill lockkeeper", do: func(_ *campaign, h *simhost.Host) (string, func()) {
		h.Kill()
		return "killed", nil
	}},
	{name: "stop the process where it is", do: func(_ *campaign, h *simhost.Host) (string, func()) {
		return told("stopped", h.Pause()), func() { ignore(h.Continue()) }
	}},
	{name: "take the want back", do: func(c *campaign, h *simhost.Host) (string, func()) {
		if s, runs := h.Engine().Status(); !runs || s.Operation != simhost.OpNeedReboot || h.ResetStatus() != nil {
			return "", nil
		}
		if c.sentinels[h.Name()] == "" {
			c.Referee.WantCancelled(h.Name())
		}
		return "the engine reports IDLE", func() {
			c.Referee.WantMade(h.Name())
			if h.Version() != c.version() {
				ignore(h.StageUpdate(c.version()))
			}
		}
	}},
	{name: "a want that grows", do: func(c *campaign, h *simhost.Host) (string, func()) {
		boot := h.BootID()
		c.Referee.WantMade(h.Name())
		c.sentinels[h.Name()] = boot
		return told("a sentinel", h.WriteFile(sentinel, "campaign")), func() {
			delete(c.sentinels, h.Name())
			ignore(h.RemoveFile(sentinel))
			if s, runs := h.Engine().Status(); runs && s.Operation != simhost.OpNeedReboot && h.BootID() == boot {
				c.Referee.WantCancelled(h.Name())
			}
		}
	}},
}

var clusterFaults = []kind{
	{name: "API server away", do: func(c *campaign, _ *simhost.Host) (string, func()) {
		d := time.Duration(500+c.rng.IntN(4000)) * time.Millisecond
		if c.soak && c.rng.IntN(8) == 0 {
			d = long
		}
		c.Must(c.ControlPlane.StopAPIServer())
		pause(d)
		c.startAPIServer()
		return "for " + d.String(), nil
	}},
	{name: "restart etcd", do: func(c *campaign, _ *simhost.Host) (string, func()) {
		ctx, cancel := within(rig.Soon)
		defer cancel()
		c.Must(c.ControlPlane.RestartEtcd(ctx))
		return "restarted", nil
	}},
	{name: "compaction", do: func(c *campaign, _ *simhost.Host) (string, func()) {
		// No watch gets an answer until etcd and the API server have dropped the past revisions.
		ctx, cancel := within(rig.Soon)
		defer cancel()
		c.Must(c.ControlPlane.StopAPIServer())
		c.Must(c.Referee.Sync(ctx))
		revision, err := c.ControlPlane.Compact(ctx)
		c.Must(err)
		c.startAPIServer()
		return "up to revision " + revision, nil
	}},
	{name: "blank the Lease", do: func(c *campaign, _ *simhost.Host) (string, func()) {
		return told("blanked", c.TryPatchLease(map[string]any{"spec": map[string]any{"holderIdentity": ""}})), nil
	}},
	{name: "delete the Lease", do: func(c *campaign, _ *simhost.Host) (string, func()) {
		ctx, cancel := within(rig.Soon)
		defer cancel()
		err := c.ControlPlane.Client().CoordinationV1().Leases(v1alpha1.DefaultLeaseNamespace).Delete(ctx, v1alpha1.DefaultLeaseName, metav1.DeleteOptions{})
		return told("deleted", err), func() {
			ctx, cancel := within(rig.Soon)
			defer cancel()
			c.Must(c.ControlPlane.ApplyLockkeeper(ctx))
		}
	}},
	{name: "delete the Node", do: func(c *campaign, h *simhost.Host) (string, func()) {
		ctx, cancel := within(rig.Soon)
		defer cancel()
		h.StopKubelet()
		err := c.ControlPlane.Client().CoreV1().Nodes().Delete(ctx, h.Name(), metav1.DeleteOptions{})
		if !apierrors.IsNotFound(err) {
			c.Must(err)
		}
		return "the Node is created again", func() { ignore(h.StartKubelet()) }
	}},
}

func (f *fleet) startAPIServer() {
	ctx, cancel := within(2 * rig.Soon)
	defer cancel()
	f.Must(f.ControlPlane.StartAPIServer(ctx))
}

func pause(d time.Duration) { <-time.After(d) }
