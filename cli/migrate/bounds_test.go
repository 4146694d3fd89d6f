package migrate

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
)

// What is shown of hostile text.
func TestText(t *testing.T) {
	for _, tc := range []struct{ got, want string }{
		{cut("abc", 3), "abc"},
		{cut("abc", 2), "ab…"},
		{cut("aéb", 2), "a…"},
		{cut("\x80\x80\x80", 1), "…"},
		{quote("a@b"), `"a@b"`},
		{quote("http://a"), `"http://a"`},
		{quote("http://u:p@a"), "(not shown)"},
		{oneLine("\x1f ~\x7f\u0080\u009f\u00a0\u2028\u2029x"), "  ~   \u00a0  x"},
		{quoteTOML("\x1f ~\x7f\u0080\u009f\u00a0\u2028\u2029x\\\"\xff"), `"  ~   ` + "\u00a0" + `  x\\\"?"`},
		{quotable(" !~\x7f\x00a\n"), "!~a"},
		{some([]string{"a", "b", "c", "d", "e"}), "a, b, c, d, e"},
		{some([]string{"a", "b", "c", "d", "e", "f", "g"}), "a, b, c, d, e and 2 more"},
		{fmt.Sprint(without(map[string]any{"a": 1, "b": map[string]any{"c": 1, "d": 2}}, map[string]any{"a": map[string]any{}, "b": map[string]any{"c": 1}})), "map[a:1 b:map[d:2]]"},
	} {
		if tc.got != tc.want {
			t.Errorf("got %q, expected %q", tc.got, tc.want)
		}
	}
}

// Durations of kured's flags, from 0 to an hour.
func TestDurations(t *testing.T) {
	for text, want := range map[string]string{
		"0s": "0s", "1s": "1s", "1h": "1h0m0s", "x": "it is not a duration such as 30m", "999ms": "lockkeeper accepts 1s and more",
		"-1ns": "lockkeeper accepts 0s to 1h", "1h0m1s": "lockkeeper accepts 0s to 1h",
	} {
		d, err := parseDuration(text, 0, time.Hour)
		got := d.String()
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %s, expected %s", text, got, want)
		}
	}
}

