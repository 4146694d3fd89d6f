package identity

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
)

// A refused policy is wrong in one field.
type refused struct {
	spec  string // YAML; what it does not say is the API server's default
	name  string // of the policy; "" is one like any other
	field string // the one that is wrong, as the API server names it
	says  string // part of the API server's words: what to write instead
	code  string // the field by policy.Compile's word; "" is the same
	alone string // why only the API server refuses it; "" is both do
}

const (
	policyBound = "sizes are bounded for the API server's sake, which counts what a rule may cost"
	// What is wrong with durations, by their bounds.
	long  = "expected a duration of 1s to 168h, such as 15m or 1h30m"
	short = "expected a duration of 1s to 24h, such as 90s or 1h30m"

	limits       = `expected a number of 1 to 10000, or a percentage of "1%" to "100%"`
	wantPath     = "expected an absolute and clean path such as /etc/containerd: no //, no . or .. between slashes, no / at its end, no control characters"
	wantUnit     = "expected a unit's full name such as containerd.service; of a template, an instance"
	wantDay      = "expected a day such as 2026-12-24, or a time such as 2026-12-24T18:00, of the years 2000 to 2099"
	wantHook     = "expected the part of an annotation key after the slash: letters, digits, _ . and -, with a letter or digit at both ends"
	wantSelector = "expected matchExpressions with the operator In or NotIn and values, or Exists or DoesNotExist and none"
	labelled     = "expected a DNS label: lower-case letters, digits and -, with a letter or digit at both ends"
)

// file is a rule for a file with a path.
func file(path string) string {
	return fmt.Sprintf(`rules: [{source: File, path: %q, actions: [{type: Reboot}]}]`, path)
}

// unit is a rule for a unit.
func unit(name string) string {
	return fmt.Sprintf(`rules: [{source: Unit, unit: %q, actions: [{type: Reboot}]}]`, name)
}

// restart is a rule that restarts a unit.
func restart(name string) string {
	return fmt.Sprintf(`rules: [{source: Request, actions: [{type: Restart, unit: %q}]}]`, name)
}

// window is one window.
func window(start, duration, zone string) string {
	return fmt.Sprintf(`rollout: {windows: [{start: %q, duration: %q, timeZone: %q}]}`, start, duration, zone)
}

// blackout is one blackout.
func blackout(start, end, zone, reason string) string {
	return fmt.Sprintf(`rollout: {blackouts: [{start: %q, end: %q, timeZone: %q, reason: %q}]}`, start, end, zone, reason)
}

// hook is a hook of a stage. It says all: the API server's defaults are not in Compile's copy of a list.
func hook(stage, name, timeout, onTimeout string) string {
	return fmt.Sprintf(`%s: [{name: %q, timeout: %q, onTimeout: %s}]`, stage, name, timeout, onTimeout)
}

// many is a list of n items, each made from its number.
func many(n int, item string) string {
	var items []string
	for i := range n {
		items = append(items, strings.ReplaceAll(item, "#", fmt.Sprint(i)))
	}
	return "[" + strings.Join(items, ", ") + "]"
}

