package policy

import (
	"maps"
	"slices"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// draft collects the causes of each step while a plan is made.
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

// ask adds a cause to a step. A change is one cause of a step, even if its rule asks for
// the step twice. The caller adds one change after the other.
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

// add adds the actions of a rule.
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

// merge removes the steps that another step includes: a reboot includes every other
// action except the drain, and a restart includes a reload of the same unit.
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

// swallow removes the step what, and adds its causes to the step by, which includes it.
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

// plan returns the plan with the steps in order. lists are the actions of the rules that
// apply, the winning rule's first.
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
		slices.SortFunc(because, func(a, b Cause) int { return v1alpha1.CompareChanges(a.Change, b.Change) })
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

// ownUnit is lockkeeper's own unit, which applies plans.
const ownUnit = "lockkeeper.service"

// inOrder sorts units into the order of the lists, because a rule may restart a unit only
// because another was restarted before. An earlier list takes precedence over a later one.
// Units that no list orders are sorted by name. ownUnit comes last, because its restart
// ends the process that applies the plan.
func inOrder(units []string, lists [][]v1alpha1.Action) []string {
	before := map[string]map[string]bool{} // for each unit, all units that come before it
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

// put records that a, and every unit before a, comes before b and every unit after b. It
// does nothing if b already comes before a, or if before does not have both units.
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
