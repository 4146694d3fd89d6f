package identity

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
)

// accepted are good policies, one for each thing that a policy can say.
var accepted = map[string]string{
	"nothing":            `{}`,
	"a selector":         `nodeSelector: {matchLabels: {pool: db}, matchExpressions: [{key: a, operator: In, values: [b]}, {key: c, operator: NotIn, values: [d]}, {key: e, operator: Exists}, {key: f, operator: DoesNotExist, values: []}]}`,
	"the bounds":         `{priority: 1000, rollout: {maxUnavailable: 10000, maxUnavailableTotal: 1, maxFailed: 10000, maxTurnsPerDay: 48, settle: 24h, backoff: 24h, backoffMax: 24h, expectedDuration: 24h}, drain: {timeout: 168h}, timeouts: {seen: 604800s, uncordoning: 10080m}}`,
	"lower bounds":       `{priority: -999, rollout: {maxUnavailable: "1%", maxUnavailableTotal: "100%", settle: 0s, backoff: 1s, backoffMax: 1s, expectedDuration: 1m}, drain: {timeout: 1s}, timeouts: {seen: 1000ms, rebooting: 1.5s}}`,
	"observe":            `{mode: Observe, paused: true}`,
	"rules":              `rules: [{source: OSUpdate, holdBack: "4081.?.*", drain: Never, actions: [{type: Reboot}]}, {source: Sentinel, actions: [{type: Drain}, {type: Reboot}]}, {source: Sentinel, path: /run/reboot-required, actions: [{type: None}]}, {source: Request, actions: [{type: Reboot}]}]`,
	"files":              `rules: [{source: File, path: /, actions: [{type: Reboot}]}, {source: File, path: /etc/containers/registries.conf.d, actions: [{type: DaemonReload}, {type: Reload, unit: crio.service}]}, {source: File, path: "/etc/..data/.x/a b", actions: [{type: None}]}]`,
	"units":              `rules: [{source: Unit, unit: containerd.service, actions: [{type: Restart, unit: containerd.service}]}, {source: Unit, unit: getty@tty1.service, actions: [{type: None}]}, {source: Unit, unit: 'dev-disk-by\x2dlabel.device', actions: [{type: None}]}, {source: Unit, unit: "-.mount", actions: [{type: None}]}]`,
	"units to apply":     `rules: [{source: Request, actions: [{type: Reload, unit: dbus.service}, {type: Restart, unit: systemd-logind.service}, {type: Restart, unit: multi-user.target}, {type: Restart, unit: my-reboot.target}, {type: Restart, unit: initrd.service}]}, {source: Unit, unit: reboot.target, actions: [{type: Reboot}]}]`,
	"only rules":         `{rulesOnly: true, priority: 1000, nodeSelector: {matchLabels: {pool: web}}, rules: [{source: OSUpdate, holdBack: "4081.*", drain: Never, actions: [{type: Reboot}]}]}`,
	"the defaults":       `{rulesOnly: true, mode: Act, paused: false, rollout: {maxUnavailable: 1, settle: 60s, backoffMax: 1h0m0s, windows: [], gates: []}, hooks: {beforeDrain: []}, drain: {timeout: 60m, skip: [], excludeFromLoadBalancers: false, loadBalancerDelay: 0.5m, disableScaleDown: false, excludeFromRemediation: false}, timeouts: {seen: 120s}}`,
	"as many rules":      `rules: ` + many(100, `{source: File, path: /f#, actions: [{type: Reboot}]}`),
	"windows":            `rollout: {onClose: Cancel, windows: [{start: "00:00", duration: 24h, timeZone: UTC}, {days: [Mon, Sun], start: "23:59", duration: 1h30m, timeZone: America/Argentina/Buenos_Aires}, {start: "09:00", duration: 15m, timeZone: Etc/GMT+5}]}`,
	"gates":              `rollout: {gates: [{name: alerts, query: 'ALERTS{severity="critical"}'}, {name: no-2, query: "vector(1) > 2"}]}`,
	"an order":           `rollout: {order: [Name]}`,
	"hooks":              `hooks: {waitForVolumeDetach: true, ` + strings.Join([]string{hook("beforeDrain", "lb.out_1", "1s", "Continue"), hook("beforeReboot", "snapshot", "168h", "Abort"), hook("beforeUncordon", "LB-in", "5m", "Continue")}, ", ") + `}`,
	"the drain":          `drain: {timeout: 30m, onTimeout: Force, skip: [{namespace: monitoring, selector: {matchLabels: {app: agent}}}], block: [{selector: {matchExpressions: [{key: stateful, operator: Exists}]}}]}`,
	"exclusions":         `drain: {excludeFromLoadBalancers: true, loadBalancerDelay: 9m59s, timeout: 10m, disableScaleDown: true, excludeFromRemediation: true}`,
	"no delay":           `drain: {excludeFromLoadBalancers: true, loadBalancerDelay: 0s, timeout: 1s}`,
	"a short drain":      `drain: {timeout: 1s, disableScaleDown: true}`,
	"short timeouts":     `timeouts: {seen: 1s, hostHooks: 1s, rebooting: 1s, applying: 1s, uncordoning: 1s}`,
	"a limit of Block":   `drain: {block: [{namespace: jobs}], blockTimeout: 1m, onBlockTimeout: Evict}`,
	"a limit that holds": `drain: {block: [{namespace: jobs}], blockTimeout: 168h}`,
	"blackouts": `rollout: {blackouts: [{start: "2026-12-20", end: "2027-01-03", timeZone: Europe/Berlin, reason: "Über die Feiertage"}, {start: "2028-02-29", end: "2028-02-29", timeZone: UTC}, ` +
		`{start: "2026-12-24T18:00", end: "2026-12-24T18:01", timeZone: America/Argentina/Buenos_Aires}, {start: "2026-12-24T23:59", end: "2026-12-24", timeZone: Etc/GMT+5}, ` +
		`{start: "2000-01-01", end: "2099-12-31T23:59", timeZone: UTC, reason: ""}]}`,
	"canaries": `rollout: {after: [{policy: canary, for: 24h}, {policy: early.web-1, for: 0s}, {policy: ` + strings.Repeat("c", 253) + `, for: 720h}]}`,
}

