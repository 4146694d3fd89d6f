package migrate

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestFLUO has the flags of cmd/update-operator/main.go and cmd/update-agent/main.go in
// flatcar/flatcar-linux-update-operator (read, not run).
func TestFLUO(t *testing.T) {
	const skip = "    skip:\n    - namespace: kube-system\n"
	for _, c := range []struct {
		name               string
		operator, env, agt []string
		edit               func([]Workload) []Workload
		spec               string
		notes              []string
	}{
		{
			name: "the manifests as they are",
			spec: "  drain:\n" + skip + "    timeout: 10m0s",
			notes: []string{"UPDATE_AGENT_NODE | not carried over | not needed",
				"pods in kube-system | carried over | spec.drain.skip: FLUO never evicts them"},
		},
		{
			name: "a weekly window over midnight, from the environment",
			env:  []string{"UPDATE_OPERATOR_REBOOT_WINDOW_START=Thu 23:00", "UPDATE_OPERATOR_REBOOT_WINDOW_LENGTH=1h30m"},
			spec: "  drain:\n" + skip + "    timeout: 10m0s\n  rollout:\n    windows:\n    - days:\n      - Thu\n      duration: 1h30m0s\n      start: \"23:00\"\n      timeZone: UTC",
		},
		{
			name:     "a daily window in the zone of the pod; flags take precedence over the environment",
			operator: []string{"-reboot-window-start", "14:00", "--reboot-window-length=4h", "-v=4", "-logtostderr"},
			env:      []string{"TZ=Europe/Berlin", "UPDATE_OPERATOR_REBOOT_WINDOW_START=Mon 01:00", "UPDATE_OPERATOR_KUBECONFIG="},
			spec:     "  drain:\n" + skip + "    timeout: 10m0s\n  rollout:\n    windows:\n    - duration: 4h0m0s\n      start: \"14:00\"\n      timeZone: Europe/Berlin",
			notes:    []string{"the reboot window | carried over | spec.rollout.windows, in the container's local time, \"Europe/Berlin\"", "--v=\"4\" | not carried over | lockkeeper logs"},
		},
		{
			name:     "a window of three days is split into equal parts that touch",
			operator: []string{"--reboot-window-start=SAT 18:30", "--reboot-window-length=49h"},
			spec: "  drain:\n" + skip + "    timeout: 10m0s\n  rollout:\n    windows:\n    - days:\n      - Sat\n      duration: 16h20m0s\n      start: \"18:30\"\n      timeZone: UTC\n" +
				"    - days:\n      - Sun\n      duration: 16h20m0s\n      start: \"10:50\"\n      timeZone: UTC\n" +
				"    - days:\n      - Mon\n      duration: 16h20m0s\n      start: \"03:10\"\n      timeZone: UTC",
		},
		{
			name:  "half of a window is none, as with FLUO",
			env:   []string{"UPDATE_OPERATOR_REBOOT_WINDOW_START=Thu 23:00"},
			spec:  "  drain:\n" + skip + "    timeout: 10m0s",
			notes: []string{"the reboot window | not carried over | FLUO ignores the one"},
		},
		{
			name:     "a window that FLUO would not start with: paused",
			operator: []string{"--reboot-window-start=25:00", "--reboot-window-length=1h"},
			spec:     "  drain:\n" + skip + "    timeout: 10m0s\n  paused: true",
			notes:    []string{"the reboot window | not carried over; paused until you decide | \"25:00\" is not a time of the day"},
		},
		{
			name:     "local time of a file that is mounted: paused",
			operator: []string{"--reboot-window-start=23:00", "--reboot-window-length=1h"},
			edit: func(ws []Workload) []Workload {
				ws[0].Template.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "tz", MountPath: "/etc/localtime"}}
				return ws
			},
			spec:  "  drain:\n" + skip + "    timeout: 10m0s\n  paused: true",
			notes: []string{"its local time is that of the file mounted at \"/etc/localtime\""},
		},
		{
			name:     "hooks: one name in each stage",
			operator: []string{"--before-reboot-annotations=flatcar-linux-update.v1.flatcar-linux.net/before-reboot-test,example.com/check", "--after-reboot-annotations=example.com/check"},
			spec: "  drain:\n" + skip + "    timeout: 10m0s\n  hooks:\n    beforeDrain:\n    - name: before-reboot-test\n      onTimeout: Wait\n      timeout: 30m0s\n" +
				"    - name: check\n      onTimeout: Wait\n      timeout: 30m0s\n    beforeUncordon:\n    - name: check-after\n      onTimeout: Wait\n      timeout: 30m0s",
		},
		{
			name:     "hooks of different names keep them",
			operator: []string{"--before-reboot-annotations=example.com/before", "--after-reboot-annotations=example.com/after"},
			spec: "  drain:\n" + skip + "    timeout: 10m0s\n  hooks:\n    beforeDrain:\n    - name: before\n      onTimeout: Wait\n      timeout: 30m0s\n" +
				"    beforeUncordon:\n    - name: after\n      onTimeout: Wait\n      timeout: 30m0s",
		},
		{
			name:     "a window of the whole day, which FLUO does not start with: paused",
			operator: []string{"--reboot-window-start=04:00", "--reboot-window-length=24h"},
			spec:     "  drain:\n" + skip + "    timeout: 10m0s\n  paused: true",
			notes:    []string{"the reboot window | not carried over; paused until you decide | it is longer than its period"},
		},
		{
			name:     "an argument, at which the flags end",
			operator: []string{"x"},
			spec:     "  drain:\n" + skip + "    timeout: 10m0s",
			notes:    []string{`"x" | not carried over | these are arguments`},
		},
		{
			name: "the agent's drain and its nodes",
			agt:  []string{"-grace-period=120", "-force-drain=true"},
			edit: func(ws []Workload) []Workload {
				ws[1].Template.Spec.NodeSelector = map[string]string{"flatcar-linux-update.v1.flatcar-linux.net/agent": "true"}
				return ws
			},
			// FLUO's own label goes away, and with it the nodes: the user decides.
			spec:  "  drain:\n" + skip + "    timeout: 2m0s\n  nodeSelector:\n    matchLabels:\n      flatcar-linux-update.v1.flatcar-linux.net/agent: \"true\"\n  paused: true",
			notes: []string{"nodeSelector | not carried over; paused until you decide | `migrate --apply` removes the label", "--force-drain=\"true\" | not carried over | not needed"},
		},
		{
			name:     "what ends the flags of Go's package flag",
			operator: []string{"-analytics", "x", "--reboot-window-start=23:00"},
			spec:     "  drain:\n" + skip + "    timeout: 10m0s",
			notes:    []string{`"x --reboot-window-start=23:00" | not carried over | these are arguments`},
		},
		{
			name:  "the operator is gone: its windows are not known",
			edit:  func(ws []Workload) []Workload { return ws[1:] },
			spec:  "  drain:\n" + skip + "    timeout: 10m0s\n  paused: true",
			notes: []string{"update-operator | not carried over; paused until you decide"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			ws := fluoWorkloads(c.operator, c.env, c.agt)
			if c.edit != nil {
				ws = c.edit(ws)
			}
			r, err := From(FLUO, &Input{Now: now, Zones: time.LoadLocation, Workloads: ws})
			must(t, err)
			const file = "[sources]\n# The host commits nothing while a pod of the other tool is on its node.\nmanager_namespaces = [\"reboot-coordinator\"]"
			check(t, r, []string{c.spec}, file, c.notes)
		})
	}
}

