package virtual

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/apiserver"
)

// exclusion is one key of a Node by which a program leaves it alone.
type exclusion struct{ node, name string }

// excludeModes are what an admin does with an exclusion: sets it as lockkeeper does, sets it to another value, or removes it.
func excludeModes() (modes []string) {
	for _, x := range v1alpha1.AllExclusions() {
		modes = append(modes, x.Name, x.Name+",theirs", x.Name+",gone")
	}
	return modes
}

// exclude has an admin change an exclusion of a Node.
func exclude(e *executor, f Fault) {
	name, how, _ := strings.Cut(f.Mode, ",")
	for _, x := range v1alpha1.AllExclusions() {
		if x.Name != name {
			continue
		}
		var value any
		switch how {
		case "":
			value = x.Value
		case "theirs":
			value = "theirs"
		}
		if x.Kind == v1alpha1.MarkLabel {
			e.people.patchNode(f.On, label(x.Key, value))
		} else {
			e.people.patchNode(f.On, annotate(x.Key, value))
		}
	}
}

// judgeExclusions judges a write to a Node: a host sets an exclusion only with a mark that names it, where there was none, and removes only what
// the mark names and no one has changed; no one else's program changes any. It remembers which ones are a host's, and how admins have left the
// others.
func (f *Fleet) judgeExclusions(w *apiserver.Write, excused bool) {
	old, _ := w.Old.(*corev1.Node)
	obj, _ := w.Object.(*corev1.Node)
	if old == nil {
		old = &corev1.Node{}
	}
	host := "system:node:" + w.Name
	var before, after turn.Node
	if before = turn.FromNode(old); obj != nil {
		after = turn.FromNode(obj)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes[w.Name] = after
	for _, x := range v1alpha1.AllExclusions() {
		id := exclusion{w.Name, x.Name}
		was, had := before.Excluded[x.Name]
		is, has := after.Excluded[x.Name]
		changed := had != has || was != is
		switch {
		case obj == nil, w.Old == nil:
			// The Node goes, or comes with what its creator put on it.
			delete(f.set, id)
			delete(f.left, id)
			if has {
				f.rememberLocked(&after, &x)
			}
			continue
		case changed && w.User == host && !excused:
			sets := !had && has && is == x.Value && !before.Mark && after.Mark && after.Cordon.Has(x.Name)
			removes := had && !has && was == x.Value && before.Mark && before.Cordon.Has(x.Name) && !after.Mark
			if !sets && !removes {
				f.problems = append(f.problems, "Exclusion: "+w.Name+" changed "+x.Key+" from "+quoted(was, had)+" to "+quoted(is, has)+", and that is not its own")
			}
			if delete(f.left, id); sets {
				f.set[id] = true
			}
		case changed && !excused:
			f.problems = append(f.problems, "Exclusion: "+w.User+" changed "+x.Key+" of "+w.Name)
		case changed && has:
			f.left[id] = is
			delete(f.set, id)
		case changed:
			delete(f.left, id)
		}
		if !has {
			delete(f.set, id)
		}
		if before.Mark && !after.Mark && (before.Detached != nil || w.User != host || excused) {
			delete(f.set, id) // it is the new owner's
		}
	}
}

// rememberLocked remembers whose an exclusion is that was found on a Node: the host's, if its mark names it and it has the value that hosts set.
func (f *Fleet) rememberLocked(n *turn.Node, x *v1alpha1.Exclusion) {
	id, is := exclusion{n.Name, x.Name}, n.Excluded[x.Name]
	if n.Mark && n.Cordon.Has(x.Name) && is == x.Value {
		f.set[id] = true
	} else {
		f.left[id] = is
	}
}

func quoted(value string, is bool) string {
	if !is {
		return "nothing"
	}
	return `"` + value + `"`
}

// restoredExclusions forgets what was before the store was set back.
func (f *Fleet) restoredExclusions() {
	nodes := f.Server.List("nodes") // it takes a lock that is taken before f.mu
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.set)
	clear(f.left)
	clear(f.nodes)
	for _, obj := range nodes {
		n := turn.FromNode(obj.(*corev1.Node))
		f.nodes[n.Name] = n
		for _, x := range v1alpha1.AllExclusions() {
			if _, has := n.Excluded[x.Name]; has {
				f.rememberLocked(&n, &x)
			}
		}
	}
}

// Excluded says, a line for each, which exclusions are not as they have to be when no node is in a turn: a host has left one, or one of an admin's is
// not as the admin left it.
func (f *Fleet) Excluded() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var lines []string
	for id := range f.set {
		if n := f.nodes[id.node]; !n.InTurn() && !n.Mark {
			lines = append(lines, "Exclusion: "+id.node+" has "+id.name+" of a turn that is over")
		}
	}
	for id, value := range f.left {
		n := f.nodes[id.node]
		if is, has := n.Excluded[id.name]; !has || is != value {
			lines = append(lines, "Exclusion: an admin left "+id.name+" of "+id.node+" as "+quoted(value, true)+", and it is "+quoted(is, has))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// judgeDelay judges the first moment of an eviction: not before load balancers had their time.
func (f *Fleet) judgeDelay(w *apiserver.Write) {
	p, _ := w.Object.(*corev1.Pod)
	if old, _ := w.Old.(*corev1.Pod); p == nil || p.DeletionTimestamp == nil || old == nil || old.DeletionTimestamp != nil || w.User != "system:node:"+p.Spec.NodeName {
		return
	}
	f.mu.Lock()
	n := f.nodes[p.Spec.NodeName]
	liar := slices.Contains(f.attack.Liars, n.Name)
	f.mu.Unlock()
	if liar || n.State != v1alpha1.StateDraining || !n.Ours() || !n.Cordon.Has(v1alpha1.ExclusionLoadBalancers) {
		return
	}
	if early := time.Until(n.Cordon.At.Add(n.Grant.Terms.LoadBalancerDelay.Duration)); early > 0 {
		f.problem("Exclusion: %s evicted %s %v before load balancers had had their time", n.Name, p.Name, early)
	}
}
