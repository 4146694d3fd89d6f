package rollout_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

const builtIn = "built-in"

// newPolicy is one that says nothing but what the API server would write into
// it, for the nodes with the labels; none is all nodes.
func newPolicy(name string, priority int32, labels map[string]string) policy.Policy {
	obj := &v1alpha1.DisruptionPolicy{Spec: v1alpha1.DefaultPolicySpec()}
	obj.Name, obj.Spec.Priority, obj.Spec.NodeSelector.MatchLabels = name, priority, labels
	return policy.Compile(obj, time.LoadLocation)
}

// clock returns a time of the day on which the tests play.
func clock(text string) time.Time {
	t, err := time.Parse("15:04", text)
	if err != nil {
		panic(err)
	}
	year, month, day := atNoon.Date()
	return time.Date(year, month, day, t.Hour(), t.Minute(), 0, 0, time.UTC)
}

// daily is a window in UTC, "11:00+2h"; on all days, or those named:
// "11:00+2h+Fri".
func daily(text string) (policy.Window, error) {
	f := strings.Split(text, "+")
	w := v1alpha1.Window{Start: f[0], TimeZone: "UTC"}
	for _, day := range f[min(2, len(f)):] {
		w.Days = append(w.Days, v1alpha1.Day(day))
	}
	var err error
	if len(f) < 2 {
		return policy.Window{}, fmt.Errorf("no such window: %s", text)
	}
	if w.Duration.Duration, err = time.ParseDuration(f[1]); err != nil {
		return policy.Window{}, err
	}
	parsed, problems := policy.ParseWindow(w, time.LoadLocation)
	if len(problems) > 0 {
		return policy.Window{}, fmt.Errorf("%v", problems)
	}
	return parsed, nil
}

func parseLimit(text string) (l policy.Limit, err error) {
	number, percent := strings.CutSuffix(text, "%")
	n, err := strconv.Atoi(number)
	if percent {
		return policy.Limit{Percent: n}, err
	}
	return policy.Limit{Number: n}, err
}

// broken is what is wrong with a policy that a script breaks.
var broken = []policy.Problem{{Field: "spec.rollout.windows[0].start", Text: `"25:00", expected a time of the day, 00:00 to 23:59`}}

// set are the policies, in their order.
func (c *cluster) set() policy.Set {
	var all []policy.Policy
	for _, name := range slices.Sorted(maps.Keys(c.policies)) {
		all = append(all, c.policies[name])
	}
	return policy.NewSet(all...)
}

// setPolicy changes a policy, the built-in one unless another is named:
//
//	[NAME] budget=2 total=50% settle=2s failed=1 before-drain=lb,timeout,onTimeout ...
//
// It makes one that is not there yet, of priority 10; select and priority are
// said then.
// "NAME gone" deletes it.
func (c *cluster) setPolicy(words []string) error {
	name := builtIn
	if !strings.Contains(words[0], "=") {
		name, words = words[0], words[1:]
	}
	if slices.Equal(words, []string{"gone"}) {
		delete(c.policies, name)
		return nil
	}
	p, known := c.policies[name]
	if !known {
		priority, labels := 10, map[string]string{}
		for _, w := range words {
			switch key, value, _ := strings.Cut(w, "="); key {
			case "select":
				label, v, _ := strings.Cut(value, ":")
				labels[label] = v
			case "priority":
				priority, _ = strconv.Atoi(value)
			}
		}
		p = newPolicy(name, int32(priority), labels)
	}
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		if err := c.setting(&p, key, value); err != nil {
			return fmt.Errorf("%s: %w", w, err)
		}
	}
	c.policies[name] = p
	return nil
}

