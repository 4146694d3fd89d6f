package forecast

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func TestParseChange(t *testing.T) {
	for text, want := range map[string]struct {
		change v1alpha1.Change
		wrong  string // what the error says
	}{
		"file:/etc/a,b:c":                {v1alpha1.Change{Source: v1alpha1.SourceFile, Name: "/etc/a,b:c"}, ""},
		"unit:getty@tty1.service":        {v1alpha1.Change{Source: v1alpha1.SourceUnit, Name: "getty@tty1.service"}, ""},
		"sentinel:/run/reboot-required":  {v1alpha1.Change{Source: v1alpha1.SourceSentinel, Name: "/run/reboot-required"}, ""},
		"os":                             {v1alpha1.Change{Source: v1alpha1.SourceOSUpdate}, ""},
		"os:4230.1.0":                    {v1alpha1.Change{Source: v1alpha1.SourceOSUpdate, Version: "4230.1.0"}, ""},
		"request":                        {v1alpha1.Change{Source: v1alpha1.SourceRequest}, ""},
		"":                               {wrong: `"", expected file:/etc/…, unit:NAME, sentinel:/run/…, os, os:VERSION, request or fleetlock`},
		"File:/etc/x":                    {wrong: `"File:/etc/x", expected file:/etc/…, unit:NAME, sentinel:/run/…, os, os:VERSION, request or fleetlock`},
		"/etc/x":                         {wrong: `"/etc/x", expected file:/etc/…, unit:NAME, sentinel:/run/…, os, os:VERSION, request or fleetlock`},
		"file:":                          {wrong: `"file:", expected an absolute path, as in file:/etc/containerd/config.toml`},
		"file:etc/x":                     {wrong: `"file:etc/x", expected an absolute path, as in file:/etc/containerd/config.toml`},
		"file:/etc/x/":                   {wrong: `"file:/etc/x/", expected a clean path: file:/etc/x`},
		"sentinel:run":                   {wrong: `"sentinel:run", expected an absolute path, as in sentinel:/run/reboot-required`},
		"sentinel:/run/../x":             {wrong: `"sentinel:/run/../x", expected a clean path: sentinel:/x`},
		"unit":                           {wrong: `"unit", expected a unit's full name, as in unit:containerd.service (no type of unit at its end)`},
		"unit:a@.service":                {wrong: `"unit:a@.service", expected a unit's full name, as in unit:containerd.service (a template; name an instance of it)`},
		"os:":                            {wrong: `"os:", expected os, or os:VERSION with a version of at most 128 bytes`},
		"os:" + strings.Repeat("1", 128): {v1alpha1.Change{Source: v1alpha1.SourceOSUpdate, Version: strings.Repeat("1", 128)}, ""},
		"os:" + strings.Repeat("1", 129): {wrong: `"os:` + strings.Repeat("1", 129) + `", expected os, or os:VERSION with a version of at most 128 bytes`},
		"fleetlock":                      {v1alpha1.Change{Source: v1alpha1.SourceFleetLock}, ""},
		"fleetlock:worker":               {wrong: `"fleetlock:worker", expected fleetlock, with nothing after it`},
		"request:reboot":                 {wrong: `"request:reboot", expected request, with nothing after it`},
	} {
		change, err := ParseChange(text)
		if got := fmt.Sprint(err); change != want.change || got != "<nil>" && got != want.wrong || (err == nil) != (want.wrong == "") {
			t.Errorf("%s: %+v, %v, expected %+v, %s", text, change, err, want.change, want.wrong)
		}
	}
}

// idle is a node that is idle and wants nothing.
func idle(name string) turn.Node {
	return turn.Node{
		Name: name, UID: "uid-" + name, BootID: "boot", Ready: true, Created: noon.Add(-24 * time.Hour),
		Keys: v1alpha1.Keys{State: v1alpha1.StateIdle, Wants: v1alpha1.WantsNothing, Host: &v1alpha1.Host{
			Protocol: v1alpha1.Protocol, NodeUID: "uid-" + name, BootID: "boot", BootTime: noon.Add(-12 * time.Hour), Managed: true}},
	}
}

