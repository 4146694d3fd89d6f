package virtual

import (
	"cmp"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

var shape = Shape{
	Hosts: []string{"n1", "n2", "n3"}, Coordinators: []string{"n1", "n2"}, Clients: []string{"n3"}, Length: 40 * time.Minute, Versions: []string{"2.0.0", "3.0.0"}, Hostile: true,
	Applies: true, Forces: true, Hooks: hookStages,
}

// TestPlansAreRepeatable: a seed makes one plan, whose text reads back as the same plan.
func TestPlansAreRepeatable(t *testing.T) {
	for seed := range uint64(200) {
		p := NewPlan(seed, shape)
		if again := NewPlan(seed, shape); p.String() != again.String() {
			t.Fatalf("seed %d makes two plans", seed)
		}
		parsed, err := Parse("# a comment\n\n" + p.String())
		if err != nil {
			t.Fatalf("seed %d: %v in\n%v", seed, err, p)
		}
		if parsed.String() != p.String() || parsed.Seed != seed || parsed.Length != shape.Length || !slices.Equal(parsed.Faults, p.Faults) {
			t.Fatalf("seed %d reads back as\n%v, expected\n%v", seed, parsed, p)
		}
	}
	if NewPlan(1, shape).String() == NewPlan(2, shape).String() {
		t.Error("two seeds make the same plan")
	}
}

// TestPlansHaveEveryKind: plans have the number of faults that they may have, and two hundred plans have every kind in each of its modes, and every class.
func TestPlansHaveEveryKind(t *testing.T) {
	seen, classes := map[Kind]map[string]bool{}, map[string]bool{}
	for seed := range uint64(200) {
		p := NewPlan(seed, shape)
		if n := len(p.Faults); n < minFaults+minOfClients || n >= maxFaults+mostAtOnce+maxOfClients+2 {
			t.Errorf("seed %d has %d faults", seed, n)
		}
		if !slices.IsSortedFunc(p.Faults, func(a, b Fault) int { return cmp.Compare(a.At.time(), b.At.time()) }) {
			t.Errorf("seed %d is not in the order of time", seed)
		}
		for _, f := range p.Faults {
			s := f.Kind.spec()
			if seen[f.Kind] == nil {
				seen[f.Kind] = map[string]bool{}
			}
			seen[f.Kind][f.Mode] = true
			classes[f.At.Class] = true
			switch {
			case f.For > s.most || f.For < s.least:
				t.Errorf("%v: its duration is not within %v and %v", f, s.least, s.most)
			case (f.On == "") != (s.cluster || s.request) && f.At.Process != "*":
				t.Errorf("%v: it happens to %q", f, f.On)
			case f.At.After > shape.Length:
				t.Errorf("%v: it happens after the end", f)
			case s.request && (f.At.N == 0 || f.At.After > 0):
				t.Errorf("%v: no request triggers it", f)
			case s.request && strings.HasPrefix(f.At.Class, "hook"):
				t.Errorf("%v: an event is no request", f)
			}
		}
	}
	for _, k := range kindNames() {
		s := k.spec()
		modes := s.modes
		if s.versioned {
			modes = shape.Versions
		}
		if seen[k] == nil {
			t.Errorf("no plan has the kind %s", k)
		}
		for _, m := range modes {
			if !seen[k][m] {
				t.Errorf("no plan has the mode %q of %s", m, k)
			}
		}
		if _, ok := acts[k]; ok == s.request {
			t.Errorf("%s happens to a request (%t) and is in acts (%t), expected one of the two", k, s.request, ok)
		}
		if a := acts[k]; a.end != nil && s.most == 0 || a.begin == nil && !s.request {
			t.Errorf("%s lasts, but has no duration, or nothing begins", k)
		}
	}
	for _, c := range slices.Concat(classesOfAll, classesOfClients) {
		if !classes[c.name] {
			t.Errorf("no fault is triggered by %s", c.name)
		}
	}
	harmless := shape
	harmless.Hostile, harmless.Clients = false, nil
	for _, f := range NewPlan(3, harmless).Faults {
		if s := f.Kind.spec(); s.hostile || s.client {
			t.Errorf("%v in a plan without attackers and clients", f)
		}
	}
}

// TestPlansFitFleets: nothing waits for a request or an event that the fleet's turns do not have.
func TestPlansFitFleets(t *testing.T) {
	for i, c := range []struct {
		shape   Shape
		without []string
	}{
		{Shape{}, []string{"restart", "hook", "host,delete,pods", "host,patch,nodes,ack,applying", "coordinator,patch,nodes,state,before-uncordon"}},
		{Shape{Applies: true}, []string{"hook", "host,patch,nodes,ack,before-reboot"}},
		{Shape{Forces: true, Hooks: []v1alpha1.State{v1alpha1.StateBeforeDrain}}, []string{"restart", "hook,before-reboot", "host,patch,nodes,ack,before-uncordon"}},
	} {
		c.shape.Hosts, c.shape.Coordinators, c.shape.Length, c.shape.Versions = shape.Hosts, shape.Coordinators, shape.Length, shape.Versions
		g := generator{Rand: rand.New(rand.NewPCG(1, 1)), shape: c.shape, weights: weights(func(k kind) bool { return !k.client })}
		for range 1000 {
			for _, f := range append(g.burst(), g.fault()) {
				for _, without := range c.without {
					if f.At.N > 0 && (matches(without, f.At.Class) || f.At.Next != "" && matches(without, f.At.Next)) {
						t.Errorf("%d: %v waits for %s", i, f, without)
					}
				}
			}
		}
	}
}

// TestAims: every sequence of faults that has to meet is a plan's, in each of its forms, and only an attacker's plans have a thief.
func TestAims(t *testing.T) {
	for _, hostile := range []bool{false, true} {
		g := generator{Rand: rand.New(rand.NewPCG(1, 1)), shape: shape}
		g.shape.Hostile = hostile
		seen := map[string]bool{}
		for range 500 {
			for _, f := range g.aimed() {
				seen[string(f.Kind)+" "+f.Mode] = true
				if f.At.N < 1 || f.At.N > 200 || f.On != "" && !slices.Contains(shape.Hosts, f.On) {
					t.Errorf("%v: its trigger or its host does not exist", f)
				}
			}
		}
		for _, want := range []string{"bus-slow 1s", "bus-slow 4s", "logind stall", "repeat second", "lost error", "watch-hang "} {
			if !seen[want] {
				t.Errorf("no sequence has %q", want)
			}
		}
		for _, mode := range []string{"grant-only", "grant-force", "grant-skip"} {
			if seen["thief "+mode] != hostile {
				t.Errorf("hostile %t: there is a thief with %s: %t", hostile, mode, !hostile)
			}
		}
	}
}

// TestParseRefuses: a text that is not a plan is refused, with its line.
func TestParseRefuses(t *testing.T) {
	const head = "plan seed=7 length=40m0s\n"
	for text, want := range map[string]string{
		"":                               "no plan",
		"30s kill n1\n":                  "line 1",
		"plan seed=x length=1s\n":        "line 1",
		head + "30s melt n1\n":           `unknown kind "melt"`,
		head + "30x kill n1\n":           "line 2",
		head + "30s\n":                   "expected a trigger and a kind",
		head + "n1#0:host kill n1\n":     "expected a duration or PROCESS#NUMBER:CLASS",
		head + "n1#1:host@x kill n1\n":   `unknown moment "x"`,
		head + "n1#1:host+x kill n1\n":   "line 2",
		head + "n1#1:host>host@x kill\n": `unknown moment "x"`,
		head + "n1#1:host+1s lost\n":     "happens to a request",
		head + "30s kill n1 often=3\n":   "expected a host, for=, mode= or times=",
		head + "30s logind n1 mode=x\n":  `logind has no mode "x"`,
	} {
		if p, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q reads as %v, %v; expected an error with %q", text, p, err, want)
		}
	}
}