// The values at the bounds of each flag, and those beyond them.
func TestValuesAtBounds(t *testing.T) {
	list := func(n int, format, separator string) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(format, i))
		}
		return strings.Join(all, separator)
	}
	filter := strings.Repeat("a", 4096-len(kuredQuery(&kuredDraft{filter: "a"}))+1)
	for _, tc := range []struct {
		tool Tool
		args []string
		note string // the beginning of the note on the first of them
	}{
		{FLUO, []string{"--grace-period=0"}, `--grace-period="0" | not carried over; paused until you decide | it is not a number of seconds`},
		{FLUO, []string{"--grace-period=1"}, `--grace-period="1" | carried over | `},
		{FLUO, []string{"--grace-period=604800"}, `--grace-period="604800" | carried over | `},
		{FLUO, []string{"--grace-period=604801"}, `--grace-period="604801" | not carried over; paused until you decide | it is not a number of seconds`},
		{FLUO, []string{"--grace-period=x"}, `--grace-period="x" | not carried over; paused until you decide | it is not a number of seconds`},
		{Kured, []string{"--concurrency=x"}, `--concurrency="x" | not carried over; paused`},
		{Kured, []string{fmt.Sprint("--concurrency=", policy.MaxNodes)}, fmt.Sprintf(`--concurrency="%d" | carried over`, policy.MaxNodes)},
		{Kured, []string{fmt.Sprint("--concurrency=", policy.MaxNodes+1)}, fmt.Sprintf(`--concurrency="%d" | not carried over; paused`, policy.MaxNodes+1)},
		{Kured, []string{"--concurrency"}, `--concurrency="" | not carried over; paused`},
		{Kured, []string{"--prometheus-url=http://a/" + strings.Repeat("x", 1015)}, `--prometheus-url="http://a/` + strings.Repeat("x", 71) + `…" | carried over`},
		{Kured, []string{"--prometheus-url=http://a/" + strings.Repeat("x", 1016)}, `--prometheus-url="http://a/` + strings.Repeat("x", 71) + `…" | not carried over; paused`},
		{Kured, []string{"--prometheus-url=http://a", "--alert-filter-regexp=" + filter}, ""},
		{Kured, []string{"--prometheus-url=http://a", "--alert-filter-regexp=" + filter + "a"}, "the alert gate | not carried over; paused until you decide | the query has more than 4096 bytes"},
		{Kured, []string{"--drain-pod-selector=" + list(16, "a%d=b", ",")}, `--drain-pod-selector="` + clip(list(16, "a%d=b", ",")) + `" | carried over`},
		{Kured, []string{"--drain-pod-selector=" + list(17, "a%d=b", ",")}, `--drain-pod-selector="` + clip(list(17, "a%d=b", ",")) + `" | not carried over; paused until you decide | a policy skips by 16 requirements at most`},
		{Kured, strings.Fields(list(16, "--blocking-pod-selector=a%d", " ")), `--blocking-pod-selector="a0,a1,a2,a3,a4,a5,a6,a7,a8,a9,a10,a11,a12,a13,a14,a15" | carried over`},
		{Kured, strings.Fields(list(17, "--blocking-pod-selector=a%d", " ")), `--blocking-pod-selector="a0,a1,a2,a3,a4,a5,a6,a7,a8,a9,a10,a11,a12,a13,a14,a15,a16" | not carried over; paused until you decide | a policy has 16 of them at most`},
		{Kured, []string{"--reboot-sentinel=/" + strings.Repeat("x", 4095)}, `--reboot-sentinel="/` + strings.Repeat("x", 79) + `…" | carried over`},
		{Kured, []string{"--reboot-sentinel=/" + strings.Repeat("x", 4096)}, `--reboot-sentinel="/` + strings.Repeat("x", 79) + `…" | not carried over | it is not a clean`},
		{Kured, []string{"--drain-grace-period=-1"}, `--drain-grace-period="-1" | carried over | negative`},
		{Kured, []string{"--drain-grace-period=0"}, `--drain-grace-period="0" | not carried over | each pod`},
		{Kured, []string{"--drain-grace-period=x"}, `--drain-grace-period="x" | not carried over | each pod`},
		{Kured, []string{"--", "--concurrency=0"}, `"-- --concurrency=0" | not carried over | these are arguments`},
		{Kured, []string{"--"}, ""},
	} {
		in := &Input{Now: now, Zones: time.LoadLocation, Workloads: []Workload{kuredSet(tc.args, nil)}}
		base := []string{"--reboot-sentinel=\"/sentinel/reboot-required\" | carried over", "KURED_NODE_ID | not carried over"}
		if tc.tool == FLUO {
			in.Workloads = fluoWorkloads(nil, nil, tc.args)
			base = []string{"UPDATE_AGENT_NODE | not carried over", "pods in kube-system | carried over"}
		}
		r, err := From(tc.tool, in)
		must(t, err)
		var rest []string // the notes on these arguments
		for _, n := range r.Notes {
			text := n.Setting + " | " + string(n.Outcome) + " | " + n.Text
			if !slices.ContainsFunc(base, func(b string) bool { return strings.HasPrefix(text, b) }) && !strings.Contains(text, " | carried over | spec.rollout.gates: ") &&
				!strings.HasPrefix(text, `--prometheus-url="http://a" |`) {
				rest = append(rest, text)
			}
		}
		if tc.note == "" && len(rest) == 0 || len(rest) == 1 && tc.note != "" && strings.HasPrefix(rest[0], tc.note) {
			continue
		}
		t.Errorf("%.80q: %.300q, expected %q", tc.args, rest, tc.note)
	}
}

