package virtual

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Plan is what goes wrong in one run, and when. Its text form is one line for the run and one for each fault.
type Plan struct {
	// Seed also decides what the plan does not say: latencies, and what hosts that lie write.
	Seed uint64
	// Length is how long faults happen. After it every fault ends, and the quiet period begins.
	Length time.Duration
	Faults []Fault
}

// Fault is one thing that goes wrong.
type Fault struct {
	At   Trigger
	Kind Kind
	// On is the host that it happens to. It is "" for a fault of the cluster, for a fault of a request, which happens to the request that
	// triggers it, and for any other fault that happens to the host whose request triggers it.
	On string
	// For is how long it lasts, or how late something is, depending on the kind.
	For time.Duration
	// Mode is the variant; each kind has its own.
	Mode string
	// Times is how many of the requests in a row, from the one that triggers it, it happens to; 0 means 1.
	Times int
}

// Trigger is when a fault happens: After the start of the run or, if N is not 0, After the N-th request or event of the Class by the Process,
// which is a host's name or "*" for all hosts together. If Next is not "", the fault waits for the same process's first request of that class
// after it. A fault of a request has no After beside N.
type Trigger struct {
	After   time.Duration
	Process string
	Class   string
	N       int
	Next    string
	Moment  Moment
}

// Moment is where in the course of its request a fault happens that is not a fault of the request itself.
type Moment string

// The moments.
const (
	momentBefore   Moment = ""         // before it is sent; the request waits until the fault has begun
	momentLanded   Moment = "landed"   // the API server has carried it out, and the sender has no answer yet
	momentAnswered Moment = "answered" // the sender has just received the answer
)

var moments = []Moment{momentBefore, momentLanded, momentAnswered}

// String returns "1m30s", "n1#2:host,patch,nodes@landed", "n1#2:host,patch,nodes@landed+3s" or "n1#2:host,patch,nodes>host,get,leases".
func (t Trigger) String() string {
	if t.N == 0 {
		return t.After.String()
	}
	s := fmt.Sprintf("%s#%d:%s", t.Process, t.N, t.Class)
	if t.Next != "" {
		s += ">" + t.Next
	}
	if t.Moment != momentBefore {
		s += "@" + string(t.Moment)
	}
	if t.After != 0 {
		s += "+" + t.After.String()
	}
	return s
}

// action returns the fault without its trigger.
func (f Fault) action() string {
	s := string(f.Kind)
	if f.On != "" {
		s += " " + f.On
	}
	if f.For != 0 {
		s += " for=" + f.For.String()
	}
	if f.Mode != "" {
		s += " mode=" + f.Mode
	}
	if f.Times > 1 {
		s += " times=" + strconv.Itoa(f.Times)
	}
	return s
}

// String returns the fault as a line of a plan.
func (f Fault) String() string { return f.At.String() + " " + f.action() }

// String returns the plan's text form. [Parse] reads it.
func (p Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "plan seed=%d length=%v\n", p.Seed, p.Length)
	for _, f := range p.Faults {
		fmt.Fprintln(&b, f)
	}
	return b.String()
}

// Parse reads the text form of a plan. It skips empty lines and lines that begin with "#".
func Parse(text string) (Plan, error) {
	var p Plan
	number, headed := 0, false
	for line := range strings.Lines(text) {
		number++
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		var err error
		if !headed {
			headed = true
			p.Seed, p.Length, err = parseHead(fields)
		} else {
			var f Fault
			f, err = parseFault(fields)
			p.Faults = append(p.Faults, f)
		}
		if err != nil {
			return Plan{}, fmt.Errorf("line %d: %w", number, err)
		}
	}
	if !headed {
		return Plan{}, fmt.Errorf("no plan; expected a first line such as %q", "plan seed=7 length=40m0s")
	}
	return p, nil
}

func parseHead(fields []string) (seed uint64, length time.Duration, err error) {
	if len(fields) != 3 || fields[0] != "plan" || !strings.HasPrefix(fields[1], "seed=") || !strings.HasPrefix(fields[2], "length=") {
		return 0, 0, fmt.Errorf("%q, expected %q", strings.Join(fields, " "), "plan seed=NUMBER length=DURATION")
	}
	if seed, err = strconv.ParseUint(strings.TrimPrefix(fields[1], "seed="), 10, 64); err != nil {
		return 0, 0, err
	}
	length, err = time.ParseDuration(strings.TrimPrefix(fields[2], "length="))
	return seed, length, err
}

