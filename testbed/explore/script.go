package explore

import (
	"fmt"
	"strings"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// line returns one line of a script: the step, and after "#" a description for people.
func (m *model) line(e *event, before, after *state) string {
	text := strings.TrimSpace(m.tell(e, before, after))
	if text == "" {
		return e.action.String()
	}
	return fmt.Sprintf("%s  # %s", e.action, text)
}

func (m *model) tell(e *event, before, after *state) string {
	if e.writer != "" {
		return string(e.writer) + " writes: " + difference(&e.before, &e.after)
	}
	if e.node >= 0 {
		b, a := &before.n[e.node], &after.n[e.node]
		switch {
		case e.reboots:
			return "calls for the reboot"
		case a.look == halfLook && b.look != halfLook:
			return "reads its Node"
		case a.look == leaseLook && b.look == noLook, a.look == commitLook && b.look == halfLook:
			return fmt.Sprintf("reads the Lease: held by %s, stop %t", epochName(a.lh), a.ls || !a.lx)
		case a.drain == 1 && b.drain == 0:
			return "begins to evict"
		}
		for k := range a.terms {
			if w := a.terms[k]; w.write != noWrite && b.terms[k].write == noWrite {
				o := &m.objects[b.api]
				return "will write: " + difference(o, &m.objects[w.obj])
			}
		}
		for k, o := range a.orphans {
			if o != 0 && b.orphans[k] == 0 {
				return "still in flight: " + difference(&m.objects[b.api], &m.objects[o])
			}
		}
		return ""
	}
	var all []string
	for i := range m.Nodes {
		b, a := &before.n[i], &after.n[i]
		for k := range a.terms {
			if w := a.terms[k]; w.write != noWrite && b.terms[k].write == noWrite && before.terms[k] == after.terms[k] {
				all = append(all, fmt.Sprintf("n%d will be written: %s", i+1, difference(&m.objects[b.api], &m.objects[w.obj])))
			}
		}
		for k, o := range a.orphans {
			if o != 0 && b.orphans[k] == 0 {
				all = append(all, fmt.Sprintf("n%d: still in flight: %s", i+1, difference(&m.objects[b.api], &m.objects[o])))
			}
		}
	}
	return strings.Join(all, "; ")
}

func epochName(e uint8) string {
	switch e {
	case 0:
		return "nobody"
	case 1:
		return "leader"
	case 2:
		return "older"
	}
	return "a dead term"
}

// difference describes what a write changed.
func difference(b, a *object) string {
	var d []string
	add := func(changed bool, format string, args ...any) {
		if changed {
			d = append(d, fmt.Sprintf(format, args...))
		}
	}
	add(b.exists() != a.exists(), "exists %t", a.exists())
	add(b.state != a.state, "%s -> %s", b.st(), a.st())
	add(b.ready != a.ready, "Ready %t", a.ready)
	add(b.boot != a.boot, "another boot")
	add(b.unsched != a.unsched, "unschedulable %t", a.unsched)
	add(b.mark != a.mark, "mark %t", a.mark)
	if a.ack != b.ack && a.ack.turn != 0 {
		reason := ""
		if r := reasons[a.ack.reason]; r != v1alpha1.ReasonNone {
			reason = ":" + string(r)
		}
		d = append(d, fmt.Sprintf("ack %s/%s%s", states[a.ack.state], words[a.ack.word], reason))
	}
	if a.wants > 0 {
		add(b.wants != a.wants || b.host != a.host, "wants %s", wantsList[a.wants-1])
	} else {
		add(b.wants != 0, "wants removed")
	}
	add(b.grant.turn != 0 && a.grant.turn != 0 && b.grant.epoch != a.grant.epoch, "epoch %s", epochName(a.grant.epoch))
	add(a.grant.result != b.grant.result && a.grant.turn != 0, "backed out: %s %s", results[a.grant.result], reasons[a.grant.reason])
	add(a.grant.turn != 0 && b.grant.turn != 0 && (a.grant.frozen > 0) != (b.grant.frozen > 0), "frozen %t", a.grant.frozen > 0)
	add(a.last != b.last && a.last.turn != 0, "last %s %s", results[a.last.result], reasons[a.last.reason])
	add(a.paused != b.paused, "paused %t", a.paused)
	add(a.detached != b.detached, "detached %d", a.detached)
	add(a.managed != b.managed, "managed=false %t", a.managed == 1)
	add(a.retry != b.retry, "retry")
	add(a.host.veto != b.host.veto, "veto %q", reasons[a.host.veto])
	add(a.host.blockOff != b.host.blockOff || a.grant.blockOff != b.grant.blockOff, "Block off %t, by the grant %t", a.host.blockOff, a.grant.blockOff)
	add(a.host.version != b.host.version && a.host.version > 0, "runs %s", version(a.host.version))
	add(a.runs != b.runs, "has run %s", version(a.runs.version))
	add(a.request != b.request || a.now != b.now, "request %d, now %d", a.request, a.now)
	add(a.hooks != b.hooks, "hooks %v", a.hooks)
	return strings.Join(d, ", ")
}
