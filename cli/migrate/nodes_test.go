package migrate

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/config"
	"lockkeeper.dev/lockkeeper/policy"
)

const fluo = "flatcar-linux-update.v1.flatcar-linux.net/"

// node makes a Node. Each key is "a:KEY=VALUE" for an annotation, "l:KEY=VALUE" for a label,
// "t:KEY:EFFECT" for a taint, or "cordon".
func node(name string, keys ...string) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "7", Annotations: map[string]string{}, Labels: map[string]string{"zone": "a"}}}
	for _, k := range keys {
		kind, rest, _ := strings.Cut(k, ":")
		key, value, _ := strings.Cut(rest, "=")
		switch kind {
		case "a":
			n.Annotations[key] = value
		case "l":
			n.Labels[key] = value
		case "t":
			key, effect, _ := strings.Cut(rest, ":")
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffect(effect)})
		case "cordon":
			n.Spec.Unschedulable = true
		}
	}
	return n
}

// TestNodes has the keys and values that FLUO's operator and agent and kured write: sources
// in nodes.go (read, not run).
func TestNodes(t *testing.T) {
	const lock = "weave.works/kured-node-lock"
	info := []string{"l:" + fluo + "id=flatcar", "l:" + fluo + "version=4230.2.1", "l:" + fluo + "group=stable", "l:" + fluo + "reboot-needed=false",
		"a:" + fluo + "reboot-needed=false", "a:" + fluo + "reboot-in-progress=false", "a:" + fluo + "status=UPDATE_STATUS_IDLE",
		"a:" + fluo + "last-checked-time=1764000000", "a:" + fluo + "new-version=0.0.0"}
	allInfo := "remove the annotations " + fluo + "last-checked-time, " + fluo + "new-version, " + fluo + "reboot-in-progress, " + fluo + "reboot-needed, " + fluo + "status; " +
		"remove the labels " + fluo + "group, " + fluo + "id, " + fluo + "reboot-needed, " + fluo + "version"
	kured := func(lockValue string, args ...string) []Workload {
		w := kuredSet(args, nil)
		if lockValue != "" {
			w.Annotations[lock] = lockValue
		}
		return []Workload{w}
	}
	hour := now.Add(-time.Hour).Format(time.RFC3339Nano)
	for _, c := range []struct {
		name    string
		tool    Tool
		nodes   []corev1.Node
		edit    func(*Input)
		ws      []Workload
		active  []string
		changes []string
		left    []string
	}{
		{
			name: "FLUO, idle", tool: FLUO, nodes: []corev1.Node{node("n1", info...), node("n2")},
			changes: []string{"n1: " + allInfo},
		},
		{
			name: "FLUO, paused; paused by lockkeeper already; a value that FLUO does not take as a pause", tool: FLUO,
			nodes: []corev1.Node{
				node("n1", "a:"+fluo+"reboot-paused=true"), node("n2", "a:"+fluo+"reboot-paused=true", "a:lockkeeper.dev/paused=mine"), node("n3", "a:"+fluo+"reboot-paused=yes"),
				node("n4", "a:container-linux-update.v1.coreos.com/reboot-paused=true"),
			},
			changes: []string{"n1: pause it; remove the annotations " + fluo + "reboot-paused", "n2: remove the annotations " + fluo + "reboot-paused",
				"n3: remove the annotations " + fluo + "reboot-paused", "n4: pause it; remove the annotations container-linux-update.v1.coreos.com/reboot-paused"},
		},
		{
			name: "FLUO, cordons: its own, another's, lockkeeper's", tool: FLUO,
			nodes: []corev1.Node{
				node("n1", "cordon", "a:"+fluo+"agent-made-unschedulable=true"), node("n2", "cordon", "a:"+fluo+"agent-made-unschedulable=false"),
				node("n3", "cordon", "a:"+fluo+"agent-made-unschedulable=true", "a:"+v1alpha1.AnnotationCordon+"=x"), node("n4", "a:"+fluo+"agent-made-unschedulable=true"),
			},
			changes: []string{"n1: uncordon it; remove the annotations " + fluo + "agent-made-unschedulable", "n2: remove the annotations " + fluo + "agent-made-unschedulable",
				"n3: remove the annotations " + fluo + "agent-made-unschedulable", "n4: remove the annotations " + fluo + "agent-made-unschedulable"},
			left: []string{"the cordon of n2: FLUO's annotation agent-made-unschedulable=true is missing"},
		},
		{
			name: "FLUO, its cordons on nodes of other owners", tool: FLUO,
			nodes: []corev1.Node{
				node("n1", "cordon", "a:"+fluo+"agent-made-unschedulable=true", "a:"+v1alpha1.AnnotationDetached+"=storage"),
				node("n2", "cordon", "a:"+fluo+"agent-made-unschedulable=true", "t:ToBeDeletedByClusterAutoscaler:NoSchedule"),
			},
			changes: []string{"n1: remove the annotations " + fluo + "agent-made-unschedulable", "n2: remove the annotations " + fluo + "agent-made-unschedulable"},
			left:    []string{"the cordon of n1, n2: FLUO's annotation agent-made-unschedulable=true is missing"},
		},
		{
			name: "FLUO, a turn in each of its steps", tool: FLUO,
			nodes: []corev1.Node{node("n1", "l:"+fluo+"before-reboot=true"), node("n2", "a:"+fluo+"reboot-ok=true"), node("n3", "a:"+fluo+"reboot-in-progress=true"),
				node("n4", "l:"+fluo+"after-reboot=true"), node("n5", "a:"+fluo+"reboot-ok=false", "a:"+fluo+"reboot-needed=true")},
			active: []string{"node n1: a turn is under way (label " + fluo + "before-reboot=true)", "node n2: a turn is under way (annotation " + fluo + "reboot-ok=true)",
				"node n3: a turn is under way (annotation " + fluo + "reboot-in-progress=true)", "node n4: a turn is under way (label " + fluo + "after-reboot=true)"},
			changes: []string{"n1: remove the labels " + fluo + "before-reboot", "n2: remove the annotations " + fluo + "reboot-ok", "n3: remove the annotations " + fluo + "reboot-in-progress",
				"n4: remove the labels " + fluo + "after-reboot", "n5: remove the annotations " + fluo + "reboot-needed, " + fluo + "reboot-ok"},
		},
		{
			name: "FLUO, pods, a Deployment that wants some, a lock that is held, and one that has expired", tool: FLUO,
			ws: fluoWorkloads([]string{"--before-reboot-annotations=example.com/ready"}, nil, nil),
			edit: func(in *Input) {
				in.Workloads[0].Wanted = 1
				in.Pods = []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "reboot-coordinator", Name: "agent-1"}}, {ObjectMeta: metav1.ObjectMeta{Name: "over"}, Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}}
				holder, seconds, renewed, old := "pod-1", int32(90), metav1.NewMicroTime(now.Add(-time.Minute)), metav1.NewMicroTime(now.Add(-time.Hour))
				lease := func(ns string, at *metav1.MicroTime) coordinationv1.Lease {
					return coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: LockName}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: at}}
				}
				in.Leases = []coordinationv1.Lease{lease("reboot-coordinator", &renewed), lease("old", &old)}
				in.ConfigMaps = []corev1.ConfigMap{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: LockName, Annotations: map[string]string{
					"control-plane.alpha.kubernetes.io/leader": `{"holderIdentity":"pod-2","leaseDurationSeconds":90,"acquireTime":"2026-11-23T07:00:00Z","renewTime":"2026-11-23T07:59:30Z","leaderTransitions":0}`,
				}}}}
			},
			nodes: []corev1.Node{node("n1", "a:example.com/ready=true"), node("n2")},
			active: []string{"pod reboot-coordinator/agent-1 exists", "Deployment reboot-coordinator/flatcar-linux-update-operator wants 1 pods",
				"Lease reboot-coordinator/" + LockName + " is held by \"pod-1\" until 2026-11-23T08:00:30Z", "ConfigMap ns/" + LockName + " is held by \"pod-2\" until 2026-11-23T08:01:00Z"},
			left: []string{"kubectl -n reboot-coordinator delete deployment flatcar-linux-update-operator", "kubectl -n reboot-coordinator delete daemonset flatcar-linux-update-agent",
				"kubectl -n old delete lease " + LockName, "kubectl -n ns delete configmap " + LockName,
				`the annotation "example.com/ready" of n1: a flag names it, and others may use it: kubectl annotate node NODE example.com/ready-`},
		},
		{
			name: "kured, its keys, its taint, and what only a flag names", tool: Kured,
			ws: kured("", "--prefer-no-schedule-taint=example.com/reboot", "--pre-reboot-node-labels=maintenance=on", "--post-reboot-node-labels=maintenance=off"),
			nodes: []corev1.Node{node("n1", "a:weave.works/kured-most-recent-reboot-needed=2026-11-01T03:04:05Z", "a:weave.works/kured-reboot-in-progress=2026-11-01T03:04:05Z",
				"t:weave.works/kured-node-reboot:PreferNoSchedule", "t:example.com/reboot:PreferNoSchedule", "t:weave.works/kured-node-reboot:NoSchedule", "l:maintenance=off")},
			changes: []string{"n1: remove the annotations weave.works/kured-most-recent-reboot-needed, weave.works/kured-reboot-in-progress; remove the taints weave.works/kured-node-reboot"},
			left: []string{`the taint "example.com/reboot:PreferNoSchedule" of n1`, "kubectl taint node NODE example.com/reboot:PreferNoSchedule-",
				`the label "maintenance" of n1`, "kubectl label node NODE maintenance-", "kubectl -n kube-system delete daemonset kured"},
		},
		{
			name: "kured, a lock that is held", tool: Kured, ws: kured(`{"nodeID":"n1","metadata":{"unschedulable":false},"created":"` + hour + `","TTL":0}`),
			nodes:  []corev1.Node{node("n1", "cordon")},
			active: []string{`DaemonSet kube-system/kured: "n1" holds the lock since 2026-11-23T07:00:00Z`},
			left:   []string{"the cordon of n1: no record of kured's says"},
		},
		{
			name: "kured, locks that have expired prove whose the cordon is", tool: Kured,
			ws: kured(`{"maxOwners":3,"locks":[{"nodeID":"n1","metadata":{"unschedulable":false},"created":"` + hour + `","TTL":60000000000},` +
				`{"nodeID":"n2","metadata":{"unschedulable":true},"created":"` + hour + `","TTL":60000000000},{"nodeID":"n3","created":"` + hour + `","TTL":60000000000}]}`),
			nodes:   []corev1.Node{node("n1", "cordon"), node("n2", "cordon"), node("n3", "cordon"), node("n4", "cordon", "a:kured.dev/node-unschedulable-before-drain=false")},
			changes: []string{"n1: uncordon it", "n4: uncordon it; remove the annotations kured.dev/node-unschedulable-before-drain"},
			left:    []string{"the cordon of n2, n3: no record of kured's says"},
		},
		{
			name: "kured, an empty list of locks is no lock; a lock under another key; one that cannot be read", tool: Kured,
			ws: []Workload{
				func() Workload { w := kured(`{"maxOwners":2,"locks":[]}`)[0]; return w }(),
				func() Workload {
					w := kuredSet([]string{"--lock-annotation=example.com/lock"}, nil)
					w.Name, w.Annotations["example.com/lock"] = "kured-b", "[]"
					return w
				}(),
			},
			active: []string{"DaemonSet kube-system/kured-b: the lock \"example.com/lock\" is not JSON"},
		},
		{
			name: "kured, one key of each kind", tool: Kured,
			nodes: []corev1.Node{node("n1", "a:weave.works/kured-x=1", "l:kured.dev/y=1"), node("n2", "a:weave.works/kured-x=1", "t:kured.dev/z:PreferNoSchedule"),
				node("n3", "l:kured.dev/y=1", "t:kured.dev/z:PreferNoSchedule"), node("n4", "t:kured.dev/z:NoSchedule"), node("n5", "t:kured.dev/z:PreferNoSchedule")},
			changes: []string{"n1: remove the annotations weave.works/kured-x; remove the labels kured.dev/y", "n2: remove the annotations weave.works/kured-x; remove the taints kured.dev/z",
				"n3: remove the labels kured.dev/y; remove the taints kured.dev/z", "n5: remove the taints kured.dev/z"},
		},
		{
			name: "kured, taints that are not those of its flag", tool: Kured, ws: kured("", "--prefer-no-schedule-taint=example.com/reboot"),
			nodes: []corev1.Node{node("n1", "t:example.com/other:PreferNoSchedule", "t:example.com/reboot:NoSchedule")},
		},
		{
			name: "kured, its locks under the keys of other versions, and on what no longer runs it", tool: Kured,
			ws: []Workload{
				func() Workload {
					w := kuredSet([]string{"--lock-annotation=example.com/lock"}, nil)
					w.Name, w.Annotations = "kured-a", map[string]string{"a.example.com/x": "[]", kuredLock: "[]", kuredDevLock: "[]"}
					return w
				}(),
				func() Workload {
					w := kuredSet(nil, nil)
					w.Name, w.Annotations = "kured-b", map[string]string{"a.example.com/x": "[]", kuredLock: "[]", kuredDevLock: "[]"}
					w.Template.Spec.Containers[0].Command = []string{"/usr/bin/pause"}
					return w
				}(),
			},
			active: []string{`DaemonSet kube-system/kured-a: the lock "kured.dev/kured-node-lock" is not JSON`, `DaemonSet kube-system/kured-a: the lock "weave.works/kured-node-lock" is not JSON`,
				`DaemonSet kube-system/kured-b: the lock "kured.dev/kured-node-lock" is not JSON`, `DaemonSet kube-system/kured-b: the lock "weave.works/kured-node-lock" is not JSON`},
		},
		{
			name: "a program of another name is not kured", tool: Kured,
			ws: []Workload{func() Workload {
				w := kuredSet(nil, nil)
				w.Template.Spec.Containers[0].Command = []string{"/usr/bin/kubelet"}
				w.Wanted = 3
				return w
			}()},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := &Input{Now: now, Zones: time.LoadLocation, Nodes: c.nodes, Workloads: c.ws}
			if c.edit != nil {
				c.edit(in)
			}
			r, err := From(c.tool, in)
			must(t, err)
			if len(r.Active) != len(c.active) {
				t.Errorf("active: %q, expected %q", r.Active, c.active)
			}
			for i, want := range c.active {
				if i < len(r.Active) && !strings.HasPrefix(r.Active[i].Text, want) {
					t.Errorf("active: %q, expected %q", r.Active[i], want)
				}
			}
			var got, left []string
			for i := range r.Changes {
				got = append(got, r.Changes[i].String())
			}
			for _, l := range r.Left {
				left = append(left, l.Text+": "+l.Command)
			}
			if !slices.Equal(got, c.changes) {
				t.Errorf("changes:\n%s\nexpected\n%s", strings.Join(got, "\n"), strings.Join(c.changes, "\n"))
			}
			for _, want := range c.left {
				if !strings.Contains(strings.Join(left, "\n"), want) {
					t.Errorf("%q is not in what is left:\n%s", want, strings.Join(left, "\n"))
				}
			}
			if len(c.left) == 0 && slices.ContainsFunc(left, func(l string) bool { return !strings.Contains(l, "delete daemonset") }) {
				t.Errorf("left: %q", r.Left)
			}
			for _, change := range r.Changes {
				if change.ResourceVersion != "7" {
					t.Errorf("%s would be written without its version", change.Node)
				}
				if change.Paused == "" {
					continue
				}
				if !strings.HasPrefix(change.Paused, "{") {
					t.Errorf("the pause %q is not JSON", change.Paused)
				}
				if i, err := v1alpha1.ParseIntent(change.Paused); err != nil || i.Until != nil || !strings.HasPrefix(i.Reason, "carried over from ") {
					t.Errorf("the pause %q: %+v, %v", change.Paused, i, err)
				}
			}
		})
	}
}