var refusals = slices.Concat([]refused{
	{spec: `priority: 1001`, field: "spec.priority", says: "should be less than or equal to 1000"},
	{spec: `priority: -1001`, name: "lockkeeper-default", field: "spec.priority", says: "should be greater than or equal to -1000"},
	{spec: `priority: -1000`, field: "spec.priority", says: "expected more than -1000, the priority of lockkeeper-default"},
	{spec: `mode: Watch`, field: "spec.mode", says: `supported values: "Act", "Observe"`},
	{spec: `nodeSelector: {matchExpressions: [{key: pool, operator: In}]}`, field: "spec.nodeSelector", says: wantSelector},
	{spec: `nodeSelector: {matchExpressions: [{key: pool, operator: Exists, values: [a]}]}`, field: "spec.nodeSelector", says: wantSelector},
	{spec: `nodeSelector: {matchExpressions: [{key: pool, operator: Is, values: [a]}]}`, field: "spec.nodeSelector", says: wantSelector},

	// Rules.
	{spec: `rules: [{source: Rumour, actions: [{type: Reboot}]}]`, field: "spec.rules[0].source", says: `supported values: "OSUpdate", "Sentinel", "File", "Unit", "Request", "FleetLock"`},
	{spec: `rules: [{source: OSUpdate, actions: []}]`, field: "spec.rules[0].actions", says: "empty; expected at least one action: a change that is to cost nothing has None"},
	{spec: `rules: [{source: OSUpdate, actions: [{type: None}, {type: Reboot}]}]`, field: "spec.rules[0].actions", says: "None is listed with other actions; expected None alone", code: "spec.rules[0].actions[0]"},
	{spec: `rules: [{source: FleetLock, actions: [{type: Drain}]}]`, field: "spec.rules[0].actions", says: "no Reboot; expected Reboot in a rule for FleetLock, since its client reboots the host; or None, which gives it no permission"},
	{spec: `rules: [{source: OSUpdate, actions: [{type: Explode}]}]`, field: "spec.rules[0].actions[0].type", says: `supported values: "None", "Drain", "DaemonReload", "Reload", "Restart", "Reboot"`},
	{spec: `rules: [{source: OSUpdate, actions: [{type: Reload}]}]`, field: "spec.rules[0].actions[0].unit", says: "missing; expected the full name of the unit to reload or restart"},
	{spec: `rules: [{source: OSUpdate, actions: [{type: Restart}]}]`, field: "spec.rules[0].actions[0].unit", says: "missing; expected the full name of the unit to reload or restart"},
	{spec: `rules: [{source: OSUpdate, actions: [{type: Reboot, unit: a.service}]}]`, field: "spec.rules[0].actions[0].unit", says: "this action has no unit; expected one only with Reload and Restart"},
	{spec: `rules: [{source: OSUpdate, actions: [{type: DaemonReload, unit: a.service}]}]`, field: "spec.rules[0].actions[0].unit", says: "expected one only with Reload and Restart"},
	{spec: restart("containerd"), field: "spec.rules[0].actions[0].unit", says: wantUnit},
	{spec: restart(strings.Repeat("u", 256) + ".service"), field: "spec.rules[0].actions[0].unit", says: "Too long: may not be more than 255 bytes"},
	{spec: `rules: [{source: File, actions: [{type: Reboot}]}]`, field: "spec.rules[0].path", says: "missing; expected the absolute path of a file or directory in a rule for File"},
	{spec: `rules: [{source: OSUpdate, path: /etc, actions: [{type: Reboot}]}]`, field: "spec.rules[0].path", says: "a rule for this source has no path; expected one only with File and Sentinel"},
	{spec: `rules: [{source: Unit, unit: a.service, path: /etc, actions: [{type: Reboot}]}]`, field: "spec.rules[0].path", says: "expected one only with File and Sentinel"},
	{spec: file("etc/x"), field: "spec.rules[0].path", says: wantPath},
	{spec: file("/etc//x"), field: "spec.rules[0].path", says: wantPath},
	{spec: file("/etc/./x"), field: "spec.rules[0].path", says: wantPath},
	{spec: file("/etc/../x"), field: "spec.rules[0].path", says: wantPath},
	{spec: file("/etc/.."), field: "spec.rules[0].path", says: wantPath},
	{spec: file("/etc/"), field: "spec.rules[0].path", says: wantPath},
	{spec: file("/etc/x\n"), field: "spec.rules[0].path", says: wantPath},
	{spec: file("//"), field: "spec.rules[0].path", says: wantPath},
	{spec: file(""), field: "spec.rules[0].path", says: wantPath},
	{spec: `rules: [{source: Sentinel, path: run/reboot, actions: [{type: Reboot}]}]`, field: "spec.rules[0].path", says: wantPath},
	{spec: file("/" + strings.Repeat("p", 1024)), field: "spec.rules[0].path", says: "Too long: may not be more than 1024 bytes", alone: policyBound},
	{spec: `rules: [{source: Unit, actions: [{type: Reboot}]}]`, field: "spec.rules[0].unit", says: "missing; expected a unit's full name such as containerd.service in a rule for Unit"},
	{spec: `rules: [{source: Request, unit: a.service, actions: [{type: Reboot}]}]`, field: "spec.rules[0].unit", says: "a rule for this source has no unit; expected one only with Unit"},
	{spec: unit("containerd"), field: "spec.rules[0].unit", says: wantUnit},
	{spec: unit("containerd.conf"), field: "spec.rules[0].unit", says: wantUnit},
	{spec: unit(".service"), field: "spec.rules[0].unit", says: wantUnit},
	{spec: unit("getty@.service"), field: "spec.rules[0].unit", says: wantUnit},
	{spec: unit("@tty1.service"), field: "spec.rules[0].unit", says: wantUnit},
	{spec: unit("a b.service"), field: "spec.rules[0].unit", says: wantUnit},
	{spec: unit("a/b.service"), field: "spec.rules[0].unit", says: wantUnit},
	{spec: unit(strings.Repeat("u", 256) + ".service"), field: "spec.rules[0].unit", says: "Too long: may not be more than 255 bytes"},
	{spec: `rules: [{source: Sentinel, holdBack: "4081.*", actions: [{type: Reboot}]}]`, field: "spec.rules[0].holdBack", says: "a rule for this source holds nothing back; expected holdBack only with OSUpdate"},
	{spec: `rules: [{source: OSUpdate, holdBack: "4081.[12]", actions: [{type: Reboot}]}]`, field: "spec.rules[0].holdBack", says: "expected a pattern of OS versions such as 4081.*, where * and ? are all that is special"},
	{spec: `rules: [{source: OSUpdate, holdBack: "", actions: [{type: Reboot}]}]`, field: "spec.rules[0].holdBack", says: "should be at least 1 chars long", alone: "to Go the empty one is none"},
	{spec: `rules: [{source: OSUpdate, holdBack: "` + strings.Repeat("1", 129) + `", actions: [{type: Reboot}]}]`, field: "spec.rules[0].holdBack", says: "Too long: may not be more than 128 bytes", alone: policyBound},
	{spec: `rules: [{source: OSUpdate, drain: Never, actions: [{type: Drain}, {type: Reboot}]}]`, field: "spec.rules[0].drain", says: "the rule has the action Drain and drain: Never; leave one of them out", code: "spec.rules[0].actions[0]"},
	{spec: `rules: [{source: OSUpdate, drain: Always, actions: [{type: Reboot}]}]`, field: "spec.rules[0].drain", says: `supported values: "Never"`},
	{spec: `rules: [{source: OSUpdate, actions: [{type: Reboot}]}, {source: OSUpdate, actions: [{type: None}]}]`, field: "spec.rules", says: "two rules have the same source and the same path or unit; expected one rule for each: put their actions together", code: "spec.rules[1]"},
	{spec: `rules: [{source: File, path: /a, actions: [{type: Reboot}]}, {source: File, path: /a, actions: [{type: None}]}]`, field: "spec.rules", says: "two rules have the same source", code: "spec.rules[1]"},
	{spec: `rules: ` + many(101, `{source: File, path: /f#, actions: [{type: Reboot}]}`), field: "spec.rules", says: "must have at most 100 items", alone: policyBound},
	{spec: `rules: [{source: Request, actions: ` + many(33, `{type: Restart, unit: u#.service}`) + `}]`, field: "spec.rules[0].actions", says: "must have at most 32 items", alone: policyBound},

	// The rollout.
	{spec: `rollout: {maxUnavailable: 0}`, field: "spec.rollout.maxUnavailable", says: limits},
	{spec: `rollout: {maxUnavailable: 10001}`, field: "spec.rollout.maxUnavailable", says: limits},
	{spec: `rollout: {maxUnavailable: 5000000000}`, field: "spec.rollout.maxUnavailable", says: limits, code: "unreadable"},
	{spec: `rollout: {maxUnavailable: "10"}`, field: "spec.rollout.maxUnavailable", says: limits},
	{spec: `rollout: {maxUnavailable: "0%"}`, field: "spec.rollout.maxUnavailable", says: limits},
	{spec: `rollout: {maxUnavailable: "101%"}`, field: "spec.rollout.maxUnavailable", says: limits},
	{spec: `rollout: {maxUnavailable: "1.5%"}`, field: "spec.rollout.maxUnavailable", says: limits},
	{spec: `rollout: {maxUnavailableTotal: 0}`, field: "spec.rollout.maxUnavailableTotal", says: limits},
	{spec: `rollout: {maxUnavailableTotal: "010%"}`, field: "spec.rollout.maxUnavailableTotal", says: limits},
	{spec: `rollout: {maxFailed: -1}`, field: "spec.rollout.maxFailed", says: "should be greater than or equal to 0"},
	{spec: `rollout: {maxFailed: 10001}`, field: "spec.rollout.maxFailed", says: "should be less than or equal to 10000"},
	{spec: `rollout: {maxTurnsPerDay: 0}`, field: "spec.rollout.maxTurnsPerDay", says: "should be greater than or equal to 1"},
	{spec: `rollout: {maxTurnsPerDay: 49}`, field: "spec.rollout.maxTurnsPerDay", says: "should be less than or equal to 48"},
	{spec: `rollout: {order: [Rank]}`, field: "spec.rollout.order[0]", says: `supported values: "LastTurn", "Zone", "OldestBoot", "Name"`},
	{spec: `rollout: {order: [Zone, Name, LastTurn, Zone, Name]}`, field: "spec.rollout.order", says: "must have at most 4 items", alone: policyBound},
	{spec: `rollout: {backoff: 2h, backoffMax: 1h}`, field: "spec.rollout.backoffMax", says: "shorter than backoff; expected backoff or more, up to 24h"},
	{spec: `rollout: {backoff: 2h}`, field: "spec.rollout.backoffMax", says: "shorter than backoff"},
	{spec: `rollout: {onClose: Panic}`, field: "spec.rollout.onClose", says: `supported values: "Finish", "Cancel"`},
	{spec: `rollout: {windows: [{days: [Monday], start: "02:00", duration: 4h, timeZone: UTC}]}`, field: "spec.rollout.windows[0].days[0]", says: `supported values: "Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"`},
	{spec: `rollout: {windows: [{days: ` + many(8, "Mon") + `, start: "02:00", duration: 4h, timeZone: UTC}]}`, field: "spec.rollout.windows[0].days", says: "must have at most 7 items", alone: policyBound},
	{spec: window("24:00", "4h", "UTC"), field: "spec.rollout.windows[0].start", says: "expected a time of the day, 00:00 to 23:59"},
	{spec: window("2:00", "4h", "UTC"), field: "spec.rollout.windows[0].start", says: "expected a time of the day, 00:00 to 23:59"},
	{spec: window("02:60", "4h", "UTC"), field: "spec.rollout.windows[0].start", says: "expected a time of the day, 00:00 to 23:59"},
	{spec: window("00000000000000:00", "4h", "UTC"), field: "spec.rollout.windows[0].start", says: "Too long: may not be more than 16 bytes"},
	{spec: window("02:00", "10m", "UTC"), field: "spec.rollout.windows", says: "a window is shorter than expectedDuration, so no turn would ever begin in it; expected longer windows or a shorter expectedDuration", code: "spec.rollout.windows[0].duration"},
	{spec: window("02:00", "4h", ""), field: "spec.rollout.windows[0].timeZone", says: "expected a name of the IANA time zone database, such as Europe/Berlin or UTC"},
	{spec: window("02:00", "4h", "Local"), field: "spec.rollout.windows[0].timeZone", says: "expected a name of the IANA time zone database"},
	{spec: window("02:00", "4h", "localtime"), field: "spec.rollout.windows[0].timeZone", says: "expected a name of the IANA time zone database"},
	{spec: window("02:00", "4h", "posixrules"), field: "spec.rollout.windows[0].timeZone", says: "expected a name of the IANA time zone database"},
	{spec: window("02:00", "4h", "../etc/passwd"), field: "spec.rollout.windows[0].timeZone", says: "expected a name of the IANA time zone database"},
	{spec: window("02:00", "4h", "/UTC"), field: "spec.rollout.windows[0].timeZone", says: "expected a name of the IANA time zone database"},
	{spec: window("02:00", "4h", strings.Repeat("Z", 65)), field: "spec.rollout.windows[0].timeZone", says: "Too long: may not be more than 64 bytes"},
	{spec: `rollout: {windows: ` + many(33, `{start: "02:00", duration: 4h, timeZone: UTC}`) + `}`, field: "spec.rollout.windows", says: "must have at most 32 items", alone: policyBound},
	{spec: blackout("2026-02-29", "2027-01-03", "UTC", ""), field: "spec.rollout.blackouts[0].start", says: wantDay},
	{spec: blackout("2026-11-31", "2027-01-03", "UTC", ""), field: "spec.rollout.blackouts[0].start", says: wantDay},
	{spec: blackout("26-12-20", "2027-01-03", "UTC", ""), field: "spec.rollout.blackouts[0].start", says: wantDay},
	{spec: blackout("", "2027-01-03", "UTC", ""), field: "spec.rollout.blackouts[0].start", says: wantDay},
	{spec: blackout("2026-12-20T18:00:00", "2027-01-03", "UTC", ""), field: "spec.rollout.blackouts[0].start", says: "Too long: may not be more than 16 bytes"},
	{spec: blackout("2026-12-20", "2127-01-03", "UTC", ""), field: "spec.rollout.blackouts[0].end", says: wantDay},
	{spec: blackout("2026-12-20", "2027-01-03 18:00", "UTC", ""), field: "spec.rollout.blackouts[0].end", says: wantDay},
	{spec: blackout("2026-12-20", "2027-01-03T24:00", "UTC", ""), field: "spec.rollout.blackouts[0].end", says: wantDay},
	{spec: blackout("2026-12-20", "2027-01-03T18:00:00", "UTC", ""), field: "spec.rollout.blackouts[0].end", says: "Too long: may not be more than 16 bytes"},
	{spec: blackout("2026-12-20", "2026-12-19", "UTC", ""), field: "spec.rollout.blackouts[0].end", says: "not after start; expected the last day of the blackout, or a later time"},
	{spec: blackout("2026-12-20", "2026-12-20T00:00", "UTC", ""), field: "spec.rollout.blackouts[0].end", says: "not after start"},
	{spec: blackout("2026-12-20T18:00", "2026-12-20T18:00", "UTC", ""), field: "spec.rollout.blackouts[0].end", says: "not after start"},
	{spec: blackout("2026-12-20", "2027-01-03", "", ""), field: "spec.rollout.blackouts[0].timeZone", says: "expected a name of the IANA time zone database, such as Europe/Berlin or UTC"},
	{spec: blackout("2026-12-20", "2027-01-03", "Local", ""), field: "spec.rollout.blackouts[0].timeZone", says: "expected a name of the IANA time zone database"},
	{spec: blackout("2026-12-20", "2027-01-03", strings.Repeat("Z", 65), ""), field: "spec.rollout.blackouts[0].timeZone", says: "Too long: may not be more than 64 bytes"},
	{spec: blackout("2026-12-20", "2027-01-03", "UTC", "two\nlines"), field: "spec.rollout.blackouts[0].reason", says: "expected one line of printable characters"},
	{spec: blackout("2026-12-20", "2027-01-03", "UTC", "\u202eback"), field: "spec.rollout.blackouts[0].reason", says: "expected one line of printable characters"},
	{spec: blackout("2026-12-20", "2027-01-03", "UTC", strings.Repeat("ä", 201)), field: "spec.rollout.blackouts[0].reason", says: "Too long: may not be more than 200 bytes"},
	{spec: `rollout: {blackouts: ` + many(51, `{start: "2026-12-20", end: "2027-01-03", timeZone: UTC}`) + `}`, field: "spec.rollout.blackouts", says: "must have at most 50 items"},
	{spec: `rollout: {after: [{policy: a-policy, for: 24h}]}`, field: "spec.rollout.after", says: "the policy waits for itself; expected the name of another policy", code: "spec.rollout.after[0].policy"},
	{spec: `rollout: {after: [{policy: Canary, for: 24h}]}`, field: "spec.rollout.after[0].policy", says: "expected the name of a policy: lower-case letters, digits, - and ."},
	{spec: `rollout: {after: [{policy: "", for: 24h}]}`, field: "spec.rollout.after[0].policy", says: "expected the name of a policy"},
	{spec: `rollout: {after: [{policy: canary., for: 24h}]}`, field: "spec.rollout.after[0].policy", says: "expected the name of a policy"},
	{spec: `rollout: {after: [{policy: ` + strings.Repeat("c", 254) + `, for: 24h}]}`, field: "spec.rollout.after[0].policy", says: "Too long: may not be more than 253 bytes"},
	{spec: `rollout: {after: [{policy: canary, for: 1h}, {policy: canary, for: 2h}]}`, field: "spec.rollout.after[1]", says: "Duplicate value", code: "spec.rollout.after[1].policy"},
	{spec: `rollout: {after: ` + many(9, `{policy: p#, for: 1h}`) + `}`, field: "spec.rollout.after", says: "must have at most 8 items"},
	{spec: `rollout: {gates: [{name: No Alerts, query: up}]}`, field: "spec.rollout.gates[0].name", says: labelled},
	{spec: `rollout: {gates: [{name: ` + strings.Repeat("g", 64) + `, query: up}]}`, field: "spec.rollout.gates[0].name", says: "Too long: may not be more than 63 bytes"},
	{spec: `rollout: {gates: [{name: alerts, query: " "}]}`, field: "spec.rollout.gates[0].query", says: "empty; expected a query of Prometheus that returns nothing while turns may begin"},
	{spec: `rollout: {gates: [{name: alerts, query: ` + strings.Repeat("q", 4097) + `}]}`, field: "spec.rollout.gates[0].query", says: "Too long: may not be more than 4096 bytes", alone: policyBound},
	{spec: `rollout: {gates: [{name: alerts, query: a}, {name: alerts, query: b}]}`, field: "spec.rollout.gates[1]", says: "Duplicate value", code: "spec.rollout.gates[1].name"},
	{spec: `rollout: {gates: ` + many(17, `{name: g#, query: up}`) + `}`, field: "spec.rollout.gates", says: "must have at most 16 items", alone: policyBound},

	// The drain.
	{spec: `drain: {unmanaged: Delete}`, field: "spec.drain.unmanaged", says: `supported values: "Evict", "Block", "Skip"`},
	{spec: `drain: {emptyDir: evict}`, field: "spec.drain.emptyDir", says: `supported values: "Evict", "Block", "Skip"`},
	{spec: `drain: {onBlockTimeout: Evict}`, field: "spec.drain.blockTimeout", says: "missing; expected a duration of 1m to 168h with onBlockTimeout: Evict"},
	{spec: `drain: {blockTimeout: 24h, onBlockTimeout: Skip}`, field: "spec.drain.onBlockTimeout", says: `supported values: "Hold", "Evict"`},
	{spec: `drain: {onTimeout: Continue}`, field: "spec.drain.onTimeout", says: `supported values: "Wait", "Abort", "Force"`},
	{spec: `drain: {skip: [{namespace: Kube System}]}`, field: "spec.drain.skip[0].namespace", says: "expected the name of a namespace"},
	{spec: `drain: {skip: [{namespace: ` + strings.Repeat("n", 64) + `}]}`, field: "spec.drain.skip[0].namespace", says: "Too long: may not be more than 63 bytes"},
	{spec: `drain: {block: [{namespace: -a}]}`, field: "spec.drain.block[0].namespace", says: "expected the name of a namespace"},
	{spec: `drain: {block: [{namespace: ` + strings.Repeat("n", 64) + `}]}`, field: "spec.drain.block[0].namespace", says: "Too long: may not be more than 63 bytes"},
	{spec: `drain: {skip: ` + many(17, `{namespace: n#}`) + `}`, field: "spec.drain.skip", says: "must have at most 16 items", alone: policyBound},
	{spec: `drain: {block: ` + many(17, `{namespace: n#}`) + `}`, field: "spec.drain.block", says: "must have at most 16 items", alone: policyBound},

	{spec: `drain: {excludeFromLoadBalancers: true, loadBalancerDelay: 5m, timeout: 300s}`, field: "spec.drain.loadBalancerDelay", says: "expected a shorter loadBalancerDelay or a longer timeout"},
	{spec: `drain: {excludeFromLoadBalancers: true, timeout: 10s}`, field: "spec.drain.loadBalancerDelay", says: "the delay is not shorter than the timeout of the drain, of which it is a part; expected a shorter loadBalancerDelay or a longer timeout"},

	// A name in two stages.
	{spec: "hooks: {" + hook("beforeDrain", "lb", "5m", "Wait") + ", " + hook("beforeReboot", "lb", "5m", "Wait") + "}", field: "spec.hooks.beforeReboot",
		says: "beforeDrain and beforeReboot have the same name; expected each name in one stage only: rename one of them", code: "spec.hooks.beforeReboot[0].name"},
	{spec: "hooks: {" + hook("beforeDrain", "lb", "5m", "Wait") + ", " + hook("beforeUncordon", "lb", "5m", "Wait") + "}", field: "spec.hooks.beforeUncordon",
		says: "beforeDrain and beforeUncordon have the same name; expected each name in one stage only: rename one of them", code: "spec.hooks.beforeUncordon[0].name"},
	{spec: "hooks: {" + hook("beforeReboot", "lb", "5m", "Wait") + ", " + hook("beforeUncordon", "lb", "5m", "Wait") + "}", field: "spec.hooks.beforeUncordon",
		says: "beforeReboot and beforeUncordon have the same name; expected each name in one stage only: rename one of them", code: "spec.hooks.beforeUncordon[0].name"},
	{spec: "hooks: {" + hook("beforeUncordon", "lb", "5m", "Abort") + "}", field: "spec.hooks.beforeUncordon[0].onTimeout", says: `supported values: "Wait", "Continue"`},
	{spec: "hooks: {" + hook("beforeDrain", "lb", "5m", "Force") + "}", field: "spec.hooks.beforeDrain[0].onTimeout", says: `supported values: "Wait", "Continue", "Abort"`},
	{spec: "hooks: {" + hook("beforeReboot", "lb", "5m", "Force") + "}", field: "spec.hooks.beforeReboot[0].onTimeout", says: `supported values: "Wait", "Continue", "Abort"`},
}, hookRefusals(), durationRefusals(), unitRefusals(), rulesOnlyRefusals())