var anUpdate = []v1alpha1.Change{{Source: v1alpha1.SourceOSUpdate, Version: "2"}}

func wanting(name string) turn.Node {
	n := idle(name)
	n.Wants, n.Host.Drains, n.Host.Changes = v1alpha1.WantsReboot, true, anUpdate
	return n
}

// What of two decisions is spared must not be seen: each verdict is the one that is
// come to when the changes come to that node alone.
func TestNodesAreJudgedAsIfAlone(t *testing.T) {
	goes, budget := 0, 0
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 7))
		p, observed := policy.Default(), policy.Default()
		p.MaxUnavailable.Number, p.Name = 1+r.IntN(3), "acts"
		observed.Name, observed.Observe, observed.Priority = "observes", true, -5
		s := rollout.Snapshot{Now: noon, Policies: policy.NewSet(p)}
		obj := &v1alpha1.DisruptionPolicy{Spec: v1alpha1.DefaultPolicySpec()}
		obj.Name, obj.Spec.Priority, obj.Spec.NodeSelector.MatchLabels = "some", 10, map[string]string{"pool": "some"}
		obj.Spec.Rollout.MaxUnavailable.IntVal = int32(1 + r.IntN(2))
		obj.Spec.Rollout.MaxUnavailableTotal = new(intstr.FromInt32(int32(1 + r.IntN(3))))
		switch r.IntN(3) {
		case 0:
			s.Policies = policy.NewSet(observed)
		case 1:
			s.Policies = policy.NewSet(p, policy.Compile(obj, time.LoadLocation))
		}
		var names []string
		for i := range 2 + r.IntN(12) {
			n := idle(fmt.Sprintf("n%d", i))
			turnedBack := seed%3 == 0 && r.IntN(2) == 0
			if seed%2 == 0 && (turnedBack || r.IntN(5) == 0) {
				n = wanting(n.Name)
			}
			if r.IntN(2) == 0 {
				n.Labels = map[string]string{"pool": "some"}
			}
			n.Host.BootTime = n.Host.BootTime.Add(time.Duration(r.IntN(5)) * time.Minute)
			n.Unschedulable, n.ControlPlane, n.Ready = r.IntN(6) == 0, r.IntN(4) == 0, r.IntN(9) > 0
			if turnedBack {
				n.Last = &v1alpha1.Last{Turn: "t0", Result: v1alpha1.ResultBackedOut, End: noon.Add(-time.Hour), Changes: anUpdate, NotBefore: new(noon.Add(time.Duration(r.IntN(60)-50) * time.Minute))}
			}
			s.Nodes, names = append(s.Nodes, n), append(names, n.Name)
		}
		asked := []v1alpha1.Change{{Source: v1alpha1.SourceRequest}}
		if r.IntN(2) == 0 {
			asked = anUpdate
		}
		all := slices.Clone(names)
		r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		names = names[:1+r.IntN(len(names))]
		f := Ask(Input{Snapshot: s, Names: names, Asked: asked}).Answer(Pods{})
		for _, g := range f.Groups {
			for _, n := range g.Nodes {
				one := Ask(Input{Snapshot: s, Names: []string{n.Name}, Asked: asked}).Answer(Pods{})
				if alone := one.Groups[0].Answer; !reflect.DeepEqual(g.Answer, alone) {
					t.Fatalf("seed %d, %s:\n%+v\nalone\n%+v", seed, n.Name, g.Answer, alone)
				}
				// And by a decision that knows nothing of forecasts.
				by := rollout.Snapshot{Now: s.Now, Policies: s.Policies, Nodes: slices.Clone(s.Nodes)}
				i := slices.Index(all, n.Name)
				h := *by.Nodes[i].Host
				if h.Drains = true; !slices.Contains(h.Changes, asked[0]) {
					h.Changes = append(slices.Clone(h.Changes), asked...)
				}
				by.Nodes[i].Wants, by.Nodes[i].Host, by.Nodes[i].Request = v1alpha1.WantsReboot, &h, &v1alpha1.Request{Action: "reboot"}
				out := rollout.Decide(by)
				if v := verdictOf(&out, n.Name); v.Held != g.Held || (g.Outcome == Goes) != (v.Move != nil && v.Move.Disturbs()) {
					t.Fatalf("seed %d, %s: %s %s, and decided was %+v", seed, n.Name, g.Outcome, g.Held, v)
				}
				switch {
				case g.Outcome == Goes:
					goes++
				case g.Held == v1alpha1.ReasonBudget:
					budget++
				}
			}
		}
	}
	if goes < 100 || budget < 100 {
		t.Errorf("%d that would go, and %d held by a budget: too few to have seen much", goes, budget)
	}
}