// TestAlwaysAccepted feeds settings that fit and settings that do not, in random combinations.
// Whatever they are, lockkeeper accepts the policies and the host's file, a restriction that
// is not carried on pauses them, and the report stays on its lines.
func TestAlwaysAccepted(t *testing.T) {
	values := []string{"", "0", "1", "-1", "3", "99999", "true", "TRUE", "no", "30m", "1s", "100ms", "1h0.5s", "200h", "-5m", "00:00", "4:05", "23:59:59", "22:00", "5pm", "12",
		"Thu 23:00", "sun", "mon,tue", "7", "UTC", "Local", "Europe/Berlin", "../etc", "a=b", "a in (b,c),!d", "a=b,c=d,e>1", "=", "/run/x", "/sentinel/x", "relative", "/a/../b",
		"http://p.example.com:9090/x", "http://[::1", "https://u:TOKEN@h", "ftp://x", "(", "^A|B$", `x"}) or vector(1) #`, "a,b,c", "x/y,z/y,/", "--", strings.Repeat("x", 5000),
		strings.Repeat("a,", 40), "\x1b[2J\n# injected: yes\npaused: false", "\xff\xfe", "é\u2028x", "$(KURED_NODE_ID)", "$(NOPE)"}
	dir := t.TempDir()
	rounds := 600 // 10,000 take 16 s
	for seed := range rounds {
		random := rand.New(rand.NewPCG(uint64(seed), 1))
		pick := func() string { return values[random.IntN(len(values))] }
		args := func(settings []Setting) (all []string) {
			for range random.IntN(8) {
				s := settings[random.IntN(len(settings))]
				all = append(all, "--"+s.Name+"="+pick())
			}
			return all
		}
		in := &Input{Now: now, Zones: time.LoadLocation, Nodes: []corev1.Node{node("n1", "cordon", "a:"+fluo+"reboot-paused=true")}, HostZone: pick(), Files: map[string]string{}}
		tool := Tools()[seed%3]
		switch tool {
		case Kured:
			in.Workloads = []Workload{kuredSet(args(kuredSettings), []string{"KURED_CONCURRENCY=" + pick()}), kuredSet(args(kuredSettings), nil)}
			in.Workloads[0].Annotations[kuredLock] = pick()
		case FLUO:
			in.Workloads = fluoWorkloads(args(operatorSettings), []string{"TZ=" + pick()}, args(agentSettings))
		case Locksmith:
			for range random.IntN(5) {
				in.Files[UpdateConf] += locksmithSettings[random.IntN(len(locksmithSettings))].Name + "=" + pick() + "\n"
			}
		}
		r, err := From(tool, in)
		must(t, err)
		text, err := r.Text()
		must(t, err)
		if i := strings.IndexFunc(text, func(r rune) bool { return r < ' ' && r != '\n' || r == 0x7f || r == '\u2028' }); i >= 0 || strings.Contains(text, "\n# injected") || strings.Contains(text, "TOKEN") {
			t.Fatalf("seed %d: the report has %q", seed, text)
		}
		for i := range r.Policies {
			p := &r.Policies[i]
			text, err := p.YAML()
			must(t, err)
			read := v1alpha1.DisruptionPolicy{Spec: v1alpha1.DefaultPolicySpec()}
			if err := yaml.UnmarshalStrict([]byte(text), &read); err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, text)
			}
			compiled := policy.Compile(&read, time.LoadLocation)
			if len(compiled.Problems) > 0 {
				t.Fatalf("seed %d: %v\n%s", seed, compiled.Problems, text)
			}
			decide := slices.ContainsFunc(r.Notes, func(n Note) bool { return n.Outcome == Decide })
			if paused := len(p.PausedBecause) > 0; compiled.Paused != paused || paused && !decide || tool == FLUO && paused != decide {
				t.Fatalf("seed %d: paused %t, because of %q, and the notes are %+v", seed, compiled.Paused, p.PausedBecause, r.Notes)
			}
		}
		file := filepath.Join(dir, "lockkeeper.toml")
		must(t, os.WriteFile(file, []byte(r.HostFile), 0o600))
		c, _, err := config.Load(config.Options{File: file})
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, r.HostFile)
		}
		if decide := slices.ContainsFunc(r.Notes, func(n Note) bool { return n.Outcome == Decide }); tool == Locksmith && decide != (c.Paused != "") {
			t.Fatalf("seed %d: the host is paused for %q, and the notes are %+v", seed, c.Paused, r.Notes)
		}
	}
}