// unitRefusals are the units that no plan reloads or restarts, in the words of the list in package policy.
func unitRefusals() (all []refused) {
	for _, g := range policy.AllRefusedUnits() {
		for _, name := range g.Units {
			if stem, ok := strings.CutSuffix(name, "*"); ok {
				name = stem + "anything.service"
			}
			for _, action := range []v1alpha1.ActionType{v1alpha1.ActionReload, v1alpha1.ActionRestart} {
				if g.Reloads && action == v1alpha1.ActionReload {
					continue
				}
				all = append(all, refused{
					spec:  fmt.Sprintf(`rules: [{source: Request, actions: [{type: DaemonReload}, {type: %s, unit: %q}]}]`, action, name),
					field: "spec.rules[0].actions[1].unit", says: "this unit " + g.Why + "; expected " + g.Instead,
				})
			}
		}
	}
	return all
}

// hookRefusals are what is wrong with hooks in each stage.
func hookRefusals() (all []refused) {
	for _, stage := range []string{"beforeDrain", "beforeReboot", "beforeUncordon"} {
		at := "spec.hooks." + stage
		for _, name := range []string{"", "-lb", "lb.", "my hook", "lb/a"} {
			all = append(all, refused{spec: "hooks: {" + hook(stage, name, "5m", "Wait") + "}", field: at + "[0].name", says: wantHook})
		}
		item := `{name: lb#, timeout: 5m, onTimeout: Wait}`
		all = append(all,
			refused{spec: "hooks: {" + hook(stage, strings.Repeat("h", 64), "5m", "Wait") + "}", field: at + "[0].name", says: "Too long: may not be more than 63 bytes"},
			refused{spec: "hooks: {" + stage + `: [{name: lb, timeout: 5m, onTimeout: Wait}, {name: lb, timeout: 5m, onTimeout: Wait}]}`, field: at + "[1]", says: "Duplicate value", code: at + "[1].name"},
			refused{spec: "hooks: {" + stage + ": " + many(17, item) + "}", field: at, says: "must have at most 16 items", alone: policyBound})
	}
	return all
}

