package faults

import (
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// nonsense lists the values that edits write into keys. "" removes the key.
var nonsense = []string{"", "{", "null", "x/y/z", "-", "{\"turn\":\"a\"}", "aaaaaaaaaaaaaaaa"}

// edited lists the annotations and labels that faults edit.
var (
	editedAnnotations = []string{
		v1alpha1.AnnotationGrant, v1alpha1.AnnotationTurn, v1alpha1.AnnotationAck, v1alpha1.AnnotationHost, v1alpha1.AnnotationLast,
		v1alpha1.AnnotationRequest, v1alpha1.AnnotationRequestNow, v1alpha1.AnnotationRetry,
	}
	editedLabels = []string{v1alpha1.LabelWants, v1alpha1.LabelHeld}
)

// cordonLasts bounds how long an admin leaves a node cordoned after everything else has finished.
const cordonLasts = 10 * time.Second

var peopleFaults = []kind{
	{name: "uncordon as a person", in: []v1alpha1.State{
		v1alpha1.StateDraining, v1alpha1.StateBeforeReboot, v1alpha1.StateRebooting, v1alpha1.StateBeforeUncordon,
	}, do: func(c *campaign, h *simhost.Host) (string, func()) {
		var n turn.Node
		for done := false; !done; {
			var ok bool
			if n, ok = c.now(h.Name()); !ok || !n.Unschedulable || !n.Mark {
				return "", nil
			}
			c.Referee.AdminUncordon(h.Name())
			done = c.cordon(&n, nil)
			c.settled()
		}
		return "in " + string(n.State), nil
	}},
	{name: "cordon as a person", in: []v1alpha1.State{""}, lasts: true, do: func(c *campaign, h *simhost.Host) (string, func()) {
		// If possible, take a node that still waits for its turn.
		for _, other := range c.Fleet.Hosts {
			if n, ok := c.now(other.Name()); ok && n.State == v1alpha1.StateIdle && other.Version() != c.version() {
				h = other
			}
		}
		var n turn.Node
		for done := false; !done; { // until no other write conflicts
			var ok bool
			if n, ok = c.now(h.Name()); !ok || n.Unschedulable {
				return "", nil
			}
			done = c.cordon(&n, true)
		}
		return h.Name() + " in " + string(n.State), func() {
			// The cordon has to be there when the turn ends.
			c.book.find(cordonLasts, func(n *turn.Node) bool {
				return n.Name == h.Name() && h.Version() == c.version() && n.State == v1alpha1.StateIdle
			})
			c.eventually("to uncordon "+h.Name(), func() bool {
				if c.gone(h.Name()) {
					return true // the cordon is gone too
				}
				n, ok := c.now(h.Name())
				if ok && (!n.Unschedulable || n.Mark) {
					return true // the admin no longer owns it
				}
				if !ok {
					return false
				}
				c.Referee.AdminUncordon(h.Name())
				done := c.cordon(&n, nil)
				c.settled()
				return done
			})
		}
	}},
	{name: "nonsense in an annotation", do: func(c *campaign, h *simhost.Host) (string, func()) {
		key := editedAnnotations[c.rng.IntN(len(editedAnnotations))]
		return c.edit(h, "annotations", key, nonsense[c.rng.IntN(len(nonsense))]), func() {
			switch key {
			case v1alpha1.AnnotationRequest, v1alpha1.AnnotationRequestNow, v1alpha1.AnnotationRetry, v1alpha1.AnnotationLast:
				// Three keys belong to admins, and no process corrects them. The coordinator reports an unreadable
				// record of a past turn, and writes that record again only at the end of the next turn.
				c.edit(h, "annotations", key, "")
			}
		}
	}},
	{name: "nonsense in a label", do: func(c *campaign, h *simhost.Host) (string, func()) {
		key := editedLabels[c.rng.IntN(len(editedLabels))]
		return c.edit(h, "labels", key, []string{"", "nonsense", "reboot", "nothing"}[c.rng.IntN(4)]), nil
	}},
	{name: "pause", do: func(c *campaign, h *simhost.Host) (string, func()) {
		set := func(v any) bool {
			return c.patch(h.Name(), map[string]any{"metadata": map[string]any{"annotations": map[string]any{v1alpha1.AnnotationPaused: v}}})
		}
		if !set("campaign") {
			return "", nil
		}
		return "paused", func() {
			// The pause is gone if the Node is gone.
			c.eventually("to resume "+h.Name(), func() bool { return c.gone(h.Name()) || set(nil) })
		}
	}},
	{name: "emergency stop", do: func(c *campaign, _ *simhost.Host) (string, func()) {
		stop := func(v any) error {
			return c.TryPatchLease(map[string]any{"metadata": map[string]any{"annotations": map[string]any{v1alpha1.AnnotationStop: v}}})
		}
		return told("stopped", stop("campaign")), func() {
			c.eventually("to go on", func() bool {
				err := stop(nil)
				return err == nil || apierrors.IsNotFound(err) // the stop is gone with the Lease
			})
		}
	}},
}

// cordon edits the Node, as it was read, like an admin. nil uncordons.
func (c *campaign) cordon(n *turn.Node, unschedulable any) bool {
	return c.patch(n.Name, map[string]any{
		"metadata": map[string]any{"resourceVersion": n.ResourceVersion}, "spec": map[string]any{"unschedulable": unschedulable},
	})
}

// edit writes one key, whatever its value is. It acts as an admin for the keys that admins may write, and with the
// credential of the key's own writer for the others.
func (c *campaign) edit(h *simhost.Host, what, key, value string) string {
	var v any
	if value != "" {
		v = value
	}
	c.Referee.AdminEdit(h.Name())
	writer, err := c.ControlPlane.NodeWriter(h.Name(), key)
	c.Must(err)
	done := c.patchAs(writer, h.Name(), map[string]any{"metadata": map[string]any{what: map[string]any{key: v}}})
	c.settled()
	if !done {
		return ""
	}
	return fmt.Sprintf("%s=%q", key, value)
}

// settled waits until the referee has seen the change, and withdraws the declared violations that did not happen.
func (c *campaign) settled() {
	ctx, cancel := within(rig.Soon)
	defer cancel()
	c.Must(c.Referee.Sync(ctx))
	c.Referee.Withdraw()
}

// eventually retries until try succeeds: the API server may be down, or the Node may not exist for a while.
func (c *campaign) eventually(what string, try func() bool) {
	c.T.Helper()
	for range 500 {
		if try() {
			return
		}
		pause(lateMoment / 10)
	}
	c.T.Errorf("%v waiting %s", errPatience, what)
}