// typed reads what the API server keeps as the coordinator does.
func typed(t *testing.T, obj *unstructured.Unstructured) *v1alpha1.DisruptionPolicy {
	t.Helper()
	type spec v1alpha1.DisruptionPolicySpec // whose decoding fills in no defaults
	p := &v1alpha1.DisruptionPolicy{ObjectMeta: metav1.ObjectMeta{Name: obj.GetName(), Generation: obj.GetGeneration()}}
	must(t, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(obj.Object["spec"].(map[string]any), (*spec)(&p.Spec), true))
	return p
}

// TestAccepted: neither the API server nor policy.Compile has anything against a good policy.
func TestAccepted(t *testing.T) {
	for name, spec := range accepted {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kept, err := try(t, policyObject(t, "a-policy", spec))
			must(t, err)
			if problems := policy.Compile(typed(t, kept), time.LoadLocation).Problems; len(problems) > 0 {
				t.Errorf("policy.Compile: %v", problems)
			}
		})
	}
}

// TestOnlyCompileKnows: the status of a policy reports what the API server does not refuse.
func TestOnlyCompileKnows(t *testing.T) {
	for spec, want := range map[string]string{
		// Which zones there are, the time zone database of the coordinator says.
		window("02:00", "4h", "Europe/Atlantis"):                    "spec.rollout.windows[0].timeZone",
		blackout("2026-12-20", "2027-01-03", "Europe/Atlantis", ""): "spec.rollout.blackouts[0].timeZone",
		// No rule covers the selectors of pods.
		`drain: {skip: [{selector: {matchExpressions: [{key: app, operator: In}]}}]}`:               "spec.drain.skip[0].selector",
		`drain: {block: [{selector: {matchExpressions: [{key: app, operator: Is, values: [a]}]}}]}`: "spec.drain.block[0].selector",
		// The units that no plan restarts, as instances of templates and in disguise.
		restart("rescue@x.service"):                "spec.rules[0].actions[0].unit",
		restart(`systemd-factory-reset@1.service`): "spec.rules[0].actions[0].unit",
		restart(`systemd\x2dreboot.service`):       "spec.rules[0].actions[0].unit",
	} {
		kept, err := try(t, policyObject(t, "a-policy", spec))
		must(t, err)
		problems := policy.Compile(typed(t, kept), time.LoadLocation).Problems
		if len(problems) != 1 || problems[0].Field != want {
			t.Errorf("%s: %v, expected one of %s", spec, problems, want)
		}
	}
}