// durationRefusals are what is wrong with each duration.
func durationRefusals() (all []refused) {
	for _, d := range []struct{ field, spec, short, long, says string }{
		{"spec.rollout.settle", "rollout: {settle: %s}", "-1s", "24h0m1s", "expected a duration of 0s to 24h, such as 90s or 1h30m"},
		{"spec.rollout.backoff", "rollout: {backoff: %s, backoffMax: 24h}", "999ms", "24h0m1s", short},
		{"spec.rollout.backoffMax", "rollout: {backoff: 1s, backoffMax: %s}", "999ms", "24h0m1s", short},
		{"spec.rollout.expectedDuration", "rollout: {expectedDuration: %s}", "59s", "24h0m1s", "expected a duration of 1m to 24h, such as 15m or 1h30m"},
		{"spec.rollout.after[0].for", "rollout: {after: [{policy: canary, for: %s}]}", "-1s", "720h0m1s", "expected a duration of 0s to 720h, such as 24h or 1h30m"},
		{"spec.rollout.windows[0].duration", `rollout: {expectedDuration: 1m, windows: [{start: "02:00", duration: %s, timeZone: UTC}]}`, "9m59s", "24h0m1s", "expected a duration of 10m to 24h, such as 4h or 90m"},
		{"spec.drain.loadBalancerDelay", "drain: {loadBalancerDelay: %s}", "-1s", "10m1s", "expected a duration of 0s to 10m, such as 30s or 1m30s"},
		{"spec.drain.timeout", "drain: {timeout: %s}", "999ms", "168h0m1s", long},
		{"spec.drain.blockTimeout", "drain: {blockTimeout: %s, onBlockTimeout: Evict}", "59s", "168h0m1s", "expected a duration of 1m to 168h, such as 24h or 90m"},
		{"spec.timeouts.seen", "timeouts: {seen: %s}", "0s", "168h0m1s", long},
		{"spec.timeouts.hostHooks", "timeouts: {hostHooks: %s}", "0s", "168h0m1s", long},
		{"spec.timeouts.rebooting", "timeouts: {rebooting: %s}", "0s", "168h0m1s", long},
		{"spec.timeouts.applying", "timeouts: {applying: %s}", "0s", "168h0m1s", long},
		{"spec.timeouts.uncordoning", "timeouts: {uncordoning: %s}", "0s", "168h0m1s", long},
		{"spec.hooks.beforeDrain[0].timeout", "hooks: {beforeDrain: [{name: lb, timeout: %s, onTimeout: Wait}]}", "0s", "168h0m1s", long},
		{"spec.hooks.beforeReboot[0].timeout", "hooks: {beforeReboot: [{name: lb, timeout: %s, onTimeout: Wait}]}", "0s", "168h0m1s", long},
		{"spec.hooks.beforeUncordon[0].timeout", "hooks: {beforeUncordon: [{name: lb, timeout: %s, onTimeout: Wait}]}", "0s", "168h0m1s", long},
	} {
		for _, value := range []string{d.short, d.long} {
			all = append(all, refused{spec: fmt.Sprintf(d.spec, value), field: d.field, says: d.says})
		}
		for _, value := range []string{"1d", "soon", `""`, `"15"`, "1h 30m"} {
			all = append(all, refused{spec: fmt.Sprintf(d.spec, value), field: d.field, says: d.says, code: "unreadable"})
		}
		all = append(all, refused{spec: fmt.Sprintf(d.spec, strings.Repeat("1s", 17)), field: d.field, says: "Too long: may not be more than 32 bytes", code: "-"})
	}
	return all
}