func parseFault(fields []string) (f Fault, err error) {
	if len(fields) < 2 {
		return f, fmt.Errorf("%q, expected a trigger and a kind", strings.Join(fields, " "))
	}
	if f.At, err = parseTrigger(fields[0]); err != nil {
		return f, err
	}
	f.Kind = Kind(fields[1])
	if _, ok := kinds[f.Kind]; !ok {
		return f, fmt.Errorf("unknown kind %q", fields[1])
	}
	for i, field := range fields[2:] {
		name, value, is := strings.Cut(field, "=")
		switch {
		case !is && i == 0:
			f.On = field
		case name == "for":
			f.For, err = time.ParseDuration(value)
		case name == "mode":
			f.Mode = value
		case name == "times":
			f.Times, err = strconv.Atoi(value)
		default:
			err = fmt.Errorf("%q, expected a host, for=, mode= or times=", field)
		}
		if err != nil {
			return f, err
		}
	}
	return f, f.check()
}

// check reports a mode that the kind does not have, for which the executor would panic, and a time that it would ignore.
func (f Fault) check() error {
	if f.At.N > 0 && f.At.After > 0 && f.Kind.spec().request {
		return fmt.Errorf("%s happens to a request, and not a time after it", f.Kind)
	}
	if s := f.Kind.spec(); len(s.modes) > 0 && !slices.Contains(s.modes, f.Mode) {
		return fmt.Errorf("%s has no mode %q, expected one of %q", f.Kind, f.Mode, s.modes)
	}
	return nil
}

func parseTrigger(text string) (t Trigger, err error) {
	process, rest, is := strings.Cut(text, "#")
	if !is {
		t.After, err = time.ParseDuration(text)
		return t, err
	}
	rest, after, delayed := strings.Cut(rest, "+")
	rest, moment, _ := strings.Cut(rest, "@")
	number, class, ok := strings.Cut(rest, ":")
	class, next, _ := strings.Cut(class, ">")
	t = Trigger{Process: process, Class: class, Next: next, Moment: Moment(moment)}
	if delayed {
		if t.After, err = time.ParseDuration(after); err != nil {
			return t, err
		}
	}
	if t.N, err = strconv.Atoi(number); err != nil || !ok || t.N < 1 {
		return t, fmt.Errorf("trigger %q, expected a duration or PROCESS#NUMBER:CLASS", text)
	}
	if !slices.Contains(moments, t.Moment) {
		return t, fmt.Errorf("trigger %q: unknown moment %q", text, moment)
	}
	return t, nil
}

// Shape is the fleet that a plan is made for.
type Shape struct {
	Hosts []string
	// Coordinators are those of the hosts that stand for election.
	Coordinators []string
	// Clients are those of the hosts that have a FleetLock client.
	Clients []string
	Length  time.Duration
	// Versions are the OS versions that update engines stage, in order. At least one.
	Versions []string
	// Applies is set if the fleet has a rule for files, Hooks are the stages for which hosts have hook units, and Forces is set if the policy
	// lets a drain that is overdue delete pods. Without them, requests and events of some classes hardly ever happen.
	Applies, Forces bool
	Hooks           []v1alpha1.State
	// Hostile allows hosts that lie and a thief with the coordinator's credential.
	Hostile bool
}

// has reports whether the fleet's turns have requests or events of the class.
func (s *Shape) has(c class) bool {
	switch {
	case c.name == "restart", strings.Contains(c.name, ","+string(v1alpha1.StateApplying)):
		return s.Applies
	case c.name == "hook":
		return len(s.Hooks) > 0
	case c.name == "host,delete,pods":
		return s.Forces
	}
	for _, stage := range hookStages {
		if strings.Contains(c.name, ","+string(stage)) {
			return slices.Contains(s.Hooks, stage)
		}
	}
	return true
}

// of returns the classes that the fleet has.
func (s *Shape) of(all []class) []class {
	return slices.DeleteFunc(slices.Clone(all), func(c class) bool { return !s.has(c) })
}

// minFaults and maxFaults are how many faults a plan has, each order of magnitude as likely as the next: rare sequences need calm
// around them, rare meetings a storm. With some hundred faults, hardly any turn reaches its reboot before the quiet period, and no fault
// that happens after a reboot lands. The last burst may add mostAtOnce more.
const minFaults, maxFaults, mostAtOnce = 10, 600, 6