// The order of the queue is the policy's, and each policy has its own. Nodes wait for
// the slots of those before them, and for the next window that a turn fits in. While a
// node that is not Ready takes the only slot, it is not known how long.
func TestQueue(t *testing.T) {
	pool := func(name, pool string, n int, spec func(*v1alpha1.DisruptionPolicySpec)) policy.Policy {
		obj := &v1alpha1.DisruptionPolicy{Spec: v1alpha1.DefaultPolicySpec()}
		obj.Name, obj.Spec.NodeSelector.MatchLabels = name, map[string]string{"pool": pool}
		obj.Spec.Rollout.MaxUnavailable.IntVal = int32(n)
		spec(&obj.Spec)
		return policy.Compile(obj, time.LoadLocation)
	}
	afternoon := func(s *v1alpha1.DisruptionPolicySpec) {
		s.Rollout.Settle.Duration, s.Rollout.ExpectedDuration.Duration = 5*time.Minute, 40*time.Minute
		s.Rollout.Windows = []v1alpha1.Window{{Start: "14:00", Duration: metav1.Duration{Duration: 90 * time.Minute}, TimeZone: "UTC"}}
	}
	s := rollout.Snapshot{Now: noon, Policies: policy.NewSet(
		pool("a", "a", 2, func(*v1alpha1.DisruptionPolicySpec) {}),
		pool("b", "b", 1, afternoon), pool("c", "c", 1, afternoon))}
	add := func(n turn.Node, pool string) {
		n.Labels = map[string]string{"pool": pool}
		s.Nodes = append(s.Nodes, n)
	}
	for _, name := range []string{"a5", "a3", "a1", "a4", "a2"} {
		add(idle(name), "a")
	}
	add(wanting("a0"), "a")
	for _, name := range []string{"b2", "b1", "b3"} {
		add(idle(name), "b")
	}
	for _, name := range []string{"c2", "c1", "c3"} {
		add(idle(name), "c")
	}
	sick := idle("b0")
	sick.Ready = false
	add(sick, "b")
	for _, stopped := range []bool{false, true} {
		s.Stopped = stopped
		f := Ask(Input{Snapshot: s, Names: []string{"a1", "a2", "a3", "a4", "a5", "b0", "b1", "b2", "b3", "c1", "c2", "c3"}, Asked: []v1alpha1.Change{{Source: v1alpha1.SourceRequest}}}).Answer(Pods{})
		got := map[string]string{}
		for _, g := range f.Groups {
			for _, n := range g.Nodes {
				switch got[n.Name] = "-"; {
				case n.BeginsIn != nil:
					got[n.Name] = fmt.Sprintf("%d, %v", *n.Ahead, n.BeginsIn.Duration)
				case n.Ahead != nil:
					got[n.Name] = fmt.Sprintf("%d, not known", *n.Ahead)
				}
			}
		}
		want := map[string]string{
			"a1": "1, 0s", "a2": "2, 16m0s", "a3": "3, 16m0s", "a4": "4, 32m0s", "a5": "5, 32m0s", // a0 is before them
			"b0": "-", "b1": "0, not known", "b2": "1, not known", "b3": "2, not known",
			"c1": "0, 2h0m0s", "c2": "1, 2h45m0s", "c3": "2, 26h0m0s", // the third would end after 15:30
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("stopped %t: got\n%v\nexpected\n%v", stopped, got, want)
		}
	}
}