// TestDefaults: what the API server writes into a policy that says nothing is what v1alpha1.DefaultPolicySpec says, and stands there.
func TestDefaults(t *testing.T) {
	kept, err := try(t, policyObject(t, "a-policy", `{}`))
	must(t, err)
	if got, want := typed(t, kept).Spec, v1alpha1.DefaultPolicySpec(); !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("%+v\nexpected\n%+v", got, want)
	}
	text, err := json.Marshal(kept.Object["spec"])
	must(t, err)
	const want = `{"drain":{"disableScaleDown":false,"emptyDir":"Evict","excludeFromLoadBalancers":false,"excludeFromRemediation":false,"loadBalancerDelay":"30s","onBlockTimeout":"Hold","onTimeout":"Abort","timeout":"1h","unmanaged":"Evict"},"hooks":{"waitForVolumeDetach":false},"mode":"Act","nodeSelector":{},"paused":false,"priority":0,` +
		`"rollout":{"backoff":"1m","backoffMax":"1h","expectedDuration":"15m","maxFailed":0,"maxTurnsPerDay":6,"maxUnavailable":1,"onClose":"Finish","order":["LastTurn","Zone","OldestBoot"],"settle":"1m"},"rulesOnly":false,` +
		`"timeouts":{"applying":"15m","hostHooks":"30m","rebooting":"30m","seen":"2m","uncordoning":"5m"}}`
	if string(text) != want {
		t.Errorf("%s\nexpected\n%s", text, want)
	}
	// And into what stands in lists.
	kept, err = try(t, policyObject(t, "a-policy", `{hooks: {beforeDrain: [{name: a}], beforeReboot: [{name: b}], beforeUncordon: [{name: c}]}, drain: {skip: [{}]}}`))
	must(t, err)
	text, err = json.Marshal(map[string]any{"hooks": kept.Object["spec"].(map[string]any)["hooks"], "drain": kept.Object["spec"].(map[string]any)["drain"]})
	must(t, err)
	if want := `{"drain":{"disableScaleDown":false,"emptyDir":"Evict","excludeFromLoadBalancers":false,"excludeFromRemediation":false,"loadBalancerDelay":"30s","onBlockTimeout":"Hold","onTimeout":"Abort","skip":[{"selector":{}}],"timeout":"1h","unmanaged":"Evict"},"hooks":{"beforeDrain":[{"name":"a","onTimeout":"Abort","timeout":"30m"}],` +
		`"beforeReboot":[{"name":"b","onTimeout":"Abort","timeout":"30m"}],"beforeUncordon":[{"name":"c","onTimeout":"Wait","timeout":"30m"}],"waitForVolumeDetach":false}}`; string(text) != want {
		t.Errorf("%s\nexpected\n%s", text, want)
	}
}

// TestDefaultPolicy: the one that the manifests bring selects every node, reboots it for what every host can report, and gives
// way to every other.
func TestDefaultPolicy(t *testing.T) {
	obj, err := policies.Get(t.Context(), v1alpha1.DefaultPolicyName, metav1.GetOptions{})
	must(t, err)
	p := policy.Compile(typed(t, obj), time.LoadLocation)
	var rules []string
	for _, r := range p.Rules {
		rules = append(rules, fmt.Sprint(policy.Key(&r), " ", r.Actions))
	}
	if want := []string{"OSUpdate [Reboot]", "Sentinel [Reboot]", "Request [Reboot]", "FleetLock [Reboot]"}; !slices.Equal(rules, want) || len(p.Problems) > 0 {
		t.Errorf("rules %v, problems %v", rules, p.Problems)
	}
	if p.Priority != v1alpha1.MinPriority || !p.Selects(nil) || p.MaxUnavailable.String() != "1" || p.Observe || p.Paused {
		t.Errorf("%+v", p)
	}
}

// TestColumns: what `kubectl get disruptionpolicies` tells.
func TestColumns(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), policyTimeout)
	defer cancel()
	_, err := policies.Create(ctx, policyObject(t, "columns", `{priority: 7, mode: Observe, nodeSelector: {matchLabels: {pool: none}}}`), metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, policies.Delete(context.Background(), "columns", metav1.DeleteOptions{})) })
	const status = `{"status":{"observedGeneration":1,"nodes":{"selected":30,"upToDate":20,"wanting":10,"inTurn":2,"unavailable":3,"failed":1,"allowed":4},"conditions":[` +
		`{"type":"Valid","status":"True","reason":"Valid","message":"","lastTransitionTime":"2026-01-02T03:04:05Z"},` +
		`{"type":"Progressing","status":"False","reason":"Halted","message":"","lastTransitionTime":"2026-01-02T03:04:05Z"},` +
		`{"type":"Halted","status":"True","reason":"Failed","message":"","lastTransitionTime":"2026-01-02T03:04:05Z"}]}}`
	_, err = policies.Patch(ctx, "columns", types.MergePatchType, []byte(status), metav1.PatchOptions{}, "status")
	must(t, err)
	config := cp.AdminConfig()
	config.GroupVersion, config.APIPath = &v1alpha1.GroupVersion, "/apis"
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	client, err := rest.RESTClientFor(config)
	must(t, err)
	text, err := client.Get().Resource("disruptionpolicies").Name("columns").SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(ctx).Raw()
	must(t, err)
	var table metav1.Table
	must(t, json.Unmarshal(text, &table))
	var shown, wide []string
	for i, c := range table.ColumnDefinitions {
		cell := fmt.Sprintf("%s=%v", c.Name, table.Rows[0].Cells[i])
		switch {
		case c.Name == "Age": // it passes
			cell = c.Name
			fallthrough
		case c.Priority == 0:
			shown = append(shown, cell)
		default:
			wide = append(wide, cell)
		}
	}
	if got, want := strings.Join(shown, " "), "Name=columns Priority=7 Mode=Observe Selected=30 UpToDate=20 InTurn=2 Allowed=4 Valid=True Progressing=Halted Age"; got != want {
		t.Errorf("kubectl get: %s\nexpected: %s", got, want)
	}
	if got, want := strings.Join(wide, " "), "Failed=1 Wanting=10 Unavailable=3 Paused=false RulesOnly=false Halted=True"; got != want {
		t.Errorf("with -o wide also: %s\nexpected: %s", got, want)
	}
}