// rulesOnlyRefusals are what a policy with rulesOnly must not set: every field except nodeSelector, priority and rules.
func rulesOnlyRefusals() (all []refused) {
	for _, c := range []struct{ field, specs string }{
		{"mode", "Observe"},
		{"paused", "true"},
		{"rollout", `{maxUnavailable: 2} {maxUnavailable: "1%"} {maxUnavailableTotal: 1} {maxFailed: 1} {order: [Name]} {order: []} {maxTurnsPerDay: 5} {settle: 0s} ` +
			`{backoff: 2m} {backoffMax: 2h} {expectedDuration: 16m} {windows: [{start: "02:00", duration: 4h, timeZone: UTC}]} {blackouts: [{start: "2026-12-20", end: "2027-01-03", timeZone: UTC}]} {onClose: Cancel} {gates: [{name: a, query: up}]} {after: [{policy: a, for: 0s}]}`},
		{"hooks", `{beforeDrain: [{name: a, timeout: 30m, onTimeout: Abort}]} {beforeReboot: [{name: a, timeout: 30m, onTimeout: Abort}]} ` +
			`{beforeUncordon: [{name: a, timeout: 30m, onTimeout: Wait}]} {waitForVolumeDetach: true}`},
		{"drain", `{timeout: 2h} {onTimeout: Force} {skip: [{namespace: a}]} {block: [{namespace: a}]} {unmanaged: Block} {emptyDir: Skip} {blockTimeout: 1h} ` +
			`{excludeFromLoadBalancers: true} {loadBalancerDelay: 0s} {disableScaleDown: true} {excludeFromRemediation: true}`},
		{"timeouts", `{seen: 1m} {hostHooks: 1m} {rebooting: 1m} {applying: 1m} {uncordoning: 1m}`},
	} {
		for spec := range strings.SplitSeq(strings.ReplaceAll(c.specs, "} {", "}\n{"), "\n") {
			all = append(all, refused{spec: "{rulesOnly: true, " + c.field + ": " + spec + "}", field: "spec." + c.field,
				says: "a policy with rulesOnly adds rules and decides nothing else; leave " + c.field + " out, or leave rulesOnly out"})
		}
	}
	return all
}

