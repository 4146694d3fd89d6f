package rollout

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// ownHold returns why an idle node is held, from its own Node alone; ok is true if it is not
// held.
func (d *decision) ownHold(n *turn.Node) (v1alpha1.Reason, string, bool) {
	text, skew := unreadable(n), d.skewed(n)
	switch {
	case skew != "" && (text != "" || n.Host != nil && n.Wants == ""):
		// What it wants, or the rest of its record, has a form of another protocol.
		return v1alpha1.ReasonVersionSkew, skew, false
	case text != "":
		return v1alpha1.ReasonInvalidRecord, text, false
	}
	if !n.HostReported() {
		// The want is from another boot, and the host has not reported since.
		if n.Wants.Something() || n.Host == nil {
			return v1alpha1.ReasonHostSilent, "no report from its present boot", false
		}
		return "", "", true
	}
	if !n.Wants.Something() {
		return "", "", true
	}
	if skew != "" {
		return v1alpha1.ReasonVersionSkew, skew, false
	}
	if message, refused := d.Refused[n.Name]; refused {
		return v1alpha1.ReasonForbidden, message, false
	}
	if n.Owner != "" {
		return v1alpha1.ReasonOtherManager, n.Owner, false
	}
	if v := n.Host.Veto; v != "" && !v.IsVeto() {
		return v1alpha1.ReasonVersionSkew, fmt.Sprintf("the host has the veto %q, which the coordinator does not know", v), false
	} else if v == v1alpha1.ReasonInvalidPolicy {
		return v, "a policy that is valid here is invalid to the host, which has not read it again, or is older", false
	} else if v != "" {
		return v, "the host's own veto", false
	}
	if !n.Ready {
		return v1alpha1.ReasonNotReady, "", false
	}
	if text := d.turnLimit(n); text != "" {
		if silentSince(n) {
			// A silent host reaches the limit within the hour, and its silence is why.
			return v1alpha1.ReasonHostSilent, "no answer in its last turn; " + text, false
		}
		return v1alpha1.ReasonTurnLimit, text, false
	}
	return d.lastHold(n)
}

// silentSince reports whether the host did not answer in the node's last turn, and has not reported since.
func silentSince(n *turn.Node) bool {
	l := n.Last
	return l != nil && l.Result == v1alpha1.ResultBackedOut && l.Reason == v1alpha1.ReasonHostSilent && l.HostDigest == v1alpha1.Digest(n.RawHost)
}

// skewed returns why the coordinator does not work with the host's protocol, or "" if it does, or if the record does not name one.
func (d *decision) skewed(n *turn.Node) string {
	own := cmp.Or(d.Protocol, v1alpha1.Protocol)
	p := own
	if n.Host != nil {
		p = n.Host.Protocol
	} else if len(n.RawHost) <= v1alpha1.MaxHost {
		var host struct{ Protocol int }
		if json.Unmarshal([]byte(n.RawHost), &host) == nil && host.Protocol > 0 {
			p = host.Protocol
		}
	}
	if p == own || p == own-1 {
		return ""
	}
	return fmt.Sprintf("the host speaks protocol %d, the coordinator %d", p, own)
}

// unreadable returns why the host's record cannot be read, or "" if it can.
func unreadable(n *turn.Node) string {
	for _, p := range n.Problems {
		if p.Key == v1alpha1.AnnotationHost {
			return p.String()
		}
	}
	return ""
}

// turnLimit returns why the node may not have another turn yet, and when it may,
// or "" if it may now. An admin can allow one more turn; a host cannot.
func (d *decision) turnLimit(n *turn.Node) string {
	if n.Last == nil || n.Retry == n.Last.Turn {
		return ""
	}
	limit := d.policyOf(n).MaxTurnsPerDay
	turns := d.recent(n.Last.Turns)
	if len(turns) < limit {
		return ""
	}
	again := turns[len(turns)-limit].Add(day)
	d.wake(again)
	return fmt.Sprintf("%d turns within 24 hours, %d allowed; the next may begin at %s", len(turns), limit, moment(d.Now, again))
}

