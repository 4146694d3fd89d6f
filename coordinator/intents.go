package coordinator

import (
	"cmp"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// intents are the admins' intents on one Node, as Events describe them. An intent that is
// not set is "".
type intents struct {
	uid              string // of the Node
	paused, detached string
	invalid          string // the payloads that do not parse
}

// reportNodeIntents writes Events about the intents on a Node that have changed. A leader
// that only records writes none.
func (e *events) reportNodeIntents(n *turn.Node, record bool) {
	was := e.intents[n.Name]
	if was.uid != n.UID {
		was = intents{} // another Node object of this name
	}
	now := intents{n.UID, describe("paused", n.Paused), describe("detached", n.Detached), invalidIntents(n)}
	if now != (intents{uid: n.UID}) {
		e.intents[n.Name] = now
	} else {
		delete(e.intents, n.Name)
	}
	if record {
		return
	}
	for _, c := range []struct{ was, now, set, removed string }{
		{was.paused, now.paused, string(v1alpha1.ReasonPaused), v1alpha1.EventResumed},
		{was.detached, now.detached, string(v1alpha1.ReasonDetached), v1alpha1.EventAttached},
		{was.invalid, now.invalid, v1alpha1.EventInvalidIntent, ""},
	} {
		switch {
		case c.now == c.was:
		case c.now != "":
			e.write(aboutNode(n), c.set, c.now)
		default:
			e.write(aboutNode(n), c.removed, "it was "+c.was)
		}
	}
}

// describe returns who set an intent, until when and why, or "" without an intent. An admin
// wrote the text, so describe truncates it and puts it on one line.
func describe(what string, i *v1alpha1.Intent) string {
	if i == nil {
		return ""
	}
	if i.Force {
		what += " with force"
	}
	if i.By != "" {
		what += " by " + v1alpha1.OneLine(i.By, maxWho)
	}
	if i.Until != nil {
		what += " until " + i.Until.UTC().Format(time.RFC3339)
	}
	return v1alpha1.OneLine(what+": "+cmp.Or(i.Reason, "(no reason given)"), maxNote)
}

// invalidIntents names the intents on a Node whose payload does not parse, and why.
func invalidIntents(n *turn.Node) string {
	var all []string
	for _, p := range n.Problems {
		switch p.Key {
		case v1alpha1.AnnotationPaused, v1alpha1.AnnotationDetached:
			all = append(all, "annotation "+p.String()+"; to end it: kubectl annotate node "+n.Name+" "+p.Key+"-")
		case v1alpha1.AnnotationRequest, v1alpha1.AnnotationRequestNow:
			all = append(all, "annotation "+p.String()+"; no reboot is requested")
		}
	}
	return v1alpha1.OneLine(strings.Join(all, "; "), maxNote)
}
