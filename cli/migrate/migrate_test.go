package migrate

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var now = time.Date(2026, 11, 23, 8, 0, 0, 0, time.UTC)

// kuredSet returns kured's DaemonSet as kured-ds.yaml in kubereboot/kured has it, with more
// arguments and variables.
func kuredSet(args, env []string) Workload {
	w := Workload{Kind: "DaemonSet", Namespace: "kube-system", Name: "kured", Annotations: map[string]string{}}
	w.Template.Spec = corev1.PodSpec{
		Containers: []corev1.Container{{
			Name: "kured", Image: "ghcr.io/kubereboot/kured:1.20.0",
			Command: append([]string{"/usr/bin/kured", "--reboot-sentinel=/sentinel/reboot-required"}, args...),
			Env: []corev1.EnvVar{{Name: "KURED_NODE_ID", ValueFrom: &corev1.EnvVarSource{
				FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"},
			}}},
			VolumeMounts: []corev1.VolumeMount{{Name: "sentinel", MountPath: "/sentinel"}},
		}},
		Volumes: []corev1.Volume{{Name: "sentinel", VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: "/var/run"},
		}}},
	}
	addEnv(&w, env)
	return w
}

func addEnv(w *Workload, env []string) {
	c := &w.Template.Spec.Containers[0]
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value})
	}
}

// fluoWorkloads returns FLUO's Deployment and DaemonSet as examples/deploy in
// flatcar/flatcar-linux-update-operator has them, with more arguments and variables.
func fluoWorkloads(operatorArgs, operatorEnv, agentArgs []string) []Workload {
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
	}
	make := func(kind, name, program string, args []string, env ...corev1.EnvVar) Workload {
		w := Workload{Kind: kind, Namespace: "reboot-coordinator", Name: name}
		w.Template.Spec.Containers = []corev1.Container{{
			Name: program, Image: "ghcr.io/flatcar/flatcar-linux-update-operator:v0.10.0-rc1", Command: append([]string{"/bin/" + program}, args...), Env: env,
		}}
		return w
	}
	all := []Workload{
		make("Deployment", "flatcar-linux-update-operator", "update-operator", operatorArgs, field("POD_NAMESPACE", "metadata.namespace")),
		make("DaemonSet", "flatcar-linux-update-agent", "update-agent", agentArgs, field("UPDATE_AGENT_NODE", "spec.nodeName"), field("POD_NAMESPACE", "metadata.namespace")),
	}
	addEnv(&all[0], operatorEnv)
	return all
}

// check compares a result with what a person wrote: the YAML of its policies below spec, the
// host's file, and parts of notes. Each part of notes is "setting | outcome | text".
func check(t *testing.T, r *Result, wantSpecs []string, wantFile string, wantNotes []string) {
	t.Helper()
	if len(r.Policies) != len(wantSpecs) {
		t.Fatalf("%d policies, expected %d", len(r.Policies), len(wantSpecs))
	}
	for i, want := range wantSpecs {
		text, err := r.Policies[i].YAML()
		must(t, err)
		_, spec, _ := strings.Cut(text, "\nspec:")
		if got := strings.TrimSpace(spec); got != strings.TrimSpace(want) {
			t.Errorf("policy %d:\n%s\nexpected\n%s", i, got, want)
		}
	}
	if got := strings.TrimSpace(r.HostFile); got != strings.TrimSpace(wantFile) {
		t.Errorf("the host's file:\n%s\nexpected\n%s", got, wantFile)
	}
	var all strings.Builder
	for _, n := range r.Notes {
		all.WriteString(n.Setting + " | " + string(n.Outcome) + " | " + n.Text + "\n")
	}
	for _, want := range wantNotes {
		if !strings.Contains(all.String(), want) {
			t.Errorf("no note has %q; the notes are\n%s", want, all.String())
		}
	}
}

// affinity returns a change that makes the pods require these terms of their nodes.
func affinity(terms ...corev1.NodeSelectorTerm) func(*Workload) {
	return func(w *Workload) {
		w.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
		}}
	}
}