// All notes on kured's manifest: what it does not set has none.
func TestNoOtherNotes(t *testing.T) {
	r, err := From(Kured, &Input{Now: now, Zones: time.LoadLocation, Workloads: []Workload{kuredSet(nil, nil)}})
	must(t, err)
	if len(r.Notes) != 2 {
		t.Errorf("kured: %+v", r.Notes)
	}
	r, err = From(Locksmith, &Input{Zones: time.LoadLocation, Files: map[string]string{
		UpdateConf: "REBOOT_STRATEGY=reboot\n#X=1\n;Y=1\n\n=1\nGOMAXPROCS=1\n" + strings.Repeat("A", 81) + "=1\n" + strings.Repeat("B", 80) + "=1\n",
	}})
	must(t, err)
	if len(r.Notes) != 2 || r.Notes[0].Setting != strings.Repeat("B", 80)+`="1"` || r.Notes[1].Setting != `REBOOT_STRATEGY="reboot"` {
		t.Errorf("locksmith: %+v", r.Notes)
	}
}

// Files of the host, arguments and variables up to the bounds are read.
func TestSizes(t *testing.T) {
	for size, want := range map[int]string{MaxFile: "mode = \"observe\"\n", MaxFile + 1: "paused = \"migrate: decide about \\\"/etc/flatcar/update.conf\\\"\"\n"} {
		text := "REBOOT_STRATEGY=off\n#"
		r, err := From(Locksmith, &Input{Zones: time.LoadLocation, Files: map[string]string{UpdateConf: text + strings.Repeat("x", size-len(text))}})
		must(t, err)
		if r.HostFile != want {
			t.Errorf("%d bytes: %q, expected %q", size, r.HostFile, want)
		}
	}
	for _, tc := range []struct {
		args, env int
		want      bool // a note
	}{{512, 512, false}, {513, 0, true}, {0, 513, true}} {
		c := &corev1.Container{Command: []string{"kured"}}
		for range tc.args {
			c.Args = append(c.Args, "--annotate-nodes")
		}
		for range tc.env {
			c.Env = append(c.Env, corev1.EnvVar{Name: "X"})
		}
		_, notes := kured.read(c)
		if got := len(notes) == 1 && strings.Contains(notes[0].Text, "more than 512 arguments or variables"); got != tc.want || !tc.want && len(notes) > 0 {
			t.Errorf("%d arguments and %d variables: %+v", tc.args, tc.env, notes)
		}
	}
	d := newDraft(&Input{}, &hostFile{}, nil)
	pairs := []string{"a=b,c"}
	for i := range 600 {
		pairs = append(pairs, fmt.Sprintf("x%d=y", i))
	}
	if _, err := useLabels(d, pairs); err == nil || len(d.kured.labels) != 512 || d.kured.labels[0] != "a" || d.kured.labels[1] != "x0" {
		t.Errorf("%d labels, %v", len(d.kured.labels), err)
	}
	f := &fluoDraft{}
	var keys []string
	for i := range 17 {
		keys = append(keys, fmt.Sprintf("example.com/a%d", i))
	}
	if names, err := f.hookNames([]string{"," + strings.Join(keys[:16], ",")}); len(names) != 16 || err != nil {
		t.Errorf("16 hooks: %d, %v", len(names), err)
	}
	if _, err := f.hookNames([]string{strings.Join(keys, ",")}); err == nil {
		t.Error("17 hooks are accepted")
	}
	lock := `{"nodeID":"n1"}`
	if all, err := parseLock(lock + strings.Repeat(" ", 4*maxArgument-len(lock))); len(all) != 1 || err != nil {
		t.Errorf("the largest lock: %+v, %v", all, err)
	}
	if _, err := parseLock(lock + strings.Repeat(" ", 4*maxArgument-len(lock)+1)); err == nil {
		t.Error("a lock that is too large is read")
	}
}