// blockHold returns why a node is held whose host says that Block is off for its next turn, or
// "". The coordinator's own policy and clock have to say so too. Otherwise the node would be
// granted a turn in which the host still may not evict the pods, and would refuse.
func (d *decision) blockHold(n *turn.Node) string {
	if !n.Host.BlockOff {
		return ""
	}
	if n.Host.BlockedSince.IsZero() {
		// The host said so in the turn before this one, whose drain evicted the pods. Another
		// may have come since.
		return "until its host reports again whether pods block the drain"
	}
	p := d.policyOf(n)
	limit := p.Terms.BlockLimit()
	if limit == 0 {
		return "policy " + p.Name + " does not end what blocks the drain (onBlockTimeout), although the host says so"
	}
	if end := n.Host.BlockedSince.Add(limit); end.After(d.Now) {
		d.wake(end)
		return "until " + moment(d.Now, end) + ", when blockTimeout of policy " + p.Name + " is over"
	}
	return ""
}

// lastHold returns why the result of the node's last turn holds it; ok is true if it does
// not.
func (d *decision) lastHold(n *turn.Node) (v1alpha1.Reason, string, bool) {
	l := n.Last
	if l == nil || n.Retry == l.Turn || !wantsAgain(l, n.Host.Changes) {
		return "", "", true
	}
	switch l.Result {
	case v1alpha1.ResultFailed:
		detail := string(l.Reason)
		if l.Reason == v1alpha1.ReasonStillWanted && len(l.Changes) > 0 {
			detail += ": " + l.Changes[0].String()
			if more := len(l.Changes) - 1; more > 0 {
				detail += fmt.Sprintf(" and %d more", more)
			}
		}
		return v1alpha1.ReasonFailed, detail, false
	case v1alpha1.ResultBackedOut:
		if l.NotBefore == nil || !l.NotBefore.After(d.Now) || l.NotBefore.After(d.Now.Add(d.policyOf(n).BackoffMax+maxAhead)) {
			return "", "", true
		}
		if l.Reason == v1alpha1.ReasonHostSilent {
			if !silentSince(n) {
				return "", "", true // the host has reported since
			}
			d.wake(*l.NotBefore)
			return v1alpha1.ReasonHostSilent, "no answer in its last turn; tried again at " + moment(d.Now, *l.NotBefore), false
		}
		d.wake(*l.NotBefore)
		return v1alpha1.ReasonBackoff, fmt.Sprintf("%s; tried again at %s", l.Reason, moment(d.Now, *l.NotBefore)), false
	}
	return "", "", true
}

// wantsAgain reports whether the changes are those that the turn was for. A file or unit
// that changed again during its turn counts as the same change, whatever it contains now.
// Otherwise a unit that rewrites the file at each restart would be granted turn after turn.
func wantsAgain(l *v1alpha1.Last, now []v1alpha1.Change) bool {
	if l.Reason == v1alpha1.ReasonInvalidGrant {
		return true // the changes were in the grant, which could not be read
	}
	if l.Result == v1alpha1.ResultFailed && l.Reason == v1alpha1.ReasonStillWanted {
		return v1alpha1.SameChanges(byName(l.Changes), byName(now))
	}
	return v1alpha1.SameChanges(l.Changes, now)
}

// byName returns the changes, with files and units stripped of their content's digest.
func byName(changes []v1alpha1.Change) []v1alpha1.Change {
	changes = slices.Clone(changes)
	for i := range changes {
		if changes[i].Watched() {
			changes[i].Version = ""
		}
	}
	return changes
}

// controlPlaneBlock returns which control-plane node keeps the control-plane node n from its
// turn, and why, or "". Policies cannot change this, because etcd's quorum depends on these
// nodes.
func (d *decision) controlPlaneBlock(n *turn.Node) string {
	if !n.ControlPlane {
		return ""
	}
	for _, o := range d.nodes {
		if !o.ControlPlane || o.Name == n.Name {
			continue
		}
		switch v := d.at(o).verdict; {
		case byUs(o), v.Move != nil && v.Move.Disturbs(), d.Uncertain[o.Name]:
			return o.Name + " is in a turn"
		case v.Held == v1alpha1.ReasonWouldGrant:
			return o.Name + " would be in a turn"
		case !o.Ready:
			return o.Name + " is not Ready"
		case o.Unschedulable:
			return o.Name + " is unschedulable"
		}
	}
	return ""
}
