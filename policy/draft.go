package policy

import (
	"maps"
	"slices"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// draft is a plan in the making: who asks for what.
type draft struct {
	steps    map[v1alpha1.Action][]Cause
	nothing  []Cause
	heldBack []HeldBack
}

var (
	drainNode  = v1alpha1.Action{Type: v1alpha1.ActionDrain}
	reloadAll  = v1alpha1.Action{Type: v1alpha1.ActionDaemonReload}
	rebootHost = v1alpha1.Action{Type: v1alpha1.ActionReboot}
)

// ask adds a cause to a step. Changes come one after the other, and each is one
// cause of a step, however often its rule asks for it.
func (d *draft) ask(a v1alpha1.Action, c Cause) {
	causes := d.steps[a]
	if n := len(causes); n == 0 || causes[n-1].Change != c.Change {
		d.steps[a] = append(causes, c)
	}
}

func (d *draft) reboot(c Cause, drains bool) {
	if drains {
		d.ask(drainNode, c)
	}
	d.ask(rebootHost, c)
}

// add adds what a rule asks for.
func (d *draft) add(r *OwnedRule, c Cause) {
	for _, a := range r.Actions {
		switch a.Type {
		case v1alpha1.ActionNone:
			d.nothing = append(d.nothing, c)
		case v1alpha1.ActionReboot:
			d.reboot(c, r.Drain != v1alpha1.DrainNever)
		default:
			d.ask(a, c)
		}
	}
}

// merge takes away the steps that another does as well.
func (d *draft) merge() {
	_, reboots := d.steps[rebootHost]
	for _, a := range slices.Collect(maps.Keys(d.steps)) {
		restart := v1alpha1.Action{Type: v1alpha1.ActionRestart, Unit: a.Unit}
		_, restarts := d.steps[restart]
		switch {
		case a == drainNode || a == rebootHost:
		case reboots:
			d.swallow(rebootHost, a)
		case a.Type == v1alpha1.ActionReload && restarts:
			d.swallow(restart, a)
		}
	}
}

// swallow lets one step do what another was to do.
func (d *draft) swallow(by, what v1alpha1.Action) {
	causes := d.steps[by]
	for _, c := range d.steps[what] {
		c.Swallowed = true
		if !slices.ContainsFunc(causes, func(o Cause) bool { return o.Change == c.Change }) {
			causes = append(causes, c)
		}
	}
	d.steps[by] = causes
	delete(d.steps, what)
}

// plan puts the steps in order; lists are the actions of the rules that have a
// say, the winning rule's first.
func (d *draft) plan(lists [][]v1alpha1.Action) Plan {
	order := []v1alpha1.Action{drainNode, reloadAll}
	for _, kind := range []v1alpha1.ActionType{v1alpha1.ActionReload, v1alpha1.ActionRestart} {
		var units []string
		for a := range d.steps {
			if a.Type == kind {
				units = append(units, a.Unit)
			}
		}
		for _, unit := range inOrder(units, lists) {
			order = append(order, v1alpha1.Action{Type: kind, Unit: unit})
		}
	}
	p := Plan{Wants: v1alpha1.WantsNothing, Nothing: d.nothing, HeldBack: d.heldBack}
	for _, a := range append(order, rebootHost) {
		because := d.steps[a]
		if len(because) == 0 {
			continue
		}
		slices.SortFunc(because, func(a, b Cause) int { return compareChanges(a.Change, b.Change) })
		p.Steps = append(p.Steps, Step{a, because})
	}
	if len(p.Steps) > 0 {
		p.Drains = p.Steps[0].Action == drainNode
		switch {
		case p.Steps[len(p.Steps)-1].Action == rebootHost:
			p.Wants = v1alpha1.WantsReboot
		case p.Drains:
			p.Wants = v1alpha1.WantsDrain
		default:
			p.Wants = v1alpha1.WantsApply
		}
	}
	if p.Wants == v1alpha1.WantsReboot && len(p.HeldBack) > 0 {
		p.Veto = v1alpha1.ReasonHeldBack
	}
	return p
}

// ownUnit is the unit that carries plans out.
const ownUnit = "lockkeeper.service"

// inOrder puts units in the order in which the lists have them: a rule may restart
// a unit because another has been restarted before. Where a list contradicts one
// that stands before it, it is not heeded; where none says more, the names decide.
// Our own unit comes last: its restart ends the process that carries out the rest.
func inOrder(units []string, lists [][]v1alpha1.Action) []string {
	before := map[string]map[string]bool{} // of each unit those that come before it, through others too
	for _, unit := range units {
		before[unit] = map[string]bool{}
	}
	for _, unit := range units {
		if unit != ownUnit {
			put(before, unit, ownUnit)
		}
	}
	for _, list := range lists {
		for j := range list {
			for i := range j {
				put(before, list[i].Unit, list[j].Unit)
			}
		}
	}
	slices.Sort(units)
	var done []string
	for len(units) > 0 {
		next := slices.IndexFunc(units, func(unit string) bool {
			return !slices.ContainsFunc(units, func(other string) bool { return before[unit][other] })
		})
		done = append(done, units[next])
		units = slices.Delete(units, next, next+1)
	}
	return done
}

// put puts a before b, and with it all that comes before a before all that comes
// after b, unless the opposite holds or one of them is not among the units.
func put(before map[string]map[string]bool, a, b string) {
	if a == b || before[a] == nil || before[b] == nil || before[a][b] {
		return
	}
	for unit, earlier := range before {
		if unit == b || earlier[b] {
			maps.Copy(earlier, before[a])
			earlier[a] = true
		}
	}
}