// Each DaemonSet of kured has its own policy, and all of them have one host's file.
func TestSeveralDaemonSets(t *testing.T) {
	other := kuredSet(nil, nil)
	other.Name, other.Template.Spec.Containers[0].Command = "other", []string{"/usr/bin/kubelet"}
	in := &Input{Now: now, Zones: time.LoadLocation, Workloads: []Workload{other}}
	for i := range 20 {
		w := kuredSet([]string{fmt.Sprintf("--reboot-sentinel=/run/s%d", i), "--prometheus-url=http://p", "--"}, nil)
		w.Name, w.Namespace, w.Wanted = fmt.Sprint("kured-", i), fmt.Sprint("ns-", i), 1
		if i == 3 {
			w.Template.Spec.Containers[0].Command[3] = "--prometheus-url=http://q"
		}
		if i == 4 { // by its image
			w.Template.Spec.Containers[0].Args, w.Template.Spec.Containers[0].Command = w.Template.Spec.Containers[0].Command[1:], nil
		}
		in.Workloads = append(in.Workloads, w)
	}
	other.Template.Spec.Containers = []corev1.Container{{Image: "example.com/other:1"}}
	in.Workloads = append(in.Workloads, other)
	r, err := From(Kured, in)
	must(t, err)
	for i, want := range []string{"from-kured", "from-kured-2", "from-kured-3"} {
		if got := r.Policies[i].Object.Name; got != want {
			t.Errorf("policy %d is %s, expected %s", i, got, want)
		}
	}
	if len(r.Policies) != 20 || len(r.Active) != 20 || len(r.Left) != 20 {
		t.Errorf("%d policies, %d active, %d left", len(r.Policies), len(r.Active), len(r.Left))
	}
	for i := range r.Policies {
		if paused := r.Policies[i].Object.Spec.Paused; paused != (i == 3) {
			t.Errorf("policy %d is paused: %t, %q", i, paused, r.Policies[i].PausedBecause)
		}
	}
	if !strings.Contains(r.HostFile, `"/run/s15"]`) || !strings.Contains(r.HostFile, `"ns-15"]`) {
		t.Errorf("the host's file does not end with the 16th:\n%s", r.HostFile)
	}
}

// The directory that contains the sentinel is that of the innermost mount.
func TestSentinelMounts(t *testing.T) {
	mounts := map[string]string{"/sentinel": "/var/run", "/sentinel/sub": "/opt", "/other": "/srv"}
	for _, tc := range []struct{ file, order, want string }{
		{"/sentinel/x", "/other /sentinel", "/run/x"},
		{"/sentinel/x", "/sentinel /other", "/run/x"},
		{"/sentinel/sub/x", "/sentinel /sentinel/sub", "/opt/x"},
		{"/sentinel/sub/x", "/sentinel/sub /sentinel", "/opt/x"},
		{"/elsewhere/x", "/sentinel /other", "/elsewhere/x"},
	} {
		w := kuredSet(nil, nil)
		d := newDraft(&Input{}, &hostFile{}, &w)
		d.program = &w.Template.Spec.Containers[0]
		d.program.VolumeMounts, w.Template.Spec.Volumes = nil, nil
		for at := range strings.FieldsSeq(tc.order) {
			d.program.VolumeMounts = append(d.program.VolumeMounts, corev1.VolumeMount{Name: at, MountPath: at})
			d.template.Spec.Volumes = append(d.template.Spec.Volumes, corev1.Volume{Name: at, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: mounts[at]}}})
		}
		if _, err := useSentinel(d, []string{tc.file}); err != nil || d.kured.sentinel != tc.want {
			t.Errorf("%+v: %s, %v", tc, d.kured.sentinel, err)
		}
	}
}

