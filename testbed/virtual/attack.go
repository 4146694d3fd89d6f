package virtual

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/cluster"
	"lockkeeper.dev/lockkeeper/cli/report"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
	"lockkeeper.dev/lockkeeper/testbed/referee"
)

// hostilePlan is [NewPlan] with one attacker: with odd seeds one of the hosts lies, with even seeds there is a thief with the coordinator's
// credential. With more attackers, little would be left that docs/security.md promises. The host that lies is not the only one that may
// coordinate: without its process there would be no coordinator.
func hostilePlan(seed uint64, s Shape) Plan {
	s.Hostile, s.Clients = true, nil
	p := NewPlan(seed, s)
	hosts := s.Hosts
	if len(s.Coordinators) == 1 {
		hosts = slices.DeleteFunc(slices.Clone(hosts), func(host string) bool { return host == s.Coordinators[0] })
	}
	liar := hosts[rand.New(rand.NewPCG(seed, 0x6c696172)).IntN(len(hosts))]
	unwanted := kindThief
	if seed%2 == 0 {
		unwanted = kindLie
	}
	p.Faults = slices.DeleteFunc(p.Faults, func(f Fault) bool { return f.Kind == unwanted })
	for i := range p.Faults {
		if f := &p.Faults[i]; f.Kind == kindLie {
			f.On = liar
		}
	}
	return p
}

// attack returns what the attackers of the plan have.
func (p Plan) attack() (a referee.Attack) {
	for _, f := range p.Faults {
		switch f.Kind {
		case kindLie:
			a.Liars = append(a.Liars, f.On)
		case kindThief:
			a.Thief = true
		}
	}
	slices.Sort(a.Liars)
	a.Liars = slices.Compact(a.Liars)
	return a
}

// attacks returns what attackers have at present.
func (f *Fleet) attacks() referee.Attack {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.attack
}

func (f *Fleet) setAttack(a referee.Attack) {
	f.mu.Lock()
	f.attack = a
	f.mu.Unlock()
	f.Judge.Attack(a)
}

// attacked reports whether an attacker may end the host's turns before their last stage.
func (f *Fleet) attacked(host string) bool {
	a := f.attacks()
	return a.Thief || slices.Contains(a.Liars, host)
}

// finish is what follows on the faults of a plan. It returns what did not happen that must happen, or "":
//
//   - While a host goes on to lie, the others arrive. Or the liar holds them up, `lockkeeper status` names it, and they arrive once an admin
//     has taken it out, as docs/security.md says; see [Fleet.takeOut].
//   - Once all attacks are over, every host arrives.
//   - After that nothing of the attack is left: another update rolls through the fleet, and all rules hold again.
func (f *Fleet) finish(seed uint64) string {
	within := f.quietPeriod(f.opts.Hosts)
	for _, host := range f.attacks().Liars {
		if why := f.outlastLies(host, within, seed); why != "" {
			return why
		}
	}
	if why := f.Arrive(within); why != "" {
		return "Progress: " + why
	}
	if !f.led.Load() {
		return "no process has led a Node"
	}
	if a := f.attacks(); len(a.Liars) == 0 && !a.Thief {
		return f.Excluded()
	}
	f.setAttack(referee.Attack{})
	f.stageAll("4.0.0")
	if why := f.Arrive(within); why != "" {
		return "After the attack: " + why
	}
	return ""
}

// quietPeriod is [QuietPeriod] of so many of the fleet's hosts, and half an hour for each FleetLock client, which asks every five minutes and
// lets a request wait for 25.
func (f *Fleet) quietPeriod(hosts int) time.Duration {
	spec := f.opts.spec()
	return QuietPeriod(&spec, hosts) + time.Duration(len(f.opts.Clients))*30*time.Minute
}

func (f *Fleet) stageAll(version string) {
	for _, host := range f.Hosts() {
		f.Stage(host, version)
	}
}

// lieAgain is how often a host that goes on to lie writes.
const lieAgain = 20 * time.Second

