package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// keyDoc describes one label or annotation for people. Who writes the key is not here: the
// functions in api/v1alpha1 that name the writer of each key are the only definition.
type keyDoc struct {
	key, means, values string
	examples           []string
	// The rest is for keys that people set. effect says what happens. command and undo are
	// lockkeeper's commands, set and unset those of kubectl. verb is the permission.
	verb, effect, command, undo, set, unset string
}

const (
	annotateNode = "kubectl annotate node $NODE "
	labelNode    = "kubectl label node $NODE "
)

// adminKeys are the intents.
var adminKeys = []keyDoc{
	{
		key: v1alpha1.AnnotationPaused, verb: "pause",
		means:    "Freezes the node where it is.",
		values:   "any text, which is the reason, or [JSON](#the-json-form). `false` and an empty value pause as well.",
		examples: []string{"disk is being replaced", `{"reason":"disk is being replaced","by":"ada","until":"2027-01-31T18:00:00Z"}`},
		effect: "An idle node gets no turn. In a turn, nothing is evicted or rebooted, the timeouts stop, and the node keeps its slot. " +
			"A reboot or apply that the host has committed continues. Nothing is undone.",
		command: `lockkeeper pause NODE --reason "disk is being replaced"`, undo: "lockkeeper resume NODE",
		set: annotateNode + `lockkeeper.dev/paused="disk is being replaced" --overwrite`, unset: annotateNode + "lockkeeper.dev/paused-",
	},
	{
		key: v1alpha1.AnnotationDetached, verb: "detach",
		means:    "Hands the node over to another owner.",
		values:   "any text, which is the reason, or [JSON](#the-json-form), with `force` if needed.",
		examples: []string{"storage team, ticket 4711", `{"reason":"storage team, ticket 4711","by":"ada","force":true}`},
		effect: "A turn is first backed out, or finished if its reboot or apply is committed. Then lockkeeper removes its keys from the Node " +
			"and writes nothing to it. With `force`, it releases the node at once and leaves the cordon to the new owner, " +
			"unless a reboot or apply is committed. A paused node is released when the pause ends, or at once with `force`.",
		command: `lockkeeper detach NODE --reason "storage team, ticket 4711"`, undo: "lockkeeper attach NODE",
		set: annotateNode + `lockkeeper.dev/detached="storage team, ticket 4711" --overwrite`, unset: annotateNode + "lockkeeper.dev/detached-",
	},
	{
		key: v1alpha1.LabelManaged, verb: "manage",
		means:    "Says whether lockkeeper manages the node. Without this label, `managed_by_default` in the [host's file](configuration.md) decides.",
		values:   "`true` or `false`. Any other value counts as `false`.",
		examples: []string{"false", "true"},
		effect: "With `false`, a turn is first backed out, or finished if its reboot or apply is committed. Then lockkeeper removes its keys from " +
			"the Node. With `true`, the node takes its turns. A kubelet's `--node-labels` can set this label when the Node is created.",
		command: "lockkeeper unmanage NODE", undo: "lockkeeper manage NODE",
		set: labelNode + "lockkeeper.dev/managed=false --overwrite", unset: labelNode + "lockkeeper.dev/managed-",
	},
	{
		key: v1alpha1.AnnotationRequest, verb: "request",
		means:    "Requests a reboot.",
		values:   "`reboot`, or JSON with `action`, `reason` and `by`.",
		examples: []string{"reboot", `{"action":"reboot","reason":"memory leak","by":"ada"}`},
		effect: "The request is a change like any other: the node waits for its turn, its budget and its windows. The coordinator removes the " +
			"annotation when the turn that carried it out ends. Until then, removing it withdraws the request, unless the reboot is committed.",
		command: "lockkeeper request reboot NODE",
		set:     annotateNode + "lockkeeper.dev/request=reboot --overwrite", unset: annotateNode + "lockkeeper.dev/request-",
	},
	{
		key: v1alpha1.AnnotationRequestNow, verb: "request-now",
		means:    "Requests a reboot that does not wait for the policy's windows.",
		values:   "the same as for `request`.",
		examples: []string{"reboot", `{"action":"reboot","reason":"security fix","by":"ada"}`},
		effect: "It does not wait for the policy's blackouts, gates and settle time either. It does wait for the budget, and for everything that stops " +
			"a request: the emergency stop, a pause, a veto of the host, `maxFailed`, and the rule for the control plane. The record of the turn has `now: true`.",
		command: "lockkeeper request reboot --now NODE",
		set:     annotateNode + "lockkeeper.dev/request-now=reboot --overwrite", unset: annotateNode + "lockkeeper.dev/request-now-",
	},
	{
		key: v1alpha1.AnnotationRetry, verb: "retry",
		means:    "Clears one turn, so that it no longer holds the node.",
		values:   "the ID of that turn, from the annotation `last` or, in a turn, `turn`.",
		examples: []string{"t-4rq8w2"},
		effect: "A turn that failed no longer counts against `maxFailed`. A node whose turn was backed out no longer waits for its next turn, and " +
			"`maxTurnsPerDay` does not hold the node once. The annotation can stay: it is for one turn only.",
		command: "lockkeeper retry NODE",
		set: "TURN=$(kubectl get node $NODE -o jsonpath='{.metadata.annotations.lockkeeper\\.dev/last}' |\n" +
			"    sed 's/.*\"turn\":\"\\([^\"]*\\)\".*/\\1/')\n" + annotateNode + `lockkeeper.dev/retry="$TURN" --overwrite`,
		unset: annotateNode + "lockkeeper.dev/retry-",
	},
}

