package report

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/yaml"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/forecast"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// policied puts policies in place of the built-in one, written as YAML specs.
func (w *world) policied(specs map[string]string) *world {
	w.t.Helper()
	w.more = nil
	for name, spec := range specs {
		obj := &v1alpha1.DisruptionPolicy{Spec: v1alpha1.DefaultPolicySpec()}
		obj.Name = name
		if err := yaml.Unmarshal([]byte(spec), &obj.Spec); err != nil {
			w.t.Fatal(err)
		}
		w.more = append(w.more, policy.Compile(obj, time.LoadLocation))
	}
	w.p, w.more = w.more[0], w.more[1:]
	return w
}

// foreseen is what a plan says of nodes ("" is all) if changes come to them.
func (w *world) foreseen(node string, pods forecast.Pods, asked ...string) forecast.Forecast {
	w.t.Helper()
	in := Input{Lease: Lease{Namespace: "lockkeeper", Name: "lockkeeper"}}
	in.Now, in.Policies = now, policy.NewSet(append(w.more, w.p)...)
	for _, n := range w.nodes {
		in.Nodes = append(in.Nodes, turn.FromNode(n))
	}
	if w.lease != nil {
		in.Lease.Read(w.lease)
	}
	q := forecast.Input{Snapshot: in.Present()}
	if c := in.Coordinator(); !c.Live {
		q.NoLeader = "there is no coordinator"
	}
	for _, n := range w.nodes {
		if node == "" || n.Name == node {
			q.Names = append(q.Names, n.Name)
		}
	}
	for _, text := range asked {
		change, err := forecast.ParseChange(text)
		if err != nil {
			w.t.Fatal(err)
		}
		q.Asked = append(q.Asked, change)
	}
	return forecast.Ask(q).Answer(pods)
}

// webAndDefault are the policies of most tests: web, with a rule for containerd's folder,
// and that of the manifests, cut short.
var webAndDefault = map[string]string{
	"web": `
priority: 10
nodeSelector: {matchLabels: {pool: web}}
rules:
- {source: File, path: /etc/containerd, actions: [{type: Restart, unit: containerd.service}]}
- {source: OSUpdate, holdBack: 4081.*, actions: [{type: Reboot}]}
- {source: File, path: /etc/motd, actions: [{type: None}]}
rollout:
  maxUnavailable: 50%
  windows: [{start: "22:00", duration: 4h, timeZone: UTC}]
  onClose: Cancel
  gates: [{name: alerts, query: ALERTS}]
hooks:
  beforeDrain: [{name: move-leader, timeout: 20m, onTimeout: Abort}]
  waitForVolumeDetach: true
drain:
  timeout: 2h
  onTimeout: Force
  skip: [{selector: {matchLabels: {app: cache}}}]
  block: [{namespace: db, selector: {matchLabels: {role: leader}}}]
`,
	"lockkeeper-default": `
priority: -1000
rules:
- {source: OSUpdate, actions: [{type: Reboot}]}
- {source: Sentinel, actions: [{type: Reboot}]}
- {source: Request, actions: [{type: Reboot}]}
- {source: File, path: /etc/containerd, actions: [{type: Reboot}]}
- {source: File, path: /etc, actions: [{type: DaemonReload}, {type: Reload, unit: dbus.service}]}
`,
}

func pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	namespace, name, _ := strings.Cut(name, "/")
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{}}}
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	for _, c := range change {
		c(p)
	}
	return p
}

func labelled(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels[key] = value }
}

func ownedBy(kind string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Controller: new(true)}}
	}
}

func notReady(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }

// budgetFor is a budget that selects app=APP in its namespace and allows so many
// disruptions, of three healthy pods.
func budgetFor(name, app string, allowed int32) policyv1.PodDisruptionBudget {
	namespace, name, _ := strings.Cut(name, "/")
	b := policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	b.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	b.Spec.MinAvailable = new(intstr.FromInt32(3 - allowed))
	b.Status = policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed, CurrentHealthy: 3, DesiredHealthy: 3 - allowed, ExpectedPods: 3}
	return b
}