// TestMatches: a class is one of a class that it begins with, part by part.
func TestMatches(t *testing.T) {
	for _, c := range []struct {
		wanted, class string
		want          bool
	}{
		{"host,patch,nodes", "host,patch,nodes", true},
		{"host,patch,nodes", "host,patch,nodes,ack,draining,done", true},
		{"host,patch,nodes", "host,patch,nodes/status", false},
		{"host,patch,nodes,ack", "host,patch,nodes", false},
		{"coordinator,patch,nodes", "host,patch,nodes", false},
	} {
		if got := matches(c.wanted, c.class); got != c.want {
			t.Errorf("%s is a %s: %t", c.class, c.wanted, got)
		}
	}
}

// TestClasses: the class of a request, and what the trace shows of it.
func TestClasses(t *testing.T) {
	for _, c := range []struct{ method, path, body, class, detail string }{
		{"GET", "/api/v1/nodes/n1", "", "host,get,nodes", ""},
		{"GET", "/api/v1/nodes?fieldSelector=metadata.name%3Dn1&watch=true", "", "host,watch,nodes", ""},
		{"GET", "/api/v1/pods?limit=5", "", "host,list,pods", ""},
		{"POST", "/api/v1/namespaces/a/pods/p/eviction", `{"kind":"Eviction"}`, "host,create,pods/eviction", `{"kind":"Eviction"}`},
		{"PATCH", "/api/v1/nodes/n1", patchOfState, "host,patch,nodes,state,draining", "state=draining"},
		{"PATCH", "/api/v1/nodes/n1", `{"metadata":{"labels":{"lockkeeper.dev/state":null}}}`, "host,patch,nodes,state,-", "state=-"},
		{
			"PATCH", "/api/v1/nodes/n1", `{"metadata":{"annotations":{"lockkeeper.dev/ack":"t1/b1/draining/committed","lockkeeper.dev/cordon":"t1"}},"spec":{"unschedulable":true}}`,
			"host,patch,nodes,ack,draining,committed", "ack=t1/b1/draining/committed cordon=t1 unschedulable=true",
		},
		{"PATCH", "/api/v1/nodes/n1", `{"metadata":{"annotations":{"lockkeeper.dev/host":"{}"},"labels":{"lockkeeper.dev/wants":"reboot"}}}`, "host,patch,nodes,host", "wants=reboot host={}"},
		{"PATCH", "/api/v1/nodes/n1", `{"metadata":{"labels":{"lockkeeper.dev/held":"Budget"}}}`, "host,patch,nodes,held", "held=Budget"},
		{"PATCH", "/api/v1/nodes/n1/status", `{"status":{}}`, "host,patch,nodes/status", `{"status":{}}`},
		{"PUT", leasePath, `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","spec":{"holderIdentity":"n1_7"}}`, "host,update,leases,hold", "holder=n1_7"},
		{"PUT", leasePath, `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","spec":{"holderIdentity":""}}`, "host,update,leases,release", "holder="},
		{"POST", "/api/v1/namespaces/a/pods/p/eviction", "k8s\x00\n", "host,create,pods/eviction", ""},
		{"GET", "/version", "", "host,get,/version", ""},
	} {
		r := describe("n1", roleHost, newRequest(t.Context(), t, c.method, c.path, c.body), []byte(c.body))
		if r.Class != c.class || r.Detail != c.detail {
			t.Errorf("%s %s %s is %q with %q, expected %q with %q", c.method, c.path, c.body, r.Class, r.Detail, c.class, c.detail)
		}
	}
}

// TestQuietPeriod: with the default policy, a host may take 188 minutes twice, and the fleet 90 minutes in addition.
func TestQuietPeriod(t *testing.T) {
	spec := v1alpha1.DefaultPolicySpec()
	if got, want := QuietPeriod(&spec, 2), 90*time.Minute+4*188*time.Minute; got != want {
		t.Errorf("%v, expected %v", got, want)
	}
}

// TestPolicyModes: every change of a policy is a merge patch of its spec.
func TestPolicyModes(t *testing.T) {
	seen := map[string]bool{}
	for _, mode := range policyModes {
		if mode == "deleted" || mode == brokenRules {
			continue
		}
		b, err := json.Marshal(policyChange(mode))
		if err != nil || seen[string(b)] {
			t.Errorf("%s: %s, %v", mode, b, err)
		}
		seen[string(b)] = true
	}
	if names := slices.Sorted(maps.Keys(intents)); !slices.Equal(names, slices.Sorted(slices.Values(intentModes))) {
		t.Errorf("the intents are %v, and the modes %v", names, intentModes)
	}
}