// hookKey is the annotation of each hook.
var hookKey = keyDoc{
	key: v1alpha1.HookAnnotation("NAME"), verb: "confirm",
	means:    "Confirms that the hook NAME has done its work in the present stage.",
	values:   "the ID of the turn, which is in the annotation `turn`.",
	examples: []string{"t-4rq8w2"},
	effect: "The turn continues when all hooks of the stage have confirmed. The coordinator removes the annotation when the turn enters the " +
		"stage and when it leaves it. [hooks.md](hooks.md) explains how to write a hook.",
	command: "lockkeeper confirm NODE backup",
	set: annotateNode + "hook.lockkeeper.dev/backup=\\\n" +
		`"$(kubectl get node $NODE -o jsonpath='{.metadata.annotations.lockkeeper\.dev/turn}')" --overwrite`,
	unset: annotateNode + "hook.lockkeeper.dev/backup-",
}

// isJSON are the values of keys whose example takes several lines.
const isJSON = "JSON"

// indented returns JSON with a line for each member. The examples are valid JSON.
func indented(text string) string {
	var b bytes.Buffer
	if err := json.Indent(&b, []byte(text), "", "  "); err != nil {
		panic(err)
	}
	return b.String()
}

func minutes(n int) metav1.Duration { return metav1.Duration{Duration: time.Duration(n) * time.Minute} }

// exampleTime is the time in the examples.
var exampleTime = time.Date(2027, 1, 31, 2, 0, 0, 0, time.UTC)