// shop are the pods of node n1, of every kind.
func shop() forecast.Pods {
	return forecast.Pods{
		OnNode: map[string][]*corev1.Pod{"n1": {
			pod("shop/web-1", labelled("app", "web"), ownedBy("ReplicaSet")),
			pod("shop/web-2", labelled("app", "web"), ownedBy("ReplicaSet")),
			pod("shop/cart-1", labelled("app", "cart")),
			pod("shop/pay-1", labelled("app", "pay")),
			pod("shop/sick-1", labelled("app", "pay"), notReady),
			pod("shop/cache-1", labelled("app", "cache")),
			pod("shop/job-1", labelled("app", "pay"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
			pod("db/pg-0", labelled("role", "leader")),
			pod("db/pg-1", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }),
			pod("kube-system/proxy", ownedBy("DaemonSet")),
			pod("kube-system/etcd", func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }),
		}},
		Budgets: []policyv1.PodDisruptionBudget{
			budgetFor("shop/web", "web", 1), budgetFor("shop/pay", "pay", 0), budgetFor("shop/cart", "cart", 1), budgetFor("shop/cart-too", "cart", 1),
			budgetFor("elsewhere/pay", "pay", 0),
		},
	}
}

func web(n *corev1.Node) { n.Labels["pool"] = "web" }