// Of FLUO's locks, only those that name a holder and a time are held.
func TestFLUOLocks(t *testing.T) {
	lease := func(change func(*coordinationv1.LeaseSpec)) coordinationv1.Lease {
		l := coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: new("pod"), LeaseDurationSeconds: new(int32(90)), RenewTime: new(metav1.NewMicroTime(now))}}
		change(&l.Spec)
		return l
	}
	record := `{"holderIdentity":"pod","leaseDurationSeconds":90,"renewTime":"2026-11-23T08:00:00Z"}`
	locked := func(value string) corev1.ConfigMap {
		return corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"control-plane.alpha.kubernetes.io/leader": value}}}
	}
	r := &Result{}
	fluoLock(r, &Input{Now: now, Leases: []coordinationv1.Lease{
		lease(func(l *coordinationv1.LeaseSpec) { l.HolderIdentity = nil }),
		lease(func(l *coordinationv1.LeaseSpec) { l.HolderIdentity = new("") }),
		lease(func(l *coordinationv1.LeaseSpec) { l.RenewTime = nil }),
		lease(func(l *coordinationv1.LeaseSpec) { l.LeaseDurationSeconds = nil }),
		lease(func(*coordinationv1.LeaseSpec) {}),
	}, ConfigMaps: []corev1.ConfigMap{
		locked(""), locked("{"), locked(strings.Replace(record, "pod", "", 1)),
		locked(record + strings.Repeat(" ", maxArgument-len(record)+1)),
		locked(record + strings.Repeat(" ", maxArgument-len(record))),
	}})
	if len(r.Active) != 2 || len(r.Left) != 10 {
		t.Errorf("active %+v, left %+v", r.Active, r.Left)
	}
	entry := lockEntry{Created: now.Add(-time.Minute), TTL: time.Minute}
	if entry.held(now) || !entry.held(now.Add(-1)) {
		t.Error("a lock is held until its time is over, and not after")
	}
	if holder := manualLock(`{"nodeID":"gone","created":"2026-11-23T07:00:00Z","TTL":60000000000}`, &Input{Now: now}); holder != "" {
		t.Errorf("a lock that has expired is held by %s", holder)
	}
}

// Lines have 80 columns at most, and what is too long for one goes to the next.
func TestItem(t *testing.T) {
	var b strings.Builder
	item(&b, "- ", strings.Repeat("é", 38)+" "+strings.Repeat("b", 39)+" c", "run it")
	item(&b, "10. ", strings.Repeat("a", 38)+" "+strings.Repeat("b", 38), "")
	want := "- " + strings.Repeat("é", 38) + " " + strings.Repeat("b", 39) + "\n  c\n    run it\n" +
		"10. " + strings.Repeat("a", 38) + "\n    " + strings.Repeat("b", 38) + "\n"
	if b.String() != want {
		t.Errorf("got\n%s\nexpected\n%s", b.String(), want)
	}
	for n, want := range map[int]string{0: "", 100: "- x\n", 101: "- and 1 more\n", 103: "- and 3 more\n"} {
		b.Reset()
		list(&b, "T", slices.Repeat([]Todo{{"x", ""}}, n))
		if got := b.String(); !strings.HasSuffix(got, want) || (n == 0) != (got == "") || strings.Count(got, "- x\n") != min(n, 100) {
			t.Errorf("%d items:\n%s", n, got)
		}
	}
}

// The whole report, down to its steps.
func TestReport(t *testing.T) {
	r := &Result{
		Tool: Kured, HostFile: "a = 1\n",
		Notes:   []Note{{"--a", Carried, "x"}, {"--b", Decide, "y"}, {"--c", Carried, "x"}},
		Active:  []Todo{{"pod a/b exists", ""}},
		Changes: []Change{{Node: "n1", Labels: []string{"l"}}},
		Left:    []Todo{{"DaemonSet a/b", "kubectl delete"}},
	}
	text, err := r.Text()
	must(t, err)
	report, steps, _ := strings.Cut(text, "\n== Steps ==\n")
	want := `From kured to lockkeeper. Nothing was changed.
No workload of kured was found, so there are no settings to carry over.

== /etc/lockkeeper/lockkeeper.toml on each host ==
a = 1

== Not carried over; paused until you decide ==
- --b: y

== Carried over ==
- --a, --c: x

== kured is active: --apply refuses ==
- pod a/b exists

== What --apply changes ==
- n1: remove the labels l

== Left to you ==
- DaemonSet a/b
    kubectl delete
`
	if report != want {
		t.Errorf("got\n%s\nexpected\n%s", report, want)
	}
	for tool, stop := range map[Tool]string{
		Kured:     "3. Wait until no node holds kured's lock.",
		FLUO:      "3. Wait until no node has reboot-ok=true.",
		Locksmith: "3. On each host, stop locksmith,",
	} {
		r := &Result{Tool: tool, Policies: []Policy{{Source: "x"}}}
		text, err := r.Text()
		must(t, err)
		if tool == Kured && !strings.Contains(text, steps) {
			t.Errorf("the steps are not\n%s", steps)
		}
		found, making := strings.Contains(text, "1. Save the policies and the host's file"), strings.LastIndex(text, " -o toml >")
		if stops := strings.Index(text, "\n"+stop); tool != Locksmith && (!found || making > stops) {
			t.Errorf("%s: the host's file is not saved before the workloads, of which it is made, may be deleted:\n%s", tool, text)
		}
		if strings.Contains(text, "No workload") || strings.Contains(text, "lockkeeper.toml on each host ==") || !strings.Contains(text, "\n"+stop) || !strings.Contains(text, "\n# From x.\n") {
			t.Errorf("%s:\n%s", tool, text)
		}
	}
}