// TestRefused: each counter-example is refused for the one field that is wrong in it, with words that say what to write
// instead, by the API server and by policy.Compile.
func TestRefused(t *testing.T) {
	for _, c := range refusals {
		name := c.spec
		if len(name) > 100 {
			name = name[:100]
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			obj := policyObject(t, "a-policy", c.spec)
			if c.name != "" {
				obj.SetName(c.name)
			}
			_, err := try(t, obj)
			if err == nil {
				t.Fatal("the API server takes it")
			}
			said := causes(t, err)
			for _, cause := range said {
				if fieldOf(cause) != c.field {
					t.Errorf("another field is wrong: %s", cause)
				}
			}
			if !slices.ContainsFunc(said, func(cause string) bool { return strings.Contains(cause, c.says) }) {
				t.Errorf("it says %q, expected %q of %s", said, c.says, c.field)
			}
			problems := compile(t, obj)
			switch {
			case c.alone != "":
				if len(problems) > 0 {
					t.Errorf("policy.Compile refuses it too: %q; the table says it does not: %s", problems, c.alone)
				}
			case c.code == "-":
				// Some of them it refuses, for their bounds.
			default:
				want := c.code
				if want == "" {
					want = c.field
				}
				if len(problems) == 0 {
					t.Error("policy.Compile takes it")
				}
				for _, p := range problems {
					if fieldOf(p) != want {
						t.Errorf("policy.Compile: %s, expected only %s", p, want)
					}
				}
			}
		})
	}
}