func TestPlanTexts(t *testing.T) {
	for _, tc := range []struct {
		name  string
		exit  int
		world func(*world) forecast.Forecast
	}{
		{"plan-file.txt", ExitHeld, func(w *world) forecast.Forecast {
			w.policied(webAndDefault).add("n1", web)
			w.add("n2")
			return w.foreseen("n1", forecast.Pods{}, "file:/etc/containerd/config.toml", "file:/etc/motd")
		}},
		{"plan-blackout.txt", ExitHeld, func(w *world) forecast.Forecast {
			const more = "rollout: {blackouts: [{start: '2026-11-20T18:00', end: '2026-11-22', timeZone: Europe/Berlin, reason: a launch}]"
			w.policied(map[string]string{
				"a": "{nodeSelector: {matchLabels: {pool: web}}, " + more + "}}",
				"b": "{nodeSelector: {matchLabels: {pool: db}}, " + more + ", onClose: Cancel, windows: [{start: '22:00', duration: 4h, timeZone: UTC}]}}",
				"c": "{rollout: {blackouts: [{start: '2026-11-22', end: '2026-11-22', timeZone: UTC}]}}",
			}).add("n1", web)
			w.add("n2", func(n *corev1.Node) { n.Labels["pool"] = "db" })
			w.add("n3")
			return w.foreseen("", forecast.Pods{}, "sentinel:/run/reboot-required")
		}},
		{"plan-canary.txt", ExitHeld, func(w *world) forecast.Forecast {
			w.policied(map[string]string{
				"canary": "{nodeSelector: {matchLabels: {pool: canary}}}",
				"web":    "{nodeSelector: {matchLabels: {pool: web}}, rollout: {after: [{policy: canary, for: 24h}]}}",
				"db":     "{nodeSelector: {matchLabels: {pool: db}}, rollout: {after: [{policy: old, for: 24h}]}}",
				"old":    "{nodeSelector: {matchLabels: {pool: old}}}",
			}).add("n1", web)
			w.add("n2", func(n *corev1.Node) { n.Labels["pool"] = "canary" })
			w.add("n3", func(n *corev1.Node) { n.Labels["pool"] = "db" })
			w.add("n4", func(n *corev1.Node) { n.Labels["pool"] = "old"; n.Spec.Unschedulable = true })
			for _, n := range w.nodes {
				setHost(n, func(h *v1alpha1.Host) { h.OSVersion = "4230.1.0" })
			}
			f := w.foreseen("", forecast.Pods{}, "os:4230.2.0")
			f.Groups = slices.DeleteFunc(f.Groups, func(g forecast.Group) bool { return g.Policy == "old" || g.Policy == "canary" })
			return f
		}},
		{"plan-block.txt", ExitHeld, func(w *world) forecast.Forecast {
			pools := map[string]string{
				"forever": "", "soon": "blockTimeout: 4h, onBlockTimeout: Evict", "hold": "blockTimeout: 4h", "over": "blockTimeout: 1h, onBlockTimeout: Evict", "fresh": "blockTimeout: 4h, onBlockTimeout: Evict",
			}
			specs, pods := map[string]string{}, forecast.Pods{OnNode: map[string][]*corev1.Pod{}}
			for name, more := range pools {
				specs[name] = "{nodeSelector: {matchLabels: {pool: " + name + "}}, drain: {unmanaged: Block, " + more + "}}"
				pods.OnNode[name] = []*corev1.Pod{pod("batch/" + name)}
			}
			w.policied(specs)
			for _, name := range slices.Sorted(maps.Keys(pools)) {
				w.add(name, func(n *corev1.Node) { n.Labels["pool"] = name }, func(n *corev1.Node) {
					setHost(n, func(h *v1alpha1.Host) {
						if h.BlockOff = name == "over"; name != "fresh" {
							h.BlockedSince = now.Add(-2 * time.Hour)
						}
					})
				})
			}
			return w.foreseen("", pods, "os:4230.2.0")
		}},
		{"plan-rules-only.txt", ExitHeld, func(w *world) forecast.Forecast {
			policies := maps.Clone(webAndDefault)
			policies["mirrors"] = "{priority: -10, rulesOnly: true, rules: [{source: File, path: /etc/containerd/certs.d, actions: [{type: None}]}, {source: OSUpdate, actions: [{type: None}]}]}"
			w.policied(policies).add("n1", web)
			w.add("n2")
			return w.foreseen("n1", forecast.Pods{}, "file:/etc/containerd/certs.d/x", "os:4230.1.0")
		}},
		{"plan-drain.txt", ExitHeld, func(w *world) forecast.Forecast {
			w.policied(webAndDefault).add("n1", web, func(n *corev1.Node) {
				setHost(n, func(h *v1alpha1.Host) { h.HookStages = []v1alpha1.State{v1alpha1.StateBeforeUncordon} })
			})
			w.add("n2")
			return w.foreseen("n1", shop(), "os:4230.1.0")
		}},
		{"plan-nothing.txt", ExitOK, func(w *world) forecast.Forecast {
			w.policied(webAndDefault).add("n1", web)
			w.add("n2", unmanaged)
			w.add("n3", unmanaged, label(v1alpha1.LabelManaged, "false"))
			return w.foreseen("", forecast.Pods{})
		}},
		{"plan-unmatched.txt", ExitOK, func(w *world) forecast.Forecast {
			w.policied(map[string]string{"a": "{}"}).add("n1")
			w.add("n2")
			return w.foreseen("n1", forecast.Pods{}, "file:/opt/x,y", "unit:a.service", "sentinel:/run/reboot-required")
		}},
		{"plan-heldback.txt", ExitHeld, func(w *world) forecast.Forecast {
			w.policied(webAndDefault).add("n1", web)
			w.add("n2", web, wantsReboot, label(v1alpha1.LabelHeld, "GateClosed"))
			w.add("n3", web)
			return w.foreseen("n1", forecast.Pods{}, "os", "request")
		}},
		{"plan-pending.txt", ExitHeld, func(w *world) forecast.Forecast {
			w.t.Helper()
			*w = *rolling(w.t)
			w.p = policy.Default()
			w.add("n6", wantsReboot, label(v1alpha1.LabelHeld, "Budget"))
			return w.foreseen("", shop())
		}},
		{"plan-asked-beside-pending.txt", ExitHeld, func(w *world) forecast.Forecast {
			*w = *rolling(w.t)
			w.policied(map[string]string{"lockkeeper-default": webAndDefault["lockkeeper-default"]})
			return w.foreseen("", forecast.Pods{NoPods: true, Unseen: []string{"pods, so evictions and what blocks them are unknown: no permission"}}, "file:/etc/hosts")
		}},
		{"plan-fleet.txt", ExitOK, func(w *world) forecast.Forecast {
			w.policied(map[string]string{"lockkeeper-default": webAndDefault["lockkeeper-default"] + "rollout: {maxUnavailable: 10}"})
			pods := forecast.Pods{OnNode: map[string][]*corev1.Pod{}, Budgets: []policyv1.PodDisruptionBudget{budgetFor("shop/pay", "pay", 0), budgetFor("shop/web", "web", 1)}}
			for i := range 500 {
				name := fmt.Sprintf("n%03d", i)
				w.add(name)
				for k := range 1 + i%3 {
					pods.OnNode[name] = append(pods.OnNode[name], pod(fmt.Sprintf("shop/web-%d-%d", i, k), labelled("app", "web")))
				}
				pods.OnNode[name] = append(pods.OnNode[name], pod("kube-system/proxy-"+name, ownedBy("DaemonSet")))
				if i%100 == 7 {
					pods.OnNode[name] = append(pods.OnNode[name], pod("shop/pay-"+name, labelled("app", "pay")))
				}
			}
			return w.foreseen("", pods, "sentinel:/run/reboot-required")
		}},
		{"plan-stopped.txt", ExitHeld, func(w *world) forecast.Forecast {
			w.add("n1")
			w.add("n2")
			w.lease.Annotations[v1alpha1.AnnotationStop] = "storage\nis sick"
			return w.foreseen("", forecast.Pods{}, "request")
		}},
		{"plan-no-coordinator.txt", ExitHeld, func(w *world) forecast.Forecast {
			w.add("n1")
			w.lease.Spec.RenewTime = &metav1.MicroTime{Time: at("12:50:00")}
			return w.foreseen("", forecast.Pods{}, "request")
		}},
		{"plan-broken.txt", ExitHeld, func(w *world) forecast.Forecast {
			w.policied(map[string]string{"a": webAndDefault["lockkeeper-default"], "b": "{priority: 2000, rollout: {maxFailed: -1}}"})
			w.add("n1", wantsReboot)
			return w.foreseen("", forecast.Pods{})
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := tc.world(newWorld(t))
			var b strings.Builder
			exit, err := PrintPlan(&b, &f, Form{})
			if err != nil || exit != tc.exit {
				t.Errorf("exit status %d, %v, expected %d", exit, err, tc.exit)
			}
			golden(t, tc.name, b.String())
			if strings.ContainsAny(b.String(), "\x1b\r") {
				t.Error("control characters reach the terminal")
			}
		})
	}

}