// What a node's own intents and records say of it.
func TestOutcomes(t *testing.T) {
	soon := &v1alpha1.Intent{Reason: "disk", Until: new(noon.Add(time.Hour))}
	over := &v1alpha1.Intent{Reason: "disk", Until: new(noon)}
	no := false
	for name, tc := range map[string]struct {
		change  func(*turn.Node)
		pending Outcome // without changes
		asked   Outcome // if a reboot is requested
		held    v1alpha1.Reason
	}{
		"idle":               {func(*turn.Node) {}, Nothing, Goes, ""},
		"wants a reboot":     {func(n *turn.Node) { *n = wanting(n.Name) }, Goes, Goes, ""},
		"being paused":       {func(n *turn.Node) { n.Paused = soon }, Nothing, Held, v1alpha1.ReasonPaused},
		"paused":             {func(n *turn.Node) { n.Paused, n.State = soon, v1alpha1.StatePaused }, Nothing, Held, v1alpha1.ReasonPaused},
		"its pause is over":  {func(n *turn.Node) { n.Paused, n.State = over, v1alpha1.StatePaused }, Nothing, Goes, ""},
		"detached":           {func(n *turn.Node) { n.Detached, n.State = soon, v1alpha1.StateAbsent }, NotManaged, NotManaged, ""},
		"detached until now": {func(n *turn.Node) { n.Detached, n.State = over, v1alpha1.StateAbsent }, Nothing, Goes, ""},
		"not managed":        {func(n *turn.Node) { n.Managed = &no }, NotManaged, NotManaged, ""},
		"by its host's file": {func(n *turn.Node) { n.Host.Managed = false }, NotManaged, NotManaged, ""},
		"to be taken in":     {func(n *turn.Node) { n.State = v1alpha1.StateAbsent }, Nothing, Goes, ""},
		"never heard of":     {func(n *turn.Node) { n.State, n.Wants, n.Host = v1alpha1.StateAbsent, "", nil }, NotManaged, Held, v1alpha1.ReasonHostSilent},
		"silent":             {func(n *turn.Node) { n.BootID = "another" }, Held, Held, v1alpha1.ReasonHostSilent},
		"marked":             {func(n *turn.Node) { n.Mark = true }, Nothing, Held, v1alpha1.ReasonOwnCordonLeft},
		"a veto of its own":  {func(n *turn.Node) { n.Host.Veto = v1alpha1.ReasonOtherManager }, Nothing, Held, v1alpha1.ReasonOtherManager},
		"another protocol":   {func(n *turn.Node) { n.Host.Protocol = v1alpha1.Protocol + 1 }, Nothing, Held, v1alpha1.ReasonVersionSkew},
		"in a turn":          {func(n *turn.Node) { *n = draining(n.Name) }, InTurn, InTurn, ""},
		"before its cordon":  {func(n *turn.Node) { *n = draining(n.Name); n.State, n.Mark = v1alpha1.StateBeforeDrain, false }, InTurn, InTurn, ""},
		"held back before":   {func(n *turn.Node) { *n = wanting(n.Name); n.Host.Veto = v1alpha1.ReasonHeldBack }, Held, Goes, ""},
	} {
		n := idle("n1")
		tc.change(&n)
		s := rollout.Snapshot{Now: noon, Policies: policy.Set{policy.Default()}, Nodes: []turn.Node{n, idle("n2")}}
		pending := Ask(Input{Snapshot: s, Names: []string{"n1"}}).Answer(Pods{}).Groups[0]
		f := Ask(Input{Snapshot: s, Names: []string{"n1"}, Asked: []v1alpha1.Change{{Source: v1alpha1.SourceRequest}}}).Answer(Pods{})
		asked := f.Groups[0]
		if pending.Outcome != tc.pending || asked.Outcome != tc.asked || asked.Held != tc.held {
			t.Errorf("%s: %s; asked %s, held %q (%s), expected %s; %s, %q", name, pending.Outcome, asked.Outcome, asked.Held, asked.Why, tc.pending, tc.asked, tc.held)
		}
		if f.Held != (tc.held != "") {
			t.Errorf("%s: held %t", name, f.Held)
		}
		if queued := asked.Nodes[0].Ahead != nil; queued != (tc.asked == Goes) {
			t.Errorf("%s: %s, in the queue %t", name, asked.Outcome, queued)
		}
	}
}