// outlastLies has a host lie on while an update is rolled out, until the other hosts have arrived.
func (f *Fleet) outlastLies(host string, within time.Duration, seed uint64) string {
	r := rand.New(rand.NewPCG(seed, 0x6c6965))
	lie := Fault{Kind: kindLie, On: host, Mode: pick(r, lieModes())}
	f.exec.trace.note(host, "lies on: %s", lie.Mode)
	f.logf("%s lies on: %s", host, lie.Mode)
	if hasOption(lie.Mode, "alone") {
		f.Freeze(host)
	}
	ctx, cancel := context.WithCancel(f.ctx)
	over := make(chan struct{})
	f.tasks.Go(func() {
		defer close(over)
		for i := 0; ; i++ {
			f.exec.people.lie(lie, r, i)
			if pause(ctx, lieAgain) != nil {
				return
			}
		}
	})
	stop := func() { cancel(); <-over }
	defer func() {
		stop()
		endLies(f.exec, lie)
	}()
	f.stageAll("3.0.0")
	why := f.Arrive(f.quietPeriod(1), host)
	if why != "" && f.unnamed(host) != "" { // the others may still be on their way
		why = f.Arrive(within, host)
	}
	if why == "" {
		return ""
	}
	if unnamed := f.unnamed(host); unnamed != "" {
		return fmt.Sprintf("Named: while %s lies (%s), %s\n%s%s", host, lie.Mode, why, unnamed, f.statusText())
	}
	if still := f.takeOut(host, within, stop); still != "" {
		return fmt.Sprintf("Others: while %s lies (%s) and is taken out, %s%s", host, lie.Mode, still, f.statusText())
	}
	return ""
}

// takeOut does with a host that lies what docs/security.md says, and returns why the others do not arrive nevertheless, or "". An admin
// detaches the node. Where that is not enough, the admin switches the machine off and deletes its Node; stop ends its lies. The host comes
// back afterwards.
func (f *Fleet) takeOut(host string, within time.Duration, stop func()) string {
	f.exec.people.patchNode(host, annotate(v1alpha1.AnnotationDetached, `{"by": "ada", "force": true}`))
	defer f.Clean()
	still := f.Arrive(f.quietPeriod(1), host)
	if still != "" && !f.outlastsDetach(host) {
		still = f.Arrive(within, host)
	}
	if still == "" || !f.outlastsDetach(host) {
		return still
	}
	f.logf("%s is switched off and its Node deleted, because %s", host, still)
	stop()
	f.Crash(host)
	f.exec.people.do(admin, http.MethodDelete, nodePath(host), nil, nil)
	defer f.PowerOn(host)
	return f.Arrive(within, host)
}

// outlastsDetach reports whether the node may hold up the others even when it is detached: it has committed to a reboot or an apply, or it is
// of the control plane and someone cordons it or says that it is not Ready.
func (f *Fleet) outlastsDetach(host string) bool {
	obj := f.Node(host)
	if obj == nil {
		return false
	}
	n := turn.FromNode(obj)
	return n.Committed() || n.ControlPlane && (n.Unschedulable || !n.Ready)
}

// status is what `lockkeeper status` shows.
func (f *Fleet) status() (report.Report, error) {
	s := cluster.Source{
		Client: f.Admin, Namespace: v1alpha1.DefaultLeaseNamespace, LeaseName: v1alpha1.DefaultLeaseName,
		WatchPolicies: func(notify func()) cluster.PolicyView { return kube.WatchPolicies(f.Admin, policy.Compile, notify) },
	}
	return s.Read(f.ctx)
}

// statusText is what it prints.
func (f *Fleet) statusText() string {
	status, err := f.status()
	var text strings.Builder
	if err == nil {
		_, err = report.Form{All: true}.Print(&text, &status)
	}
	f.must(err)
	return "; status says:\n" + text.String()
}

// unnamed says what `lockkeeper status` does not say of a host that holds up the others, or "".
func (f *Fleet) unnamed(host string) string {
	status, err := f.status()
	if err != nil {
		return fmt.Sprintf("status cannot be read: %v", err)
	}
	n := status.Find(host)
	var lines []string
	failed := n != nil && n.Last != nil && n.Last.Result == v1alpha1.ResultFailed // status names it under HALTED
	if n == nil || !failed && (n.Status != report.Held || n.Held == v1alpha1.ReasonNone) {
		lines = append(lines, host+" is not held")
	}
	for _, name := range f.Hosts() {
		if n := status.Find(name); n != nil && name != host && f.machine(name).unfinished() != "" && n.Held == v1alpha1.ReasonNone {
			lines = append(lines, name+" has not arrived and is not held")
		}
	}
	return strings.Join(lines, ", ")
}