// NewPlan makes a plan from a seed. The same seed and shape make the same plan.
func NewPlan(seed uint64, s Shape) Plan {
	g := &generator{rand.New(rand.NewPCG(seed, 0x6c6f636b)), s, weights(func(k kind) bool { return !k.client && (s.Hostile || !k.hostile) })}
	p := Plan{Seed: seed, Length: s.Length}
	for n := logUniform(g.Rand, minFaults, maxFaults); float64(len(p.Faults)) < n; {
		switch k := g.IntN(16); {
		case k <= 1:
			p.Faults = append(p.Faults, g.aimed()...)
		case k <= 3:
			p.Faults = append(p.Faults, g.burst()...)
		default:
			p.Faults = append(p.Faults, g.fault())
		}
	}
	if len(s.Clients) > 0 {
		p.Faults = append(p.Faults, g.ofClients()...)
	}
	slices.SortStableFunc(p.Faults, func(a, b Fault) int { return cmp.Compare(a.At.time(), b.At.time()) })
	return p
}

// time returns when the fault happens, or 0 if a request triggers it.
func (t Trigger) time() time.Duration {
	if t.N > 0 {
		return 0
	}
	return t.After
}

type generator struct {
	*rand.Rand
	shape   Shape
	weights []Kind
}

// weights returns each kind that fits as often as its weight says.
func weights(fits func(kind) bool) []Kind {
	var all []Kind
	for _, k := range kindNames() {
		if s := kinds[k]; fits(s) {
			all = append(all, slices.Repeat([]Kind{k}, s.weight)...)
		}
	}
	return all
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// logUniform returns a number between the two. Each order of magnitude is as likely as the next.
func logUniform(r *rand.Rand, least, most float64) float64 {
	return least * math.Pow(most/least, r.Float64())
}

// duration returns a duration between the two. Each order of magnitude is as likely as the next.
func (g *generator) duration(least, most time.Duration) time.Duration {
	return max(time.Duration(logUniform(g.Rand, float64(least), float64(most))).Round(time.Millisecond), least)
}

func (g *generator) fault() Fault {
	k := pick(g.Rand, g.weights)
	if g.shape.Applies && (k == kindStage || k == kindWithdraw) && g.IntN(4) > 0 {
		k = kindFile // with a staged version, a change of a file costs no more than the reboot, and no host applies anything
	}
	s := kinds[k]
	f := Fault{Kind: k}
	if len(s.modes) > 0 {
		f.Mode = pick(g.Rand, s.modes)
	}
	if s.most > 0 {
		f.For = g.duration(s.least, s.most)
	}
	if s.versioned {
		f.Mode = pick(g.Rand, g.shape.Versions)
	}
	if s.client {
		f.On = pick(g.Rand, g.shape.Clients)
	} else if !s.cluster && !s.request {
		f.On = pick(g.Rand, g.shape.Hosts)
	}
	if s.request && g.IntN(4) == 0 {
		f.Times = 2 + g.IntN(4)
		if g.IntN(8) == 0 { // for minutes, if its sender goes on
			f.Times *= 15
		}
	}
	f.At = g.trigger(s, f)
	return f
}

// burst returns several faults within a minute of one write that moves a turn. Usually the outcome of the write becomes unknown or late, what
// its sender asks next goes wrong too, and its watches are late. Meanwhile something happens to its host, its turn or the cluster. Faults that
// are spread over a run rarely meet.
func (g *generator) burst() (faults []Fault) {
	c := pick(g.Rand, g.shape.of(classesOfBursts))
	at := Trigger{Process: pick(g.Rand, g.shape.Hosts), Class: c.name, N: 1 + g.IntN(c.often)}
	if g.IntN(2) == 0 { // under faults, hardly a host has more than one turn
		at.N = 1
	}
	host, next := at.Process, nextOfHosts
	if strings.HasPrefix(c.name, string(roleCoordinator)) {
		at.Process, host, next = "*", "", nextOfCoordinators // the host that leads
	}
	add := func(f Fault, at Trigger) {
		f.At = at
		faults = append(faults, f)
	}
	if g.IntN(4) > 0 {
		add(g.faultOf(func(k Kind, s kind) bool {
			return s.request && k != kindDelay && k != kindAnswerLate && s.triggeredBy(c)
		}), at)
	}
	if g.IntN(2) == 0 {
		after := at
		n := pick(g.Rand, next)
		after.Next = n.name
		add(g.faultOf(func(_ Kind, s kind) bool { return s.request && s.triggeredBy(n) }), after)
	}
	if g.IntN(2) == 0 {
		f := g.faultOf(func(k Kind, _ kind) bool { return slices.Contains(kindsOfWatches, k) })
		f.On = host
		add(f, at)
	}
	for range 1 + g.IntN(mostAtOnce-3) {
		f, at := g.faultOf(func(_ Kind, s kind) bool { return !s.request && s.triggeredBy(c) }), at
		at.Moment = pick(g.Rand, moments)
		if g.IntN(2) == 0 {
			at.After = g.duration(time.Millisecond, time.Minute)
		}
		if f.On != "" && g.IntN(4) > 0 {
			f.On = host
		}
		add(f, at)
	}
	return faults
}

// faultOf returns a fault of a kind that fits.
func (g *generator) faultOf(fits func(Kind, kind) bool) Fault {
	for {
		if f := g.fault(); fits(f.Kind, f.Kind.spec()) {
			return f
		}
	}
}

// triggeredBy reports whether a request or an event of the class may trigger a fault of the kind.
func (s kind) triggeredBy(c class) bool {
	return s.classes == nil || slices.ContainsFunc(s.classes, func(of class) bool { return of.name == c.name })
}

// trigger chooses when the fault happens. A fault of a request needs a request that it makes a difference to.
func (g *generator) trigger(s kind, f Fault) Trigger {
	classes := s.classes
	switch {
	case classes != nil:
	case s.request:
		classes = classesOfRequests
	default:
		classes = classesOfAll
	}
	classes = g.shape.of(classes)
	if !s.request && (g.IntN(2) == 0 || len(classes) == 0) {
		return Trigger{After: time.Duration(g.Int64N(int64(g.shape.Length))).Round(time.Millisecond)}
	}
	c := pick(g.Rand, classes)
	t := Trigger{Process: "*", Class: c.name, N: 1}
	if g.IntN(2) == 0 {
		t.Process = pick(g.Rand, g.shape.Hosts)
		if f.On != "" && g.IntN(2) == 0 {
			t.Process = f.On
		}
		if strings.HasPrefix(c.name, string(roleCoordinator)) && len(g.shape.Coordinators) > 0 {
			t.Process = pick(g.Rand, g.shape.Coordinators)
		}
	}
	if s.own {
		t.Process = f.On
	}
	further := 4
	if c.often < 8 {
		further = 2 // under faults, hardly a host has more than one turn
	}
	for t.N < c.often && g.IntN(further) > 0 {
		t.N += 1 + g.IntN(max(c.often/8, 1))
	}
	if !s.request {
		t.Moment = pick(g.Rand, moments)
	}
	return t
}

// class is a class of requests or events, and about how many of them a run has.
type class struct {
	name  string
	often int
}

var classesOfReads = []class{
	{"host,get,nodes", 50}, {"host,get,leases", 50}, {"host,list,nodes", 3}, {"host,list,pods", 20}, {"host,list,disruptionpolicies", 3},
	{"coordinator,get,leases", 200}, {"coordinator,list,nodes", 4}, {"coordinator,list,disruptionpolicies", 3}, {"coordinator,get,nodes", 20},
}

var classesOfWatches = []class{
	{"host,watch,nodes", 10}, {"host,watch,pods", 6}, {"host,watch,disruptionpolicies", 6},
	{"coordinator,watch,nodes", 10}, {"coordinator,watch,leases", 10}, {"coordinator,watch,disruptionpolicies", 5},
}

var classesOfWrites = []class{
	{"coordinator,patch,nodes", 40}, {"coordinator,patch,nodes,state", 20}, {"coordinator,patch,nodes,held", 10},
	{"coordinator,patch,nodes,state,idle", 4}, {"coordinator,patch,nodes,state,before-drain", 3}, {"coordinator,patch,nodes,state,draining", 4},
	{"coordinator,patch,nodes,state,before-reboot", 2}, {"coordinator,patch,nodes,state,rebooting", 4}, {"coordinator,patch,nodes,state,applying", 3},
	{"coordinator,patch,nodes,state,before-uncordon", 3}, {"coordinator,patch,nodes,state,uncordoning", 4},
	{"coordinator,update,leases", 200}, {"coordinator,update,leases,release", 2},
	{"host,patch,nodes", 40}, {"host,patch,nodes,host", 10}, {"host,patch,nodes,ack", 20},
	{"host,patch,nodes,ack,draining,seen", 3}, {"host,patch,nodes,ack,draining,committed", 3}, {"host,patch,nodes,ack,draining,done", 3},
	{"host,patch,nodes,ack,rebooting,committed", 3}, {"host,patch,nodes,ack,rebooting,done", 3}, {"host,patch,nodes,ack,rebooting,failed", 1},
	{"host,patch,nodes,ack,before-drain", 3}, {"host,patch,nodes,ack,before-reboot", 3}, {"host,patch,nodes,ack,before-uncordon", 3},
	{"host,patch,nodes,ack,applying", 4}, {"host,patch,nodes,ack,applying,committed", 3}, {"host,patch,nodes,ack,uncordoning,done", 3},
	{"host,create,pods/eviction", 12}, {"host,delete,pods", 2}, {"host,patch,hostupdates", 15},
}

// classesOfTurns are the writes that move a turn.
var classesOfTurns = slices.DeleteFunc(slices.Clone(classesOfWrites), func(c class) bool {
	return !strings.HasPrefix(c.name, "coordinator,patch,nodes,state,") && !strings.HasPrefix(c.name, "host,patch,nodes,ack,")
})

// classesOfBursts are the writes that bursts happen around: those that move a turn. Grants and commits are frequent.
var classesOfBursts = slices.Concat(classesOfTurns,
	slices.Repeat([]class{{"coordinator,patch,nodes,state,before-drain", 3}, {"coordinator,patch,nodes,state,draining", 4}}, 3),
	slices.Repeat([]class{{"host,patch,nodes,ack,draining,committed", 3}, {"host,patch,nodes,ack,rebooting,committed", 3}}, 2))

// nextOfHosts and nextOfCoordinators are the requests with which the sender of a write finds out what became of it, or repeats it.
var (
	nextOfHosts        = []class{{"host,patch,nodes", 40}, {"host,get,nodes", 50}, {"host,get,leases", 50}, {"host,list,pods", 20}}
	nextOfCoordinators = []class{{"coordinator,patch,nodes", 40}, {"coordinator,get,nodes", 20}, {"coordinator,update,leases", 200}}
)

// kindsOfWatches are faults after which a process does not see what happens.
var kindsOfWatches = []Kind{kindWatchLag, kindWatchHang, kindWatchCut, kindCutOff}

// classesOfLate are all writes. A grant that lands late is what an unknown outcome is dangerous for, so it is frequent.
var classesOfLate = slices.Concat(classesOfWrites, slices.Repeat([]class{{"coordinator,patch,nodes,state,draining", 4}}, 8))

// classesOfCommits are the writes of a host between its drain and its reboot.
var classesOfCommits = []class{{"host,patch,nodes,ack,draining,done", 1}, {"host,patch,nodes,ack,rebooting", 2}, {"host,patch,nodes,ack,rebooting,committed", 1}}

// classesOfReady are what a host reports when its kubelet should be Ready, and what a leader makes of it.
var classesOfReady = []class{
	{"host,patch,nodes,ack,rebooting,done", 2}, {"host,patch,nodes,ack,rebooting,done", 2}, {"host,patch,nodes,ack,uncordoning", 2},
	{"host,patch,nodes,ack,rebooting,committed", 2}, {"host,patch,nodes,ack,draining", 2},
}

// classesOfRollbacks are what a host does before a boot that may fail.
var classesOfRollbacks = []class{{"host,patch,nodes,ack,draining,done", 2}, {"host,patch,nodes,ack,rebooting,committed", 2}}

// classesOfCordons are what a host does while its Node has its cordon.
var classesOfCordons = []class{
	{"host,patch,nodes,ack,draining,committed", 2}, {"host,patch,nodes,ack,draining,done", 2}, {"host,patch,nodes,ack,before-reboot", 2},
	{"host,patch,nodes,ack,rebooting,committed", 2}, {"sessions", 4}, {"host,patch,nodes,ack,rebooting,done", 2}, {"host,patch,nodes,ack,applying", 2},
	{"host,patch,nodes,ack,before-uncordon", 2}, {"host,patch,nodes,ack,uncordoning", 2},
}

// classesOfJobs are what a host does before its turn, between its grant and its cordon, and after the cordon.
var classesOfJobs = []class{
	{"host,patch,nodes,host", 10}, {"host,patch,nodes,ack,before-drain,seen", 3}, {"host,patch,nodes,ack,before-drain,done", 3},
	{"host,patch,nodes,ack,draining,seen", 3}, {"host,list,pods", 20}, {"host,patch,nodes,ack,draining,committed", 3},
	{"host,patch,nodes,ack,draining,done", 3},
}

// classesOfChecks are the reads of a host right before it commits or acts.
var classesOfChecks = []class{{"host,get,nodes", 20}, {"host,get,leases", 20}, {"host,list,pods", 10}}

// classesOfReboots are what a host does right before it calls for a reboot.
var classesOfReboots = []class{{"host,patch,nodes,ack,rebooting,committed", 1}, {"sessions", 4}, {"sessions", 4}, {"sessions", 8}}

// classesOfHooks are events that the fleet reports: a unit of a hook stage begins on a host.
var classesOfHooks = []class{
	{"hook,before-drain", 2}, {"hook,before-reboot", 2}, {"hook,before-uncordon", 2}, {"hook", 5},
}

// classesOfRestarts are another event that the fleet reports: a host's service restarts.
var classesOfRestarts = []class{{"restart", 3}}

// classesOfApplies are what a host does while it applies a plan.
var classesOfApplies = slices.Concat(classesOfRestarts, []class{
	{"host,patch,nodes,ack,applying", 3}, {"host,patch,nodes,ack,applying,committed", 2}, {"host,patch,nodes,ack,applying,done", 2},
})

// classesOfStages are what a host writes before the starts of units matter.
var classesOfStages = []class{
	{"host,patch,nodes,ack,before-drain,seen", 3}, {"host,patch,nodes,ack,draining,done", 3}, {"host,patch,nodes,ack,rebooting,done", 3},
	{"host,patch,nodes,ack,applying,committed", 3}, {"host,patch,nodes,host", 10},
}

// classesOfStops are what a process does before its end matters.
var classesOfStops = slices.Concat(classesOfTurns, classesOfHooks, slices.Repeat(classesOfRestarts, 8))

// A write is as likely as any other request, and a hook or a restart less likely than both.
var (
	classesOfRequests = slices.Concat(classesOfReads, classesOfWatches, classesOfWrites)
	classesOfAll      = slices.Concat(classesOfRequests, classesOfHooks, classesOfRestarts)
)

// QuietPeriod returns how long a fleet of that many hosts needs, without further faults, until every turn has ended and every change that
// nothing holds has had its turn. It is the sum of what the policy and the product allow, so that a run that takes longer is stuck:
//
//   - a turn that waits in each stage until it is overdue, twice: the second time after it was backed out, with the longest backoff in
//     between, for each host; a host without faults is faster, and takes its turn once;
//   - half an hour for leaders, watches and pings to notice that the faults are over.
func QuietPeriod(spec *v1alpha1.DisruptionPolicySpec, hosts int) time.Duration {
	hooks := func(timeout time.Duration, all []v1alpha1.HookSpec) time.Duration {
		for _, h := range all {
			timeout = max(timeout, h.Timeout.Duration)
		}
		return timeout
	}
	timeouts := spec.Timeouts
	before := hooks(timeouts.HostHooks.Duration, spec.Hooks.BeforeDrain) + hooks(timeouts.HostHooks.Duration, spec.Hooks.BeforeReboot)
	after := timeouts.HostHooks.Duration
	for _, h := range spec.Hooks.BeforeUncordon {
		after = max(after, h.Timeout.Duration)
	}
	turn := timeouts.Seen.Duration + before + spec.Drain.Timeout.Duration + max(timeouts.Rebooting.Duration, timeouts.Applying.Duration) + after +
		timeouts.Uncordoning.Duration + spec.Rollout.Settle.Duration
	return 30*time.Minute + spec.Rollout.BackoffMax.Duration + time.Duration(hosts)*2*turn
}

// hasOption reports whether the mode has the option after its first part.
func hasOption(mode, option string) bool {
	return slices.Contains(strings.Split(mode, ",")[1:], option)
}