const sentinelFile = "[sources]\nsentinels = [\"/run/reboot-required\"]"

// TestKured has the flags of cmd/kured/main.go in kubereboot/kured (read, not run).
func TestKured(t *testing.T) {
	for _, c := range []struct {
		name      string
		args, env []string
		edit      func(*Workload)
		spec      string
		file      string
		notes     []string
	}{
		{
			name:  "the manifest as it is: the drain waits indefinitely",
			spec:  "  drain:\n    onTimeout: Wait",
			notes: []string{"--reboot-sentinel=\"/sentinel/reboot-required\" | carried over | [sources] sentinels: the same file", "KURED_NODE_ID | not carried over"},
		},
		{
			name: "a night on all days",
			args: []string{"--start-time=22:00", "--end-time=5am", "--time-zone=Europe/Berlin"},
			spec: "  drain:\n    onTimeout: Wait\n  rollout:\n    windows:\n    - duration: 7h0m0s\n      start: \"22:00\"\n      timeZone: Europe/Berlin",
		},
		{
			name: "a night on some days has both its ends on each of the days, and none after them",
			args: []string{"--reboot-days=sat,Fri", "--start-time", "22:00", "--end-time", "02:00"},
			spec: "  drain:\n    onTimeout: Wait\n  rollout:\n    windows:\n    - days:\n      - Fri\n      - Sat\n      duration: 2h0m0s\n      start: \"22:00\"\n      timeZone: UTC\n" +
				"    - days:\n      - Fri\n      - Sat\n      duration: 2h0m0s\n      start: \"00:00\"\n      timeZone: UTC",
			notes: []string{"the reboot window | carried over | each of the days has both ends of the night"},
		},
		{
			name: "days only, as the chart repeats them; the end that kured has by default is midnight",
			args: []string{"--reboot-days=mo", "--reboot-days=2", "--reboot-days=wednesday", "--end-time=23:59:59"},
			spec: "  drain:\n    onTimeout: Wait\n  rollout:\n    windows:\n    - days:\n      - Mon\n      - Tue\n      - Wed\n      duration: 24h0m0s\n      start: \"00:00\"\n      timeZone: UTC",
		},
		{
			name:  "a short window",
			args:  []string{"--start-time=04:00:01", "--end-time=04:12"},
			spec:  "  drain:\n    onTimeout: Wait\n  rollout:\n    expectedDuration: 5m0s\n    windows:\n    - duration: 11m0s\n      start: \"04:01\"\n      timeZone: UTC",
			notes: []string{"the window is short, so expectedDuration is 5m"},
		},
		{
			name:  "a window of a second, which no window of ours is: paused",
			args:  []string{"--start-time=04:00", "--end-time=04:00"},
			spec:  "  drain:\n    onTimeout: Wait\n  paused: true",
			notes: []string{"the reboot window | not carried over; paused until you decide | kured's window lasts one second"},
		},
		{
			name:  "days that are not days, and a zone that is none: paused",
			args:  []string{"--reboot-days=fri,x\ny", "--time-zone=Mars/Base"},
			spec:  "  drain:\n    onTimeout: Wait\n  paused: true",
			notes: []string{`--reboot-days="fri,x\ny" | not carried over; paused`, `--time-zone="Mars/Base" | not carried over; paused`},
		},
		{
			name: "several at once, a drain that ends, a lock that is released late",
			args: []string{"--concurrency=3", "--drain-timeout=30m", "--lock-release-delay=5m", "--lock-ttl=1h", "--annotate-nodes", "--period=1m"},
			spec: "  drain:\n    timeout: 30m0s\n  rollout:\n    maxUnavailable: 3\n    settle: 5m0s",
			notes: []string{"--lock-ttl=\"1h\" | not carried over | not needed: there is no lock", "--annotate-nodes=\"true\" | not carried over",
				"--period=\"1m\" | not carried over | not needed"},
		},
		{
			name: "a reboot in any case",
			args: []string{"--drain-timeout=10m", "--force-reboot", "--drain-grace-period=30", "--skip-wait-for-delete-timeout=5"},
			spec: "  drain:\n    onTimeout: Force\n    timeout: 10m0s",
			notes: []string{"--drain-grace-period=\"30\" | not carried over | each pod has the grace period of its own spec",
				"--skip-wait-for-delete-timeout=\"5\" | not carried over"},
		},
		{
			name: "alerts",
			args: []string{"--prometheus-url=http://prometheus.example.com:9090", "--alert-filter-regexp=^(RebootRequired|Watchdog)$", "--alert-firing-only=true"},
			spec: "  drain:\n    onTimeout: Wait\n  rollout:\n    gates:\n    - name: kured-alerts\n" +
				"      query: ALERTS{alertname!~\".*(?:^(RebootRequired|Watchdog)$).*\",alertname!~\"Lockkeeper.+\",alertstate=\"firing\"}\n        != 0",
			file: sentinelFile + "\n\n# On hosts that may become the coordinator. A host must be able to reach the server:\n" +
				"# the name of a Service usually resolves in pods only.\n[coordinator]\nprometheus_url = \"http://prometheus.example.com:9090\"",
		},
		{
			name: "alerts without a filter",
			args: []string{"--prometheus-url=https://p.example.com"},
			spec: "  drain:\n    onTimeout: Wait\n  rollout:\n    gates:\n    - name: kured-alerts\n      query: ALERTS{alertname!~\"Lockkeeper.+\"} != 0",
			file: sentinelFile + "\n\n# On hosts that may become the coordinator. A host must be able to reach the server:\n" +
				"# the name of a Service usually resolves in pods only.\n[coordinator]\nprometheus_url = \"https://p.example.com\"",
		},
		{
			name: "a server that lockkeeper does not take, and an expression that is none: paused, and the gate stays closed",
			args: []string{"--prometheus-url=http://me:secret@p.example.com", "--alert-filter-regexp=(", "--alert-filter-match-only"},
			spec: "  drain:\n    onTimeout: Wait\n  paused: true\n  rollout:\n    gates:\n    - name: kured-alerts\n      query: ALERTS{alertname=~\".*(?:().*\"} != 0",
			notes: []string{"--prometheus-url=(not shown) | not carried over; paused until you decide | it is not an address that lockkeeper accepts",
				"--alert-filter-regexp=\"(\" | not carried over; paused"},
		},
		{
			name: "pods that block, and pods that stay",
			args: []string{"--blocking-pod-selector=runtime=long,cost!=low", "--blocking-pod-selector=name in (a,b)", "--drain-pod-selector=app=web,!keep"},
			spec: "  drain:\n    block:\n    - selector:\n        matchExpressions:\n        - key: cost\n          operator: NotIn\n          values:\n          - low\n        - key: runtime\n          operator: In\n          values:\n          - long\n" +
				"    - selector:\n        matchExpressions:\n        - key: name\n          operator: In\n          values:\n          - a\n          - b\n" +
				"    onTimeout: Wait\n    skip:\n    - selector:\n        matchExpressions:\n        - key: app\n          operator: NotIn\n          values:\n          - web\n" +
				"    - selector:\n        matchExpressions:\n        - key: keep\n          operator: Exists",
		},
		{
			name:  "selectors that a policy does not have: paused",
			args:  []string{"--blocking-pod-selector=size>3", "--drain-pod-selector=a=="},
			spec:  "  drain:\n    onTimeout: Wait\n    skip:\n    - selector:\n        matchExpressions:\n        - key: a\n          operator: NotIn\n          values:\n          - \"\"\n  paused: true",
			notes: []string{"--blocking-pod-selector=\"size>3\" | not carried over; paused"},
		},
		{
			name:  "the environment takes precedence, and cannot set what repeats",
			args:  []string{"--concurrency=2"},
			env:   []string{"KURED_CONCURRENCY=4", "KURED_BLOCKING_POD_SELECTOR=a=b", "KURED_REBOOT_DAYS=sun", "HTTP_PROXY=x"},
			spec:  "  drain:\n    onTimeout: Wait\n  rollout:\n    maxUnavailable: 4\n    windows:\n    - days:\n      - Sun\n      duration: 24h0m0s\n      start: \"00:00\"\n      timeZone: UTC",
			notes: []string{"KURED_CONCURRENCY=\"4\" | carried over", "\"KURED_BLOCKING_POD_SELECTOR\" | not carried over | unknown: kured reads no such variable"},
		},
		{
			name: "variables in arguments, and one that is in a Secret",
			args: []string{"--concurrency=$(MANY)", "--start-time=$(SECRET)", "--message-template-drain=$$(X) %s"},
			env:  []string{"MANY=2"},
			edit: func(w *Workload) {
				c := &w.Template.Spec.Containers[0]
				c.Env = append(c.Env, corev1.EnvVar{Name: "SECRET", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{Key: "x"}}})
				c.EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "more"}}}}
			},
			spec: "  drain:\n    onTimeout: Wait\n  paused: true\n  rollout:\n    maxUnavailable: 2",
			notes: []string{"--start-time | not carried over; paused until you decide | its value comes from the variable \"SECRET\", which is not in the object",
				"envFrom Secret \"more\" | not carried over | it was not read", "--message-template-drain=\"$(X) %s\" | not carried over"},
		},
		{
			name: "secrets are not printed, and the command is not run",
			args: []string{"--notify-url=slack://TOKEN-A/B/C", "--slack-hook-url=https://hooks.slack.com/services/T/B/TOKEN", "--reboot-sentinel-command=/check.sh"},
			spec: "  drain:\n    onTimeout: Wait",
			file: sentinelFile + "\n\n# On hosts that may become the coordinator. Put [notify] into a drop-in of mode 0600 and set\n" +
				"# its url: it is a secret, so that it is not printed here.\n# [notify]\n# url = \"https://…\"",
			notes: []string{"--notify-url=(not shown) | not carried over | lockkeeper posts to Slack", "--reboot-sentinel-command=\"/check.sh\" | not carried over | lockkeeper runs no command"},
		},
		{
			name: "unknown flags, arguments and hostile text are listed",
			args: []string{"--new-flag=\x1b[31m", "word", "-x", "--", "end"},
			spec: "  drain:\n    onTimeout: Wait",
			notes: []string{`"--new-flag" | not carried over | unknown`, `"word" | not carried over | kured has no arguments`, `"--x" | not carried over | unknown`,
				`"-- end" | not carried over`},
		},
		{
			name: "the nodes that it runs on",
			edit: func(w *Workload) {
				w.Template.Spec.NodeSelector = map[string]string{"kubernetes.io/os": "linux"}
				w.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "pool", Operator: "NotIn", Values: []string{"db"}}}}},
				}}}
			},
			spec: "  drain:\n    onTimeout: Wait\n  nodeSelector:\n    matchExpressions:\n    - key: pool\n      operator: NotIn\n      values:\n      - db\n    matchLabels:\n      kubernetes.io/os: linux",
		},
		{
			name: "the local time of a container is UTC",
			args: []string{"--start-time=22:00", "--end-time=22:15", "--time-zone=Local"},
			spec: "  drain:\n    onTimeout: Wait\n  rollout:\n    windows:\n    - duration: 15m0s\n      start: \"22:00\"\n      timeZone: UTC",
		},
		{
			name: "the local time of a container that mounts /etc: paused",
			args: []string{"--start-time=22:00", "--end-time=23:00", "--time-zone=Local"},
			edit: func(w *Workload) {
				w.Template.Spec.Containers[0].VolumeMounts = append(w.Template.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "etc", MountPath: "/etc"})
			},
			spec:  "  drain:\n    onTimeout: Wait\n  paused: true",
			notes: []string{`--time-zone="Local" | not carried over; paused until you decide | its local time is that of the file mounted at "/etc"`},
		},
		{
			name:  "half of a window is not taken for all of it: paused",
			args:  []string{"--start-time=x", "--end-time=05:00"},
			spec:  "  drain:\n    onTimeout: Wait\n  paused: true",
			notes: []string{`--start-time="x" | not carried over; paused`},
		},
		{
			name: "kured's default for the time after a turn",
			args: []string{"--lock-release-delay=0s"},
			spec: "  drain:\n    onTimeout: Wait",
		},
		{
			name:  "a time after a turn that is none: paused",
			args:  []string{"--lock-release-delay=-1h"},
			spec:  "  drain:\n    onTimeout: Wait\n  paused: true",
			notes: []string{`--lock-release-delay="-1h" | not carried over; paused`},
		},
		{
			name:  "several terms: paused",
			edit:  affinity(corev1.NodeSelectorTerm{}, corev1.NodeSelectorTerm{}),
			spec:  "  drain:\n    onTimeout: Wait\n  paused: true",
			notes: []string{"nodeAffinity | not carried over; paused until you decide | it has several terms"},
		},
		{
			name:  "fields: paused",
			edit:  affinity(corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: "In", Values: []string{"n1"}}}}),
			spec:  "  drain:\n    onTimeout: Wait\n  paused: true",
			notes: []string{"nodeAffinity | not carried over; paused until you decide | it has several terms, or fields"},
		},
		{
			name:  "greater than: paused",
			edit:  affinity(corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "size", Operator: "Gt", Values: []string{"1"}}}}),
			spec:  "  drain:\n    onTimeout: Wait\n  paused: true",
			notes: []string{"nodeAffinity | not carried over; paused until you decide | the operator Gt"},
		},
		{
			name:  "less than: paused",
			edit:  affinity(corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "size", Operator: "Lt", Values: []string{"1"}}}}),
			spec:  "  drain:\n    onTimeout: Wait\n  paused: true",
			notes: []string{"nodeAffinity | not carried over; paused until you decide | the operator Lt"},
		},
		{
			name: "a lock that a user set to stop kured pauses the policy",
			edit: func(w *Workload) {
				w.Annotations["weave.works/kured-node-lock"] = `{"nodeID":"manual","metadata":{},"created":"2026-11-01T00:00:00Z","TTL":0}`
			},
			spec:  "  drain:\n    onTimeout: Wait\n  paused: true",
			notes: []string{"the lock | not carried over; paused until you decide | its holder \"manual\" is not a node"},
		},
		{
			name: "a shell",
			edit: func(w *Workload) {
				w.Template.Spec.Containers[0].Command = []string{"/bin/sh", "-c", "exec /usr/bin/kured --concurrency=5"}
			},
			spec:  "  drain:\n    onTimeout: Wait\n  paused: true",
			notes: []string{"DaemonSet kube-system/kured | not carried over; paused until you decide | a shell starts kured"},
		},
		{
			name: "a sentinel that is not on the host",
			args: []string{"--reboot-sentinel=/tmp/x"},
			edit: func(w *Workload) {
				w.Template.Spec.Containers[0].VolumeMounts = append(w.Template.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "tmp", MountPath: "/tmp/"})
			},
			spec:  "  drain:\n    onTimeout: Wait",
			notes: []string{"--reboot-sentinel=\"/tmp/x\" | not carried over | the file is in a volume that is not a directory of the host"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := kuredSet(c.args, c.env)
			if c.edit != nil {
				c.edit(&w)
			}
			r, err := From(Kured, &Input{Now: now, Zones: time.LoadLocation, Workloads: []Workload{w}, Nodes: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}}})
			must(t, err)
			if c.file == "" {
				c.file = sentinelFile
			}
			check(t, r, []string{c.spec}, c.file, c.notes)
			text, err := r.Text()
			must(t, err)
			if strings.Contains(text, "TOKEN") || strings.Contains(text, "\x1b") || strings.Contains(text, "me:secret") {
				t.Errorf("the report has a secret or a control character:\n%q", text)
			}
		})
	}
}