// The fields that others read. Adding is fine, renaming is not.
func TestPlanJSON(t *testing.T) {
	w := newWorld(t)
	w.policied(webAndDefault).add("n1", web)
	w.add("n2")
	f := w.foreseen("n1", shop(), "os:4230.1.0")
	var b strings.Builder
	if exit, err := PrintPlan(&b, &f, Form{Output: JSON}); exit != ExitHeld || err != nil {
		t.Errorf("%d, %v", exit, err)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(b.String()), &got); err != nil {
		t.Fatal(err)
	}
	rule := func(policy string, costs ...any) map[string]any {
		return map[string]any{"key": "OSUpdate", "policy": policy, "costs": costs}
	}
	step := func(action string) any {
		return map[string]any{"action": action, "because": []any{"OSUpdate@4230.1.0, by OSUpdate of web"}}
	}
	stage := func(state string, more map[string]any) any {
		maps.Copy(more, map[string]any{"state": state})
		return more
	}
	pods := func(reason string, names ...string) []any {
		var all []any
		for _, name := range names {
			all = append(all, map[string]any{"name": name, "reason": reason})
		}
		return all
	}
	want := map[string]any{
		"time": "2026-11-21T13:04:05Z", "held": true,
		"asked": []any{map[string]any{"source": "OSUpdate", "version": "4230.1.0"}},
		"groups": []any{map[string]any{
			"outcome": "Held", "held": "Window", "why": "policy web: no window is open; the next opens at 22:00:00 UTC", "policy": "web",
			"changes": []any{map[string]any{"source": "OSUpdate", "version": "4230.1.0", "rule": rule("web", "Reboot", "holds back 4081.*"),
				"replaced": []any{rule("lockkeeper-default", "Reboot")}}},
			"wants": "reboot", "drains": true, "steps": []any{step("Drain"), step("Reboot")},
			"stages": []any{
				stage("before-drain", map[string]any{"hooks": []any{map[string]any{"name": "move-leader", "timeout": "20m0s", "onTimeout": "Abort"}}}),
				stage("draining", map[string]any{"limit": "2h0m0s", "onTimeout": "Force"}),
				stage("before-reboot", map[string]any{"volumes": true}),
				stage("rebooting", map[string]any{"limit": "30m0s", "onTimeout": "Abort"}),
				stage("uncordoning", map[string]any{"limit": "5m0s", "onTimeout": "Wait"}),
			},
			"rollout": map[string]any{"allowed": 1.0, "unavailable": 0.0, "opens": "2026-11-21T22:00:00Z", "onClose": "Cancel", "gates": []any{"alerts"}},
			"nodes": []any{map[string]any{
				"name": "n1", "ahead": 0.0, "beginsIn": "8h55m55s",
				"evict": append(pods("Unmanaged", "shop/cart-1", "shop/pay-1", "shop/sick-1"), pods("Managed", "shop/web-1", "shop/web-2")...),
				"wait":  pods("Terminating", "db/pg-1"), "block": pods("BlockedByPolicy", "db/pg-0"), "blockLimit": map[string]any{"then": "Hold"},
				"leave": slices.Concat(pods("MirrorPod", "kube-system/etcd"), pods("DaemonSet", "kube-system/proxy"), pods("SkippedByPolicy", "shop/cache-1"), pods("Finished", "shop/job-1")),
				"blocking": []any{
					map[string]any{"budgets": []any{"shop/cart", "shop/cart-too"}, "why": "the API server evicts no pod with more than one budget", "pods": []any{"shop/cart-1"}},
					map[string]any{"budgets": []any{"shop/pay"}, "why": "allows no disruption now: 3 healthy, 3 needed", "pods": []any{"shop/pay-1"}},
				},
				"slowing": []any{map[string]any{"budgets": []any{"shop/web"}, "why": "allows 1 disruption now: 3 healthy, 2 needed", "pods": []any{"shop/web-1", "shop/web-2"}}},
			}},
		}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%v\nexpected\n%v", got, want)
	}
}