func (c *cluster) setting(p *policy.Policy, key, value string) (err error) {
	t := &p.Terms
	hooks := map[string]*[]v1alpha1.Hook{
		"before-drain": &t.BeforeDrain, "before-reboot": &t.BeforeReboot, "before-uncordon": &t.BeforeUncordon}
	switch key {
	case "select", "priority":
	case "budget":
		p.MaxUnavailable, err = parseLimit(value)
	case "total":
		p.MaxUnavailableTotal = nil
		if value != "none" {
			p.MaxUnavailableTotal = new(policy.Limit)
			*p.MaxUnavailableTotal, err = parseLimit(value)
		}
	case "failed":
		p.MaxFailed, err = strconv.Atoi(value)
	case "settle":
		p.Settle, err = time.ParseDuration(value)
	case "expected":
		p.ExpectedDuration, err = time.ParseDuration(value)
	case "window":
		p.Windows = nil
		if value != "none" {
			p.Windows = make([]policy.Window, 1)
			p.Windows[0], err = daily(value)
		}
	case "blackout": // of the same day: 11:30-13:00
		p.Blackouts = nil
		if value != "none" {
			from, to, _ := strings.Cut(value, "-")
			p.Blackouts = []policy.Blackout{{From: clock(from), To: clock(to), Name: `blackout "race"`}}
		}
	case "after": // web:1h
		p.After = nil
		if value != "none" {
			name, long, _ := strings.Cut(value, ":")
			p.After = []policy.After{{Policy: name}}
			p.After[0].For, err = time.ParseDuration(long)
		}
	case "close":
		t.OnClose = v1alpha1.OnClose(value)
	case "gate":
		p.Gates = nil
		if value != "none" {
			p.Gates = []v1alpha1.Gate{{Name: value, Query: "up == 0"}}
		}
	case "order":
		p.Order = nil
		for k := range strings.SplitSeq(value, ",") {
			p.Order = append(p.Order, v1alpha1.OrderKey(k))
		}
	case "drain":
		t.DrainTimeout = v1alpha1.OnTimeout(value)
	case "draining":
		t.Draining.Duration, err = time.ParseDuration(value)
	case "detach":
		t.WaitForVolumeDetach = value == "true"
	case "rules-only":
		p.RulesOnly = value == "true"
	case "paused":
		p.Paused = value == "true"
	case "observe":
		p.Observe = value == "true"
	case "invalid":
		p.Problems = nil
		if value == "true" {
			p.Problems = broken
		}
	case "self":
		c.self = value
	default:
		list, ok := hooks[key]
		if !ok {
			return fmt.Errorf("no such setting")
		}
		f := append(strings.Split(value, ","), "30m", "Wait")
		hook := v1alpha1.Hook{Name: f[0], OnTimeout: v1alpha1.OnTimeout(f[2])}
		hook.Timeout.Duration, err = time.ParseDuration(f[1])
		*list = append(slices.Clip(*list), hook)
	}
	return err
}

// gate says what is known of a policy's gate: gate web g open.
func (c *cluster) gate(policy, name, word string) {
	key := rollout.GateKey(policy, name)
	switch word {
	case "unasked":
		delete(c.gates, key)
	default:
		c.gates[key] = rollout.Gate{Open: word == "open", Detail: "3 replicas are missing"}
	}
}

func attach(n *corev1.Node, names []string) {
	n.Status.VolumesAttached = nil
	for _, v := range names {
		n.Status.VolumesAttached = append(n.Status.VolumesAttached, corev1.AttachedVolume{Name: corev1.UniqueVolumeName(v)})
	}
}

// room is how many nodes could be unavailable when a turn began, or was taken
// over: of its policy's, and of all.
type room struct {
	policy     string
	own, total int
}

// rooms notes what room there is for the node's turn, by the policies as they
// are now.
func (c *cluster) room(name string) {
	w := twin{c.snapshot("")}
	n := c.fact(name)
	if !n.InTurn() || n.Grant == nil {
		return
	}
	r := room{policy: n.Grant.Policy, own: 1 << 30, total: w.total()}
	for i := range w.Policies {
		if p := &w.Policies[i]; p.Name == n.Grant.Policy {
			r.own = w.allowed(p)
		}
	}
	c.rooms[n.Turn] = r
}