// The windows of the other tools, at the bounds of what they accept.
func TestWindows(t *testing.T) {
	minutes := func(n time.Duration) time.Duration { return n * time.Minute }
	friday := daySet{time.Friday: true}
	for _, tc := range []struct {
		days       daySet
		start, end time.Duration
		want       string // the start and the length of each window, and the note; or the error
	}{
		{everyDay, 0, day, ""},
		{everyDay, minutes(1), day, "00:01 23h59m"},
		{everyDay, minutes(10 * 60), minutes(14 * 60), "10:00 4h"},
		{friday, 0, day, "00:00 24h"},
		{everyDay, 0, minutes(10), "00:00 10m"},
		{everyDay, 0, minutes(9), "the window is shorter than 10m, the shortest that lockkeeper has"},
		{everyDay, minutes(23 * 60), minutes(60), "23:00 2h"},
		{friday, minutes(23 * 60), minutes(60), "23:00 1h, 00:00 1h, each of the days has both ends of the night, as with kured"},
		{friday, minutes(23 * 60), 0, "23:00 1h, each of the days has both ends of the night, as with kured"},
		{friday, minutes(23*60 + 51), minutes(10), "00:00 10m, the 9m from 23:51 on are left out: a window lasts 10m at least"},
		{friday, minutes(23*60 + 50), minutes(9), "23:50 10m, the 9m from 00:00 on are left out: a window lasts 10m at least"},
		{daySet{}, 0, day, "no day is left on which kured reboots"},
		{everyDay, minutes(60), minutes(60), "kured's window lasts one second, and a window lasts 10m at least"},
	} {
		ws, note, err := kuredWindows(tc.days, tc.start, tc.end, "UTC")
		var got []string
		for _, w := range ws {
			got = append(got, w.Start+" "+v1alpha1.ShortDuration(w.Duration.Duration))
		}
		if note != "" {
			got = append(got, note)
		}
		if err != nil {
			got = append(got, err.Error())
		}
		if got := strings.Join(got, ", "); got != tc.want {
			t.Errorf("kured, %v to %v: %s, expected %s", tc.start, tc.end, got, tc.want)
		}
	}
	for _, tc := range []struct {
		text  string
		isEnd bool
		want  string
	}{
		{"22:30", false, "22h30m0s"}, {"22:30:00", false, "22h30m0s"}, {"22:30:01", false, "22h31m0s"}, {"22:30:59", true, "22h31m0s"}, {"22:30:58", true, "22h30m0s"},
		{"23:59:59", true, "24h0m0s"}, {"3pm", false, "15h0m0s"}, {"24:00", false, "it is not a time that kured accepts, such as 22:00 or 10pm"},
	} {
		at, err := kuredTime(tc.text, tc.isEnd)
		got := at.String()
		if err != nil {
			got = err.Error()
		}
		if got != tc.want {
			t.Errorf("kured, %s, the end %t: %s, expected %s", tc.text, tc.isEnd, got, tc.want)
		}
	}
	for _, tc := range []struct{ start, length, want string }{
		{"00:00", "10m", "daily 00:00 10m"},
		{"23:59", "24h", "daily 23:59 24h"},
		{"4:05", "1h0.9s", "daily 04:05 1h"},
		{"00:00", "24h1s", "daily 00:00 12h1m, daily 12:01 11h59m1s"},
		{"Thu 23:00", "26h", "Thu 23:00 13h, Fri 12:00 13h"},
		{"Sat 23:00", "26h", "Sat 23:00 13h, Sun 12:00 13h"},
		{"00:00", "9m59s", "the window lasts 9m59s, and the shortest that lockkeeper has is 10m"},
		{"00:00", "0s", "the window lasts 0s, and the shortest that lockkeeper has is 10m"},
		{"00:00", "-1s", `"-1s" is not a duration such as 1h30m`},
		{"00:00", "x", `"x" is not a duration such as 1h30m`},
		{"24:00", "1h", `"24:00" is not a time of the day, 00:00 to 23:59`},
		{"-1:00", "1h", `"-1:00" is not a time of the day, 00:00 to 23:59`},
		{"0:60", "1h", `"0:60" is not a time of the day, 00:00 to 23:59`},
		{"0:-1", "1h", `"0:-1" is not a time of the day, 00:00 to 23:59`},
		{"4", "1h", `"4" is not a time of the day, 00:00 to 23:59`},
		{"x", "1h", `"x" is not a time of the day, 00:00 to 23:59`},
		{"Thursday 4:00", "1h", `"Thursday" is not a day such as Thu`},
		{"Xyz 4:00", "1h", `"Xyz" is not a day such as Thu`},
		{"", "1h", `"" is not a start such as 14:00 or Thu 23:00`},
		{"on Thu 4:00", "1h", `"on Thu 4:00" is not a start such as 14:00 or Thu 23:00`},
	} {
		p, err := parsePeriodic(tc.start, tc.length)
		var got []string
		if err == nil {
			ws, wrong := p.windows("UTC")
			for _, w := range ws {
				days := "daily"
				if len(w.Days) > 0 {
					days = fmt.Sprint(w.Days[0])
				}
				got = append(got, days+" "+w.Start+" "+v1alpha1.ShortDuration(w.Duration.Duration))
			}
			err = wrong
		}
		if err != nil {
			got = append(got, err.Error())
		}
		if got := strings.Join(got, ", "); got != tc.want {
			t.Errorf("%q for %s: %s, expected %s", tc.start, tc.length, got, tc.want)
		}
	}
}

// The settings are in the order of the program's list, each once, and an empty variable or a
// value that is too large does not hide the others.
func TestRead(t *testing.T) {
	largest := strings.Repeat("x", maxArgument)
	c := &corev1.Container{
		Command: []string{"update-operator", "--agent-image-repo=" + largest, "--kubeconfig=" + largest + "x", "--reboot-window-start=1:00"},
		Env: []corev1.EnvVar{{Name: "UPDATE_OPERATOR_REBOOT_WINDOW_START", Value: "22:00"}, {Name: "UPDATE_OPERATOR_V", Value: ""}, {Name: "UPDATE_OPERATOR_VMODULE", Value: largest},
			{Name: "UPDATE_OPERATOR_REBOOT_WINDOW_LENGTH", Value: largest + "x"}},
	}
	all, _ := operator.read(c)
	var got []string
	for _, g := range all {
		got = append(got, fmt.Sprintf("%s %d %s", g.setting.Name, len(strings.Join(g.values, "")), g.unread))
	}
	want := []string{"reboot-window-start 4 ", "reboot-window-length 0 the value has more than 8192 bytes", "kubeconfig 0 the value has more than 8192 bytes", "agent-image-repo 8192 ", "vmodule 8192 "}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nexpected\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
