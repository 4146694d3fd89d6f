package faults

import (
	"cmp"
	"slices"
	"strings"
)

// class is a kind of write.
type class struct {
	name string
	// shapes lists the shapes of the write, each with the role of the writer; see shape.
	shapes []string
	// in is the scenario that shows the write.
	in *scenario
	// commits marks a write that is dangerous if it took effect and its writer does not know. Every sample contains
	// that point.
	commits bool
}

// classes lists all writes of a host and of a coordinator in these scenarios. It is written by hand.
var classes = []class{
	{"host: whoami", []string{"host: whoami"}, &plain, false},
	{"host: publish, wants nothing", []string{"host: host wants=nothing"}, &comesBack, false},
	{"host: publish, wants a reboot", []string{"host: host wants=reboot"}, &plain, false},
	{"host: seen", []string{"host: ack=before-drain/seen"}, &plain, false},
	{"host: cordon, mark, committed", []string{"host: ack=draining/committed cordon unschedulable=true"}, &plain, true},
	{"host: evict", []string{"host: evict"}, &plain, true},
	{"host: drained", []string{"host: ack=draining/done"}, &plain, true},
	{"host: committed to the reboot", []string{"host: ack=rebooting/committed"}, &plain, true},
	{"host: rebooted, with fresh wants", []string{"host: ack=rebooting/done host wants=nothing"}, &plain, true},
	{"host: uncordon, mark off, done", []string{"host: ack=uncordoning/done cordon- unschedulable=false"}, &plain, true},
	{"host: publish the HostUpdate", []string{"host: publish"}, &plain, false},
	{"host: lifecycle conditions", []string{"host: conditions"}, &plain, false},

	{"coordinator: adopt", []string{"coordinator: grant- state=idle turn-"}, &comesBack, false},
	{"coordinator: release", []string{"coordinator: ack- expired- grant- held=Unmanaged host- last- runs- state- turn- wants-"}, &comesBack, true},
	{"coordinator: hold", []string{"coordinator: held=Budget"}, &waits, false},
	{"coordinator: hold no more", []string{"coordinator: held-"}, &waits, false},
	{"coordinator: grant", []string{"coordinator: grant state=before-drain turn"}, &plain, true},
	{"coordinator: to draining", []string{"coordinator: grant state=draining turn"}, &plain, false},
	{"coordinator: to before-reboot", []string{"coordinator: grant state=before-reboot turn"}, &plain, false},
	{"coordinator: to rebooting", []string{"coordinator: grant state=rebooting turn"}, &plain, true},
	{"coordinator: to before-uncordon", []string{"coordinator: grant state=before-uncordon turn"}, &plain, false},
	{"coordinator: to uncordoning", []string{"coordinator: grant state=uncordoning turn"}, &plain, false},
	{"coordinator: end of the turn", []string{"coordinator: grant- last state=idle turn-"}, &plain, true},
	{"coordinator: take a turn over", []string{"coordinator: grant held- turn"}, &handover, true},
	{"coordinator: status of a policy", []string{"coordinator: status of a policy"}, &plain, false},

	{"lease: acquire", []string{"coordinator: acquire"}, &handover, true},
	{"lease: renew", []string{"coordinator: renew"}, &midway, false},
	{"lease: release", []string{"coordinator: release"}, &handover, true},
}

// saidNothing and saidReboot are the parts of a host's write that can accompany any other part: what the host publishes
// about itself, for example after a start. A write with only these parts has its own class, and so has the write in
// which they belong to the report.
const saidNothing, saidReboot = "host wants=nothing", "host wants=reboot"

// classOf returns the class of a write.
func classOf(role, shape string) (string, bool) {
	full := role + ": " + shape
	bare := full
	for _, said := range []string{saidNothing, saidReboot} {
		if shape != said {
			bare = cmp.Or(without(bare, said), bare)
		}
	}
	for _, text := range []string{full, bare} {
		for _, c := range classes {
			if slices.Contains(c.shapes, text) {
				return c.name, true
			}
		}
	}
	return "", false
}

// without removes the parts from a shape with sorted parts. It returns "" if the shape does not contain all of them.
func without(shape, parts string) string {
	left := strings.Fields(shape)
	for part := range strings.FieldsSeq(parts) {
		i := slices.Index(left, part)
		if i < 0 {
			return ""
		}
		left = slices.Delete(left, i, i+1)
	}
	return strings.Join(left, " ")
}
