package virtual

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Result is what a run showed.
type Result struct {
	// Why says what was wrong, one line for each violation; "" if nothing was. The text before the first colon is the rule.
	Why string
	// Faults is how many faults happened, by kind; Took is the virtual time of the run.
	Faults   map[Kind]int
	Took     time.Duration
	Requests int
	Reboots  int

	trace *trace
	log   []string
}

// versions are the versions of the OS that runs stage.
var versions = []string{"2.0.0", "2.1.0", "2.2.0", "2.3.0"}

// scenario is the fleet of a seed.
func scenario(seed uint64) Options {
	r := rand.New(rand.NewPCG(seed, 0x666c656574))
	o := Options{Hosts: 3 + r.IntN(2), Workloads: r.IntN(4), Lag: 150 * time.Second}
	o.Candidates = 1 + r.IntN(o.Hosts)
	o.ControlPlane = r.IntN(3)
	budget := 1 + r.IntN(2)
	settle := time.Duration(r.IntN(60)) * time.Second
	timeouts := []int{2 + r.IntN(9), 2 + r.IntN(4), 4 + r.IntN(7)} // of the drain, host hooks and the reboot; in minutes
	o.Policy = func(s *v1alpha1.DisruptionPolicySpec) {
		s.Rollout.MaxUnavailable = intstr.FromInt(budget)
		s.Rollout.MaxTurnsPerDay = 48
		minutes := func(n int) metav1.Duration { return metav1.Duration{Duration: time.Duration(n) * time.Minute} }
		s.Rollout.BackoffMax = minutes(10)
		s.Rollout.Settle = metav1.Duration{Duration: settle}
		s.Drain.Timeout = minutes(timeouts[0])
		s.Timeouts.HostHooks, s.Timeouts.Rebooting, s.Timeouts.Applying = minutes(timeouts[1]), minutes(timeouts[2]), minutes(5)
	}
	if r.IntN(2) == 0 {
		o.Hooks = map[v1alpha1.State]time.Duration{}
		for _, stage := range hookStages {
			if r.IntN(4) > 0 {
				o.Hooks[stage] = time.Duration(1+r.IntN(60)) * time.Second
			}
		}
	}
	if r.IntN(2) == 0 {
		o.Apply = []v1alpha1.Action{{Type: v1alpha1.ActionRestart, Unit: service}}
		for _, also := range []v1alpha1.Action{
			{Type: v1alpha1.ActionRestart, Unit: afterService}, {Type: v1alpha1.ActionDaemonReload}, {Type: v1alpha1.ActionDrain},
		} {
			if r.IntN(2) == 0 {
				o.Apply = append(o.Apply, also)
			}
		}
	}
	if r.IntN(2) == 0 {
		e := v1alpha1.Exclusions{ExcludeFromLoadBalancers: r.IntN(2) == 0, DisableScaleDown: r.IntN(2) == 0, ExcludeFromRemediation: r.IntN(2) == 0}
		e.LoadBalancerDelay.Duration = time.Duration(r.IntN(100)) * time.Second
		others := o.Policy
		o.Policy = func(s *v1alpha1.DisruptionPolicySpec) { others(s); s.Drain.Exclusions = e }
	}
	if r.IntN(4) == 0 {
		o.Canary = time.Duration(1+r.IntN(4)) * time.Minute
	}
	if r.IntN(4) == 0 {
		o.Blackout.from = time.Duration(2+r.IntN(20)) * time.Minute
		o.Blackout.to = o.Blackout.from + time.Duration(1+r.IntN(15))*time.Minute
	}
	if own := rand.New(rand.NewPCG(seed, 0x636c69656e74)); own.IntN(3) == 0 { // it takes nothing from the numbers of the other fleets
		o.Clients = own.Perm(o.Hosts)[:1+own.IntN(o.Hosts)]
		if own.IntN(2) == 0 {
			o.ClientsAsk = time.Minute
		}
	}
	if own := rand.New(rand.NewPCG(seed, 0x61646d696e)); own.IntN(4) > 0 {
		o.Clears = time.Duration(1+own.IntN(4)) * time.Minute
		if others := o.Policy; own.IntN(3) == 0 {
			o.Forces = true
			o.Policy = func(s *v1alpha1.DisruptionPolicySpec) { others(s); s.Drain.OnTimeout = v1alpha1.OnTimeoutForce }
		}
	}
	if own := rand.New(rand.NewPCG(seed, 0x706f6f6c)); o.Canary == 0 && own.IntN(4) == 0 {
		o.Pool = 1 + own.IntN(o.Hosts-1)
	}
	if own := rand.New(rand.NewPCG(seed, 0x6c696d697473)); own.IntN(3) == 0 {
		failed, turns, others := int32(own.IntN(3)), int32(2+own.IntN(4)), o.Policy
		o.Policy = func(s *v1alpha1.DisruptionPolicySpec) {
			others(s)
			s.Rollout.MaxFailed, s.Rollout.MaxTurnsPerDay = failed, turns
		}
	}
	if r.IntN(2) == 0 {
		o.Blocks = blockRules{selected: true, unmanaged: r.IntN(2) == 0, emptyDir: r.IntN(2) == 0}
		if r.IntN(3) > 0 {
			o.Blocks.timeout, o.Blocks.evict = time.Duration(1+r.IntN(8))*time.Minute, r.IntN(3) > 0
		}
	}
	return o
}