// TestLocksmith has the settings of locksmithctl/daemon.go and systemd/locksmithd.service in
// flatcar/locksmith (read, not run).
func TestLocksmith(t *testing.T) {
	const dropIn = "/etc/systemd/system/locksmithd.service.d/10-window.conf"
	for _, c := range []struct {
		name  string
		files map[string]string
		zone  string
		file  string
		notes []string
	}{
		{name: "no files", notes: []string{"REBOOT_STRATEGY=\"\" | carried over | spec.rollout.maxUnavailable: 1"}},
		{
			name: "the file in /etc wins over the one in /usr, and both over the unit",
			files: map[string]string{
				VendorUpdateConf: "GROUP=stable\nREBOOT_STRATEGY=reboot\n",
				UpdateConf:       "# mine\nREBOOT_STRATEGY=\"etcd-lock\"\nLOCKSMITHD_REBOOT_WINDOW_START=\"Thu 23:00\"\n",
				dropIn:           "[Service]\nEnvironment=\"LOCKSMITHD_REBOOT_WINDOW_START=12:00\" LOCKSMITHD_REBOOT_WINDOW_LENGTH=1h30m LOCKSMITHD_GROUP=lb\n",
			},
			zone: "Europe/Berlin",
			file: "[[window]]\ndays = [\"Thu\"]\nstart = \"23:00\"\nduration = \"1h30m\"\ntime_zone = \"Europe/Berlin\"",
			notes: []string{"REBOOT_STRATEGY=\"etcd-lock\" | carried over", "LOCKSMITHD_GROUP=\"lb\" | not carried over | a group has a lock of its own",
				"GROUP=\"stable\" | not carried over | update_engine reads it"},
		},
		{
			name:  "the older names, and a length of the whole day: no window is needed",
			files: map[string]string{UpdateConf: "REBOOT_WINDOW_START=04:00\nREBOOT_WINDOW_LENGTH=24h\n"},
			notes: []string{"carried over | the window never closes"},
		},
		{
			name:  "off: the host only observes",
			files: map[string]string{UpdateConf: "REBOOT_STRATEGY=off\n"},
			file:  "mode = \"observe\"",
		},
		{
			name:  "half of a window, which locksmith does not start with: the host is paused",
			files: map[string]string{UpdateConf: "LOCKSMITHD_REBOOT_WINDOW_START=04:00\n"},
			zone:  "UTC",
			file:  "paused = \"migrate: decide about REBOOT_WINDOW_START=\\\"04:00\\\", _LENGTH=\\\"\\\"\"",
		},
		{
			name:  "a local time that is not known: the host is paused",
			files: map[string]string{UpdateConf: "LOCKSMITHD_REBOOT_WINDOW_START=04:00\nLOCKSMITHD_REBOOT_WINDOW_LENGTH=1h\n"},
			file:  "paused = \"migrate: decide about REBOOT_WINDOW_START=\\\"04:00\\\", _LENGTH=\\\"1h\\\"\"",
			notes: []string{"paused until you decide | locksmith uses the host's local time, and the host's time zone is not known"},
		},
		{
			name:  "a window on each day",
			files: map[string]string{UpdateConf: "LOCKSMITHD_REBOOT_WINDOW_START=04:00\nLOCKSMITHD_REBOOT_WINDOW_LENGTH=1h\n"},
			zone:  "UTC",
			file:  "[[window]]\nstart = \"04:00\"\nduration = \"1h\"\ntime_zone = \"UTC\"",
		},
		{
			name: "unknown and secret variables, and what was not read",
			files: map[string]string{
				UpdateConf: "PASSWORDS=x\nLOCKSMITHD_ETCD_PASSWORD=TOKEN\nREBOOT_STRATEGY=best-effort",
				dropIn:     "[Service]\nEnvironmentFile=-/etc/more\nExecStart=/usr/lib/locksmith/locksmithd -group=x\n",
			},
			file: "paused = \"migrate: decide about REBOOT_STRATEGY=\\\"best-effort\\\"\"",
			notes: []string{"PASSWORDS=\"x\" | not carried over | unknown", "LOCKSMITHD_ETCD_PASSWORD=(not shown)", "its EnvironmentFile \"-/etc/more\" was not read",
				"its ExecStart was not read"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := From(Locksmith, &Input{Zones: time.LoadLocation, Files: c.files, HostZone: c.zone})
			must(t, err)
			check(t, r, []string{"{}"}, c.file, c.notes)
			text, err := r.Text()
			must(t, err)
			if strings.Contains(text, "TOKEN") {
				t.Error("the report has a secret")
			}
		})
	}
}