// promiseGrant: a turn begins only where a policy that is valid, acts and is not
// paused decides, in its window and through its gates, and there is room for it
// under each policy in which it counts, and under all.
func (c *cluster) promiseGrant(v rollout.Verdict) {
	n := c.fact(v.Node)
	w := twin{c.snapshot("")}
	p := w.decides(&n)
	switch {
	case p == nil:
		c.breaks("policy: %s is granted a turn by no policy", n.Name)
		return
	case w.invalid(&n):
		c.breaks("policy: %s is granted a turn under an invalid policy", n.Name)
	case p.Paused || p.Observe:
		c.breaks("policy: %s is granted a turn by %s, paused %t, observing %t", n.Name, p.Name, p.Paused, p.Observe)
	case !fits(p, c.now, p.ExpectedDuration):
		c.breaks("window: %s is granted a turn outside of the windows of %s", n.Name, p.Name)
	case w.gated(p):
		c.breaks("gate: %s is granted a turn through a closed gate", n.Name)
	case n.Grant == nil || n.Grant.Policy != p.Name:
		c.breaks("policy: %s decides about %s, and its grant is %+v", p.Name, n.Name, n.Grant)
	}
	if why := c.unproven(w, &n, p); why != "" {
		c.breaks("canary: %s is granted a turn by %s, %s", n.Name, p.Name, why)
	}
	if gone, most := len(w.countedIn(p)), w.allowed(p); gone > most {
		c.breaks("budget: %s is granted a turn, then %d of %s are unavailable, %d allowed", n.Name, gone, p.Name, most)
	}
	if gone, most := len(w.unavailable()), w.total(); gone > most {
		c.breaks("total: %s is granted a turn, then %d are unavailable, %d allowed", n.Name, gone, most)
	}
}

// promiseBudget: nobody disturbs more than the budgets. A policy that is made
// tighter finds more of them disturbed than it allows; they only become fewer.
func (c *cluster) promiseBudget(who string) {
	now := map[string][]*turn.Node{}
	for _, name := range c.names() {
		if n := c.fact(name); disturbs(&n) {
			now[""] = append(now[""], &n)
			if r, ok := c.rooms[n.Turn]; ok && n.InTurn() {
				now[r.policy] = append(now[r.policy], &n)
			}
		}
	}
	were := c.were
	c.were = map[string]int{}
	for name, nodes := range now {
		c.were[name] = len(nodes)
		if len(nodes) <= were[name] {
			continue
		}
		// Whoever began last of them began while all of the others were unavailable.
		most := 0
		for _, n := range nodes {
			r, ok := c.rooms[n.Turn]
			switch {
			case !ok:
				r = room{total: 1 << 30, own: 1 << 30} // a lost cordon of ours, or a grant that somebody edited
			case name == "":
				r.own = r.total
			}
			most = max(most, r.own)
		}
		if len(nodes) > most {
			c.breaks("budget: %s makes %d disturbed of %q, %d allowed", who, len(nodes), name, most)
		}
	}
}

// disturbs reports whether the node is disturbed by us: marked, or committed.
func disturbs(n *turn.Node) bool {
	return n.Mark || n.Committed() && !n.HasReport(v1alpha1.ReportRefused)
}

// unproven returns which machine has not run the version that is staged on the node for as long as the node's policy wants,
// or "". It asks the machines, not their records.
func (c *cluster) unproven(w twin, n *turn.Node, p *policy.Policy) string {
	version := c.hosts[n.Name].pending
	for _, after := range p.After {
		some := version == "" || !v1alpha1.Has(n.Host.Changes, v1alpha1.SourceOSUpdate)
		for _, name := range c.names() {
			o, h := c.fact(name), c.hosts[name]
			if first := w.decides(&o); some && version == "" || first == nil || first.Name != after.Policy || saidNo(o.Managed) || o.Detached != nil || !h.managed {
				continue
			}
			if some = true; !h.up || h.version != version || c.now.Sub(h.bootAt) < after.For {
				return fmt.Sprintf("%s runs %s since %s, up %t", name, h.version, h.bootAt.Format(time.TimeOnly), h.up)
			}
		}
		if !some {
			return "which waits for policy " + after.Policy + " without nodes"
		}
	}
	return ""
}