// shape is what a plan for the fleet has to know.
func (o *Options) shape(length time.Duration) Shape {
	s := Shape{Length: length, Versions: versions, Applies: o.Apply != nil, Forces: o.Forces, Hooks: slices.Sorted(maps.Keys(o.Hooks))}
	for i := range o.Hosts {
		name := fmt.Sprintf("n%d", i+1)
		s.Hosts = append(s.Hosts, name)
		if i < o.Candidates {
			s.Coordinators = append(s.Coordinators, name)
		}
		if slices.Contains(o.Clients, i) {
			s.Clients = append(s.Clients, name)
		}
	}
	return s
}

// stageEvery is how often a host's update engine finds another version while the plan lasts. So hosts want something most of the time:
// a fault next to a turn shows more than one in a fleet that rests.
const stageEvery = 3 * time.Minute

// keepStaging has all hosts stage another version from time to time, unless they have one staged. If there is a rule for files, these change
// more often: with a staged version, a change of a file costs no more than the reboot.
func (f *Fleet) keepStaging() {
	f.tasks.Go(func() {
		for n := 0; pause(f.exec.ending, stageEvery) == nil; n++ {
			if f.opts.Canary > 0 && n%4 != 3 {
				f.followCanary("")
			}
			if f.opts.Apply == nil && (f.opts.Canary == 0 || n%4 == 3) || n%4 == 3 {
				f.stageAll(fmt.Sprintf("3.%d.0", n))
				continue
			}
			for _, host := range f.Hosts() {
				f.ChangeFile(host, "a", contentNew)
			}
		}
	})
}

// keepClearing has an admin clear turns that failed from time to time.
func (f *Fleet) keepClearing() {
	if f.opts.Clears == 0 {
		return
	}
	f.tasks.Go(func() {
		for pause(f.exec.ending, f.opts.Clears) == nil {
			f.clearFailed(nil)
		}
	})
}

// mostReal ends a run with a loop that never waits: the time in its bubble does not pass then, and the run would not end. Others take some
// seconds of real time, or some minutes under the race detector on a machine that is busy. It is less than the time limit of make test.
const mostReal = 20 * time.Minute

// run runs a plan on a fleet, in a bubble of its own.
func run(t *testing.T, o Options, p Plan, logged bool) (res Result) {
	t.Helper()
	var fleet atomic.Pointer[Fleet]
	defer time.AfterFunc(mostReal, func() {
		if f := fleet.Load(); f != nil {
			fmt.Fprintf(os.Stderr, "seed %d: after %v something loops without a pause; the plan was\n%s\nits requests and faults:\n%s\n", p.Seed, mostReal, p, f.trace)
		}
		panic("a run does not end")
	}).Stop()
	synctest.Test(t, func(t *testing.T) {
		if logged {
			var mu sync.Mutex
			o.Log = func(text string) {
				mu.Lock()
				defer mu.Unlock()
				res.log = append(res.log, text)
			}
		}
		o.Plan = p
		f := New(t.TempDir(), o)
		fleet.Store(f)
		defer func() {
			f.Close()
			res.Faults, res.Took, res.trace = f.exec.Fired(), time.Since(f.began), f.trace
			for _, e := range f.trace.all() {
				if e.Request {
					res.Requests++
				}
			}
			res.Why = strings.TrimSpace(f.Verdict() + "\n" + res.Why)
			res.Reboots = f.Judge.Report().Reboots
		}()
		for _, host := range f.Hosts() {
			if o.Apply == nil {
				f.Stage(host, versions[0])
			} else {
				f.ChangeFile(host, "a", contentNew)
			}
		}
		calm := f.Start()
		f.keepStaging()
		f.keepClearing()
		<-calm
		f.Clean()
		res.Why = f.finish(p.Seed)
	})
	return res
}