// ownKeys are what lockkeeper writes.
var ownKeys = []keyDoc{
	{key: v1alpha1.LabelState, means: "where the node is in its turn; absent if lockkeeper does not manage the node",
		values: "a [state](node-states.md)", examples: []string{"draining"}},
	{key: v1alpha1.LabelHeld, means: "why a node that wants something, or is in a turn, does not move; absent if nothing holds it. On a node that " +
		"was taken out: `Detached` or `Unmanaged`", values: "a [reason](reasons.md)", examples: []string{"Window"}},
	{key: v1alpha1.LabelWants, means: "the strongest action that the host's changes require", values: "`nothing`, `apply`, `drain`, `reboot`", examples: []string{"reboot"}},
	{key: v1alpha1.LabelOS, means: "the host's OS, for information", values: "`ID` of os-release", examples: []string{"flatcar"}},
	{key: v1alpha1.LabelOSVersion, means: "its version, for information", values: "`OSTREE_VERSION` of os-release or, without one, `VERSION_ID`", examples: []string{"4230.1.0"}},
	{key: v1alpha1.LabelGroup, means: "the update group, for information", values: "`GROUP` of update.conf", examples: []string{"stable"}},
	{key: v1alpha1.AnnotationHost, means: "what the host reports about itself: boot ID, changes, plan, veto", values: isJSON, examples: []string{
		v1alpha1.FormatRecord(v1alpha1.Host{Protocol: v1alpha1.Protocol, Version: "v1.0.0", NodeUID: "6f1c", BootID: "b7e2", BootTime: exampleTime, Started: exampleTime,
			Managed: true, Drains: true, Changes: []v1alpha1.Change{{Source: v1alpha1.SourceOSUpdate, Version: "4230.1.0"}}, PendingSince: exampleTime})}},
	{key: v1alpha1.AnnotationAck, means: "the host's last report in its turn", values: "`TURN/BOOT-ID/STATE/REPORT`", examples: []string{"t-4rq8w2/b7e2/draining/done"}},
	{key: v1alpha1.AnnotationCordon, means: "the mark: what the turn has set on this Node. lockkeeper undoes nothing else, and never a cordon that it does not name", values: "the turn's ID, the time by the host's clock, and what is set: `Cordon`, `LoadBalancers`, `ScaleDown`, `Remediation`", examples: []string{"t-4rq8w2/2026-01-01T12:00:00Z/Cordon,LoadBalancers"}},
	{key: v1alpha1.AnnotationTurn, means: "the present turn", values: "the turn's ID", examples: []string{"t-4rq8w2"}},
	{key: v1alpha1.AnnotationGrant, means: "the record of the present turn: who granted it, for what, under which policy", values: isJSON, examples: []string{
		v1alpha1.FormatRecord(v1alpha1.Grant{Turn: "t-4rq8w2", Epoch: "node-1_k2jd8f", NodeUID: "6f1c", BootID: "b7e2", Wants: v1alpha1.WantsReboot, Drains: true,
			Policy: v1alpha1.DefaultPolicyName, Generation: 1, StartedAt: exampleTime, StageAt: exampleTime,
			Terms: v1alpha1.Terms{Seen: minutes(2), Draining: minutes(60), DrainTimeout: v1alpha1.OnTimeoutAbort, Rebooting: minutes(30), Applying: minutes(15),
				HostHooks: minutes(30), Uncordoning: minutes(5)}})}},
	{key: v1alpha1.AnnotationLast, means: "how the last turn ended, and when the turns of the last 24 hours began", values: isJSON, examples: []string{
		v1alpha1.FormatRecord(v1alpha1.Last{Turn: "t-4rq8w2", Result: v1alpha1.ResultDone, End: exampleTime, Turns: []time.Time{exampleTime}})}},
	{key: v1alpha1.AnnotationRuns, means: "since when the node has run its OS version in its present boot; only where another policy waits for that (`rollout.after`)", values: isJSON, examples: []string{
		v1alpha1.FormatRecord(v1alpha1.Runs{OSVersion: "4230.1.0", BootID: "b7e2", Since: exampleTime})}},
	{key: v1alpha1.AnnotationExpired, means: "when the coordinator last removed a pause or a detach whose `until` had passed", values: "a time in RFC 3339",
		examples: []string{"2027-01-31T18:00:00.1Z"}},
}

// stopKey is the emergency stop, on the Lease.
var stopKey = keyDoc{
	key: v1alpha1.AnnotationStop, means: "The emergency stop of the whole cluster.",
	values:   "any text, which is the reason. An empty value stops as well.",
	examples: []string{"power failure in row 3"},
	effect:   "No turn begins or advances, no host commits a reboot, and hosts that drain stop evicting within seconds. What is committed continues.",
	command:  `lockkeeper pause --cluster --reason "power failure in row 3"`, undo: "lockkeeper resume --cluster",
	set: `kubectl -n lockkeeper annotate lease lockkeeper lockkeeper.dev/paused="power failure in row 3" \
    --overwrite`,
	unset: "kubectl -n lockkeeper annotate lease lockkeeper lockkeeper.dev/paused-",
}