// Why nodes do not go.
func TestWhy(t *testing.T) {
	no := false
	for name, tc := range map[string]struct {
		change func(*turn.Node)
		want   string
	}{
		"idle":               {func(*turn.Node) {}, ""},
		"not managed":        {func(n *turn.Node) { n.Managed = &no }, "lockkeeper.dev/managed=false"},
		"managed":            {func(n *turn.Node) { n.Managed, n.State, n.Host = new(true), v1alpha1.StateAbsent, nil }, "lockkeeper has never reported from this node"},
		"detached":           {func(n *turn.Node) { n.Detached = &v1alpha1.Intent{Reason: "disk"} }, "it is detached"},
		"by its host's file": {func(n *turn.Node) { n.Host.Managed = false }, "managed_by_default is false in its host's file"},
		"paused":             {func(n *turn.Node) { *n = wanting(n.Name); n.Paused = &v1alpha1.Intent{Reason: "disk"} }, "disk"},
		"marked":             {func(n *turn.Node) { *n = wanting(n.Name); n.Mark = true }, "a node that is in no turn has a cordon of lockkeeper's"},
	} {
		n := idle("n1")
		tc.change(&n)
		s := rollout.Snapshot{Now: noon, Policies: policy.Set{policy.Default()}, Nodes: []turn.Node{n, idle("n2")}}
		if g := Ask(Input{Snapshot: s, Names: []string{"n1"}}).Answer(Pods{}).Groups[0]; g.Why != tc.want {
			t.Errorf("%s: %s because of %q, expected %q", name, g.Outcome, g.Why, tc.want)
		}
	}
}

func draining(name string) turn.Node {
	n := wanting(name)
	n.State, n.Turn, n.Mark, n.Unschedulable = v1alpha1.StateDraining, "t1", true, true
	n.Grant = &v1alpha1.Grant{Turn: "t1", Epoch: "e1", NodeUID: n.UID, BootID: n.BootID, Wants: n.Wants, Drains: true, Changes: anUpdate,
		Policy: "built-in", Terms: policy.Default().Terms, StartedAt: noon.Add(-time.Minute), StageAt: noon.Add(-time.Minute)}
	n.Ack = v1alpha1.Ack{Turn: "t1", BootID: n.BootID, State: n.State, Report: v1alpha1.ReportCommitted}
	return n
}