// TestUntolerated: where the tool's pods cannot be, because of a taint, the tool reboots nothing. A policy selects nodes by labels
// alone, so it would have lockkeeper drain and reboot these nodes too.
func TestUntolerated(t *testing.T) {
	exists := []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	gpu := []corev1.Toleration{{Key: "example.com/gpu", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{NodeName: "n1"}}
	for name, c := range map[string]struct {
		node        corev1.Node
		tolerations []corev1.Toleration
		selector    map[string]string
		pods        []corev1.Pod
		paused      bool
	}{
		"a taint":                          {node: node("n1", "t:example.com/gpu:NoSchedule"), paused: true},
		"a taint that ends pods":           {node: node("n1", "t:example.com/gpu:NoExecute"), tolerations: gpu, paused: true},
		"a taint that is tolerated":        {node: node("n1", "t:example.com/gpu:NoSchedule"), tolerations: gpu},
		"two, of which one is tolerated":   {node: node("n1", "t:example.com/gpu:NoSchedule", "t:example.com/db:NoSchedule"), tolerations: gpu, paused: true},
		"all are tolerated":                {node: node("n1", "t:example.com/gpu:NoSchedule", "t:example.com/db:NoExecute"), tolerations: exists},
		"a preference":                     {node: node("n1", "t:example.com/gpu:PreferNoSchedule")},
		"the node's own state":             {node: node("n1", "t:node.kubernetes.io/unschedulable:NoSchedule")},
		"a pod was there before the taint": {node: node("n1", "t:example.com/gpu:NoSchedule"), pods: []corev1.Pod{pod}},
		"a node that is not selected":      {node: node("n1", "t:example.com/gpu:NoSchedule"), selector: map[string]string{"pool": "web"}},
	} {
		for tool, ws := range map[Tool][]Workload{Kured: {kuredSet(nil, nil)}, FLUO: fluoWorkloads(nil, nil, nil)} {
			spec := &ws[len(ws)-1].Template.Spec // of the DaemonSet
			spec.Tolerations, spec.NodeSelector = c.tolerations, c.selector
			r, err := From(tool, &Input{Now: now, Zones: time.LoadLocation, Workloads: ws, Nodes: []corev1.Node{c.node}, Pods: c.pods})
			must(t, err)
			because := strings.Join(r.Policies[0].PausedBecause, "; ")
			if r.Policies[0].Object.Spec.Paused != c.paused || c.paused && !strings.Contains(because, "does not run on n1, because its pods do not tolerate a taint there") {
				t.Errorf("%s, %s: paused %t, %q", tool, name, r.Policies[0].Object.Spec.Paused, because)
			}
		}
	}
}
