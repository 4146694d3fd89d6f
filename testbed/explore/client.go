package explore

import (
	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/step"
)

// asking is what a host's process knows of its FleetLock client's request to reboot the host.
type asking uint8

const (
	askingUnknown asking = iota // the process has just started, and the client has sent it nothing
	askingNo
	askingYes
)

// seesUpdate returns the update that the host's own sources show. A client's update is not among them: only the client
// knows of it.
func (m *model) seesUpdate(n *node) uint8 {
	if m.Plan == ByClient {
		return 0
	}
	return n.change
}

// observeClient completes the host's observation by what its FleetLock client asks for.
func (m *model) observeClient(o *step.Observation, k *seen) {
	if m.Plan != ByClient {
		return
	}
	o.ImageVersion = true
	asked := step.Permission{Asked: k.asking == askingYes, Known: k.asking != askingUnknown, Open: k.open}
	o.Permission = asked.Since(step.Published(&o.Node, o.Self.BootID))
}

// clientSteps yields what a host's FleetLock client does. As long as it has an update staged, it asks for permission, again
// and again. It may reboot the host at any time after it was given permission, or never.
func (m *model) clientSteps(s *state, n *node, do doer) {
	if m.Plan != ByClient || n.down {
		return
	}
	if n.proc {
		switch {
		case n.change != 0 && !n.open:
			kind := ask
			if n.may {
				kind = askAgain // users are logged in, or the update could not be finalized
			}
			do(kind, 0, func(t *node, _ *event) { t.open, t.asking = true, askingYes })
		case n.open:
			do(hangUp, 0, func(t *node, _ *event) { t.open = false })
		case n.asking != askingNo:
			do(withdrawn, 0, func(t *node, _ *event) { t.asking = askingNo })
		}
		if m.fault(s, steady) {
			do(steady, 0, func(t *node, _ *event) { t.open, t.asking = false, askingNo })
		}
	}
	if n.may {
		do(clientReboots, 0, func(t *node, _ *event) {
			t.down, t.rebooted = true, t.mayTurn
			if t.shut = 0; t.proc {
				t.shut = 2
			}
		})
	}
	if m.stuck(n) {
		do(rebootByHand, 0, func(t *node, _ *event) { t.down, t.rebooted, t.shut = true, m.objects[t.api].turn, 2 })
	}
}

// permits reports whether the host has committed in this boot to let its client reboot.
func (m *model) permits(n *node) bool {
	o := &m.objects[n.api]
	return o.committed() && o.host.permits == o.turn && o.host.boot == n.boot && !n.down
}

// stuck reports whether the host has committed, and nothing will come of it without a person: its client does not have
// permission and does not ask again, or an admin has uncordoned the node, so that the host gives none.
func (m *model) stuck(n *node) bool {
	o := &m.objects[n.api]
	return m.permits(n) && !n.may && (n.change == 0 || o.grant.drains && !o.unsched)
}

// clientMay reports whether the host's client has permission for the turn that its Node shows.
func (m *model) clientMay(n *node) bool {
	o := &m.objects[n.api]
	return n.may && n.mayTurn != 0 && n.mayTurn == o.turn
}

// permitSteps yields the answer to the client's request, in turn number turn: the client receives it, or it does not.
func (m *model) permitSteps(s *state, n *node, view *object, do doer) {
	if !n.open {
		return // it has hung up
	}
	do(stepHost, 0, func(t *node, e *event) {
		t.open, t.may, t.mayTurn = false, true, view.turn
		e.starts, e.permits, e.turnSeen, e.grantSeen = step.DoPermit, true, view.turn, view.grant
	})
	if m.fault(s, loseAnswer) {
		do(loseAnswer, 0, func(t *node, _ *event) { t.open = false })
	}
}

// permitted checks that a turn stays committed for as long as the host's client has permission to reboot: its slot is
// taken, and no one uncordons the node.
func permitted(m *model, e *event, _, s *state) string {
	if e.node < 0 {
		return ""
	}
	n := &s.n[e.node]
	if o := &m.objects[n.api]; m.clientMay(n) && !n.freed && o.boot == o.grant.boot && !o.committed() {
		return "the FleetLock client may reboot the host, and the Node does not show the commit to it, but " + string(words[o.ack.word]) + " " + string(reasons[o.ack.reason]) + " in " + o.st().String()
	}
	if e.permits && !e.host.open {
		return "the host gives permission without a request"
	}
	return ""
}

// ofClients is what happens to FleetLock clients.
var ofClients = kindsOf(steady, loseAnswer)

// withClient returns the change that a FleetLock client's request is, after the other changes.
func withClient(changes []v1alpha1.Change, client bool) []v1alpha1.Change {
	if client {
		changes = append(changes, v1alpha1.Change{Source: v1alpha1.SourceFleetLock})
	}
	return changes
}