// What is asked about takes the place of what is pending from the same source.
func TestChangesBesidePending(t *testing.T) {
	file := func(version string) v1alpha1.Change {
		return v1alpha1.Change{Source: v1alpha1.SourceFile, Name: "/etc/x", Version: version}
	}
	p := policy.Default()
	p.Rules = []v1alpha1.Rule{{Source: v1alpha1.SourceFile, Path: "/etc", Actions: []v1alpha1.Action{{Type: v1alpha1.ActionRestart, Unit: "a.service"}}}}
	n := idle("n1")
	n.Host.Changes, n.Wants, n.Host.Drains = []v1alpha1.Change{file("01"), {Source: v1alpha1.SourceOSUpdate, Version: "2"}}, v1alpha1.WantsReboot, true
	s := rollout.Snapshot{Now: noon, Policies: policy.Set{p}, Nodes: []turn.Node{n, idle("n2")}}
	for _, tc := range []struct{ asked, want string }{
		{"", "File /etc/x@01 pending, OSUpdate@2 pending"},
		{"os", "OSUpdate@2 pending, File /etc/x@01 pending"},
		{"os:2", "OSUpdate@2 pending, File /etc/x@01 pending"},
		{"os:3", "OSUpdate@3, File /etc/x@01 pending"},
		{"file:/etc/x request", "File /etc/x@01 pending, Request, OSUpdate@2 pending"},
		{"file:/etc/y", "File /etc/y, File /etc/x@01 pending, OSUpdate@2 pending"},
	} {
		in := Input{Snapshot: s, Names: []string{"n1"}}
		for text := range strings.FieldsSeq(tc.asked) {
			change, err := ParseChange(text)
			if err != nil {
				t.Fatal(err)
			}
			in.Asked = append(in.Asked, change)
		}
		var got []string
		for _, c := range Ask(in).Answer(Pods{}).Groups[0].Changes {
			word := c.Change.String()
			if c.Pending {
				word += " pending"
			}
			got = append(got, word)
		}
		if got := strings.Join(got, ", "); got != tc.want {
			t.Errorf("%q: %s, expected %s", tc.asked, got, tc.want)
		}
	}
}

// Whom the API server's eviction asks, and what it would answer.
func TestBudgets(t *testing.T) {
	one := func(change ...func(*corev1.Pod)) []*corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p", Labels: map[string]string{"app": "x"}}}
		p.Status.Phase = corev1.PodRunning
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		for _, c := range change {
			c(p)
		}
		return []*corev1.Pod{Strip(p)}
	}
	unready := func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }
	budget := func(allowed, healthy, desired int32, change ...func(*policyv1.PodDisruptionBudget)) policyv1.PodDisruptionBudget {
		b := policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}}
		b.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}
		b.Status = policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed, CurrentHealthy: healthy, DesiredHealthy: desired}
		for _, c := range change {
			c(&b)
		}
		return b
	}
	named := func(name string) func(*policyv1.PodDisruptionBudget) {
		return func(b *policyv1.PodDisruptionBudget) { b.Name = name }
	}
	always := func(b *policyv1.PodDisruptionBudget) {
		b.Spec.UnhealthyPodEvictionPolicy = new(policyv1.AlwaysAllow)
	}
	for name, tc := range map[string]struct {
		pods    []*corev1.Pod
		budgets []policyv1.PodDisruptionBudget
		blocked string
	}{
		"no budget":            {one(), nil, ""},
		"it allows one":        {one(), []policyv1.PodDisruptionBudget{budget(1, 3, 2)}, ""},
		"it allows none":       {one(), []policyv1.PodDisruptionBudget{budget(0, 2, 2)}, "a/b: allows no disruption now: 2 healthy, 2 needed"},
		"in another namespace": {one(), []policyv1.PodDisruptionBudget{budget(0, 2, 2, func(b *policyv1.PodDisruptionBudget) { b.Namespace = "c" })}, ""},
		"for other pods":       {one(func(p *corev1.Pod) { p.Labels["app"] = "y" }), []policyv1.PodDisruptionBudget{budget(0, 2, 2)}, ""},
		"an empty selector":    {one(), []policyv1.PodDisruptionBudget{budget(0, 2, 2, func(b *policyv1.PodDisruptionBudget) { b.Spec.Selector = &metav1.LabelSelector{} })}, "a/b: allows no disruption now: 2 healthy, 2 needed"},
		"no selector":          {one(), []policyv1.PodDisruptionBudget{budget(0, 2, 2, func(b *policyv1.PodDisruptionBudget) { b.Spec.Selector = nil })}, ""},
		"a pending pod":        {one(func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }), []policyv1.PodDisruptionBudget{budget(0, 2, 2)}, ""},
		"a pod that is not Ready, and enough are": {one(unready), []policyv1.PodDisruptionBudget{budget(0, 2, 2)}, ""},
		"and too few are":                         {one(unready), []policyv1.PodDisruptionBudget{budget(0, 1, 2)}, "a/b: allows no disruption now: 1 healthy, 2 needed"},
		"and too few, AlwaysAllow":                {one(unready), []policyv1.PodDisruptionBudget{budget(0, 1, 2, always)}, ""},
		"and none is needed":                      {one(unready), []policyv1.PodDisruptionBudget{budget(0, 0, 0)}, "a/b: allows no disruption now: 0 healthy, 0 needed"},
		"AlwaysAllow of a healthy pod":            {one(), []policyv1.PodDisruptionBudget{budget(0, 1, 2, always)}, "a/b: allows no disruption now: 1 healthy, 2 needed"},
		"a status that is old":                    {one(), []policyv1.PodDisruptionBudget{budget(1, 3, 2, func(b *policyv1.PodDisruptionBudget) { b.Generation = 2; b.Status.ObservedGeneration = 1 })}, "a/b: its status is not up to date, so the API server puts evictions off"},
		"two budgets":                             {one(), []policyv1.PodDisruptionBudget{budget(1, 3, 2, named("c")), budget(1, 3, 2)}, "a/b a/c: the API server evicts no pod with more than one budget"},
		"two, of a pod that is not Ready":         {one(unready), []policyv1.PodDisruptionBudget{budget(1, 3, 2, named("c")), budget(1, 3, 2, always)}, "a/b a/c: the API server evicts no pod with more than one budget"},
	} {
		var n Node
		n.addDrain(v1alpha1.PodRules{}, tc.pods, read(tc.budgets))
		var got strings.Builder
		for _, o := range n.Blocking {
			got.WriteString(strings.Join(o.Budgets, " ") + ": " + o.Why)
		}
		if got.String() != tc.blocked || len(n.Evict) != 1 || len(n.Slowing) != 0 {
			t.Errorf("%s: %q, expected %q; %+v", name, got.String(), tc.blocked, n)
		}
	}
}