// labels returns the parts of docs/labels-and-annotations.md.
func labels() map[string]string {
	var intents, hook, records, stop strings.Builder
	for i := range adminKeys {
		adminKeys[i].section(&intents)
	}
	hookKey.section(&hook)
	stopKey.section(&stop)
	var rows [][]string
	for _, k := range ownKeys {
		example := "below"
		if k.values != isJSON {
			example = codes(k.examples[0])
		} else {
			fmt.Fprintf(&records, "\n`%s`:\n\n```json\n%s\n```\n", k.key, indented(k.examples[0]))
		}
		rows = append(rows, []string{codes(k.key), k.kind(), k.writer(), k.means, k.values, example})
	}
	return map[string]string{
		"intents": intents.String(), "hook": hook.String(), "records": records.String(), "stop": stop.String(),
		"keys": table([]string{"key", "kind", "written by", "means", "values", "example"}, rows),
		"conditions": table([]string{"object", "conditions", "page"}, [][]string{
			{"`DisruptionPolicy`", spaced(v1alpha1.ConditionValid, v1alpha1.ConditionProgressing, v1alpha1.ConditionHalted), "[policy.md](policy.md)"},
			{"`HostUpdate`", spaced(v1alpha1.ConditionPlanned, v1alpha1.ConditionCordoned, v1alpha1.ConditionDrained, v1alpha1.ConditionApplied,
				v1alpha1.ConditionRebooted, v1alpha1.ConditionUncordoned, v1alpha1.ConditionComplete, v1alpha1.ConditionBlocked, v1alpha1.ConditionFailed),
				"[hostupdate.md](hostupdate.md)"},
			{"`Node`, only with `lifecycle_conditions = true` in the host's file", "Kubernetes' own", "[hostupdate.md](hostupdate.md#the-nodes-lifecycle-conditions)"},
		}),
	}
}

// spaced lists values as Markdown code, without commas.
func spaced(values ...string) string { return "`" + strings.Join(values, "` `") + "`" }

// section writes what people need to know about a key that they set.
func (k *keyDoc) section(b *strings.Builder) {
	title := "`" + k.key + "`"
	if k.key == stopKey.key && k.verb == "" {
		title += " on the Lease"
	}
	fmt.Fprintf(b, "### %s\n\n", title)
	wrap(b, "", 100, k.means+" "+k.effect)
	b.WriteString("\n")
	item := func(text string) {
		var lines strings.Builder
		wrap(&lines, "  ", 100, text)
		b.WriteString("-" + lines.String()[1:])
	}
	switch {
	case k.verb == "":
		item("An annotation on the Lease.")
	case k.kind() == "label":
		item("A label. Verb: `" + k.verb + "`.")
	default:
		item("An annotation. Verb: `" + k.verb + "`.")
	}
	item("Values: " + k.values)
	for _, e := range k.examples {
		item("Example: `" + e + "`")
	}
	fmt.Fprintf(b, "- Command: `%s`\n", k.command)
	if k.undo != "" {
		fmt.Fprintf(b, "- Undo: `%s`\n", k.undo)
	}
	fmt.Fprintf(b, "\n```sh\n%s\n```\n\nTo remove it:\n\n```sh\n%s\n```\n\n", k.set, k.unset)
}

// kind returns whether the key is a label or an annotation.
func (k *keyDoc) kind() string {
	for _, keys := range []func() (labels, annotations []string){v1alpha1.HostKeys, v1alpha1.CoordinatorKeys, v1alpha1.AdminKeys} {
		if labels, _ := keys(); slices.Contains(labels, k.key) {
			return "label"
		}
	}
	return "annotation"
}

// writer returns who writes a key that people do not set.
func (k *keyDoc) writer() string {
	if labels, annotations := v1alpha1.HostKeys(); slices.Contains(append(labels, annotations...), k.key) {
		return "host"
	}
	return "coordinator"
}
