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

// nonsense is what keys are edited into; "" stands for their removal.
var nonsense = []string{"", "{", "null", "x/y/z", "-", "{\"turn\":\"a\"}", "aaaaaaaaaaaaaaaa"}

// edited are the annotations that it happens to, and the labels.
var (
	editedAnnotations = []string{
		v1alpha1.AnnotationGrant, v1alpha1.AnnotationTurn, v1alpha1.AnnotationAck, v1alpha1.AnnotationHost, v1alpha1.AnnotationLast,
		v1alpha1.AnnotationRequest, v1alpha1.AnnotationRequestNow, v1alpha1.AnnotationRetry,
	}
	editedLabels = []string{v1alpha1.LabelWants, v1alpha1.LabelHeld}
)

// cordonLasts bounds how long a person leaves a node cordoned after everything else is over.
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
		// Of a node that is still to have its turn, if there is one.
		for _, other := range c.Fleet.Hosts {
			if n, ok := c.now(other.Name()); ok && n.State == v1alpha1.StateIdle && other.Version() != c.version() {
				h = other
			}
		}
		var n turn.Node
		for done := false; !done; { // until no one writes between the read and the write
			var ok bool
			if n, ok = c.now(h.Name()); !ok || n.Unschedulable {
				return "", nil
			}
			done = c.cordon(&n, true)
		}
		return h.Name() + " in " + string(n.State), func() {
			// It is to be there when its turn ends.
			c.book.find(cordonLasts, func(n *turn.Node) bool {
				return n.Name == h.Name() && h.Version() == c.version() && n.State == v1alpha1.StateIdle
			})
			c.eventually("to uncordon "+h.Name(), func() bool {
				if c.gone(h.Name()) {
					return true // and the cordon with it
				}
				n, ok := c.now(h.Name())
				if ok && (!n.Unschedulable || n.Mark) {
					return true // it is not theirs any more
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
				// Three are a person's, whom no one corrects; the record of a turn that is over is reported as unreadable, and
				// written again only at the end of the next turn.
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
			// The pause goes with its Node.
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
				return err == nil || apierrors.IsNotFound(err) // it went with the Lease
			})
		}
	}},
}

// cordon is a person's edit of the Node as it was read; nil uncordons.
func (c *campaign) cordon(n *turn.Node, unschedulable any) bool {
	return c.patch(n.Name, map[string]any{
		"metadata": map[string]any{"resourceVersion": n.ResourceVersion}, "spec": map[string]any{"unschedulable": unschedulable},
	})
}

// edit is a write of one key, whatever stands there: a person's where people may write it, of a program with the credential of
// the key's own writer where they may not.
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

// settled has the referee see what was done, and takes back what was declared and did not break anything.
func (c *campaign) settled() {
	ctx, cancel := within(rig.Soon)
	defer cancel()
	c.Must(c.Referee.Sync(ctx))
	c.Referee.Withdraw()
}

// eventually tries until it works: the API server may be away, the Node may be gone for a while.
func (c *campaign) eventually(what string, try func() bool) {
	c.T.Helper()
	for range 500 {
		if try() {
			return
		}
		pause(lateMoment / 10)
	}
	c.T.Errorf("%v: %s", errPatience, what)
}