// Each pod is in its list, whatever the pods before it are, and a budget that allows fewer
// evictions than there are pods slows the drain.
func TestPods(t *testing.T) {
	pod := func(name string, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}}
		change(p)
		return Strip(p)
	}
	web := func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": "web"}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	pods := []*corev1.Pod{
		pod("e1", web), pod("e2", web), pod("e3", web),
		pod("d", func(p *corev1.Pod) { p.Labels = map[string]string{"app": "long"} }),
		pod("c", func(p *corev1.Pod) { p.Labels = map[string]string{"app": "long"} }),
		pod("b", func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.NewTime(noon)) }),
		pod("a", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
	}
	rules := v1alpha1.PodRules{Block: []v1alpha1.PodSelector{{Selector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "long"}}}}}
	names := func(pods []Pod) string {
		var all []string
		for _, p := range pods {
			all = append(all, p.Name)
		}
		return strings.Join(all, " ")
	}
	for allowed, want := range map[int32]string{1: "allows 1 disruption now: 3 healthy, 2 needed", 2: "allows 2 disruptions now: 3 healthy, 2 needed", 3: ""} {
		b := policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "web"}}
		b.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
		b.Status = policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed, CurrentHealthy: 3, DesiredHealthy: 2}
		var n Node
		n.addDrain(rules, pods, read([]policyv1.PodDisruptionBudget{b}))
		if got := names(n.Leave) + ", " + names(n.Wait) + ", " + names(n.Block) + ", " + names(n.Evict); got != "a/a, a/b, a/c a/d, a/e1 a/e2 a/e3" {
			t.Errorf("the pods that are left, waited for, blocking and evicted are %s", got)
		}
		var got strings.Builder
		for _, o := range n.Slowing {
			got.WriteString(o.Why)
		}
		if got.String() != want || len(n.Blocking) > 0 {
			t.Errorf("%d allowed: %q, blocking %v, expected %q", allowed, got.String(), n.Blocking, want)
		}
	}
}
