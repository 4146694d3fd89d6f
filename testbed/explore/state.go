package explore

import "lockkeeper.dev/lockkeeper/api/v1alpha1"

// node is one node with everything that happens on it or refers to it: the Node object, the host, each term's view of
// the Node, and the writes to it in flight. Objects are indexes into tables.objects.
//
// A node has no resourceVersion: the only question is whether a version is still the current one. So a reader sees
// either the current version (vcur) or a past one (view), and a write that was decided on a past version is dead.
type node struct {
	api uint32

	// The machine.
	control       bool  // it is a control-plane node
	pool          uint8 // its Node's label; see Config.Pools
	boot, version uint8
	change        uint8 // the change that the update engine has staged; 0: none
	pods          bool  // something evictable runs on it
	down          bool  // a reboot was called
	sick          bool  // not healthy in this boot

	// The host's process, if it runs.
	proc, src     bool  // src: every source was read
	started       uint8 // identifies the process
	known         uint8 // the answer of the sources when they were last read
	vcur          bool
	view          uint32
	look          lookKind
	lh            uint8 // the epoch that the host read
	lx, ls, le    bool  // the Lease existed; the stop was set; pods were left
	drain         uint8 // 0 none, 1 runs, 2 finished
	dturn, dstate uint8 // for this stage
	apply         uint8 // 0: the next step of the plan needs a read, 1: a step runs, 2: all steps are done, 3: one failed
	stepsDone     uint8 // by the record in the runtime directory,
	recorded      uint8 // which is about this turn
	hooks         workState
	hturn, hstate uint8 // for this stage
	shut          uint8 // 0 not known, 1 none, 2 in progress
	asking        asking
	open          bool  // a request of the FleetLock client waits for its answer
	refused       uint8 // the turn whose reboot logind refused
	refusal       uint8 // the reason of a refusal with an unknown outcome; 0: none

	blocks bool  // a pod runs on it that the drain must not evict
	listed uint8 // whether the host knows of such a pod: 0 it has not listed its pods, 1 no, 2 yes
	lb     bool  // the reads before a commit showed such a pod, and Block is on
	holds  bool  // the host's policy ends no Block

	guard guardedAgainst // whose writes to the Node the API server refuses

	terms   [2]sight
	orphans [3]uint32 // writes that may still land, and that no process waits for

	may bool // the FleetLock client was given permission to reboot in this boot

	// Ghosts: facts that only the properties read.
	mayTurn   uint8 // the turn in which it was given
	admin     bool  // an admin set the cordon
	rebooted  uint8 // the turn in which a reboot was called
	cancelled uint8 // the turn in which the host published without a commit that it wants nothing
	promoted  bool  // the boot is the same as at the promotion to rebooting
	lookFair  bool  // the Lease had the grant's epoch when the reads began
	latePod   bool  // a pod came to the cordoned node
	carried   uint8 // the turn whose plan was carried out completely
	hooked    uint8 // the turn in which units of before-drain or before-reboot began, and that no unit has undone yet
	asked     uint8 // the requests that were set since the machine booted: 1 for one that waits, 2 for one that does not
	freed     bool  // the Node was deleted while a reboot was committed or pending
	aged      bool  // in this stage, the timeouts have passed under a leader
	lbKept    bool  // lb, as the properties see it
	shown     uint8 // the versions that a canary has reported since its time began, one bit for each
	ran       uint8 // those of them that it has reported for longer than the canaries' time
}

// catchUp makes the host know the current version of its Node. A refusal that was based on another version is settled.
func (n *node) catchUp() {
	if !n.vcur {
		n.refusal = 0
	}
	n.vcur, n.view = true, 0
}

// seen returns the version of its Node that the host knows.
func (n *node) seen() uint32 {
	if n.vcur {
		return n.api
	}
	return n.view
}

// dead reports whether no process of lockkeeper's runs on the machine.
func (n *node) dead() bool { return n.down || !n.proc }

// guardedAgainst is a set of the writers of a Node whose writes the API server refuses, for example because an admission
// webhook does not answer.
type guardedAgainst uint8

const (
	guardLeaders guardedAgainst = 1 << iota
	guardHost
)

// sight is one term's view of one node, and its write to it.
type sight struct {
	vcur    bool
	view    uint32
	refused bool // a write was refused, so the term writes nothing to the node for a while
	write   writeState
	grant   bool
	obj     uint32
}

type lookKind uint8

const (
	noLook     lookKind = iota
	leaseLook           // only the Lease was read, or the Node has changed since
	halfLook            // the Node was read, the Lease not yet
	commitLook          // everything was read
)

// workState is the state of the host's hook units in one stage.
type workState uint8

const (
	noWork workState = iota
	workRuns
	workDone
	workFailed
	workDue  // it failed, and its pause is over
	workLate // its next unit needs another read
)

type writeState uint8

const (
	noWrite   writeState = iota
	toSend               // of the current round; it may be in flight
	unknown              // no answer came; the write may still land
	unknownOf            // no answer came; the Node has another version now
)

// term is one term of a coordinator. The first of the two slots holds the term that took the Lease last.
type term struct {
	live, listed, stopSeen bool
	rounds                 uint8 // how often it decided after it lost the Lease
}

// Epochs. The epoch of a living term is its slot plus one.
const (
	epochLost = 3 // the Lease's holder, if it is not a living term
	epochDead = 4 // and higher: without a living term, numbered separately for each node
)

type lease struct {
	exists, stop bool
	holder       uint8
}

const maxNodes = 3

// state is one state of the whole model.
type state struct {
	lease  lease
	dark   bool // a blackout holds
	terms  [2]term
	faults int8 // left
	n      [maxNodes]node
}

// key is a state in the tables: canonical and comparable.
type key struct {
	g uint32
	n [maxNodes]uint32
}

func bit(b bool, at uint) uint32 {
	if b {
		return 1 << at
	}
	return 0
}

func (s *state) global() uint32 {
	g := bit(s.lease.exists, 0) | bit(s.lease.stop, 1) | uint32(s.lease.holder)<<2 | bit(s.dark, 15) | uint32(s.faults)<<16
	for i, t := range s.terms {
		g |= bit(t.live, uint(5+3*i)) | bit(t.listed, uint(6+3*i)) | bit(t.stopSeen, uint(7+3*i)) | uint32(t.rounds)<<(11+2*i)
	}
	return g
}

func (s *state) setGlobal(g uint32) {
	s.lease = lease{g&1 != 0, g&2 != 0, uint8(g >> 2 & 7)}
	s.faults, s.dark = int8(g>>16), g>>15&1 != 0
	for i := range s.terms {
		s.terms[i] = term{g>>(5+3*i)&1 != 0, g>>(6+3*i)&1 != 0, g>>(7+3*i)&1 != 0, uint8(g >> (11 + 2*i) & 3)}
	}
}

// tables number objects and nodes, so that a state fits into five words.
type tables struct {
	objects  []object
	objectOf map[object]uint32
	nodes    []node
	nodeOf   map[node]uint32
	canonOf  map[node]uint32 // for nodes that are not canonical
}

func newTables() *tables {
	return &tables{
		objects: []object{{}}, objectOf: map[object]uint32{{}: 0},
		nodes: nil, nodeOf: map[node]uint32{}, canonOf: map[node]uint32{},
	}
}

func (t *tables) object(o object) uint32 {
	i, ok := t.objectOf[o]
	if !ok {
		i = uint32(len(t.objects))
		t.objects = append(t.objects, o)
		t.objectOf[o] = i
	}
	return i
}

// each changes every object of n.
func (t *tables) each(n *node, f func(*object)) {
	change := func(i *uint32) {
		if *i != 0 {
			o := t.objects[*i]
			f(&o)
			*i = t.object(o)
		}
	}
	change(&n.api)
	change(&n.view)
	for k := range n.terms {
		change(&n.terms[k].view)
		change(&n.terms[k].obj)
	}
	for k := range n.orphans {
		change(&n.orphans[k])
	}
}

// canonical returns the number of n's canonical form.
func (t *tables) canonical(n node) uint32 {
	if i, ok := t.canonOf[n]; ok {
		return i
	}
	raw := n
	t.settle(&n)
	t.renumber(&n)
	i, ok := t.nodeOf[n]
	if !ok {
		i = uint32(len(t.nodes))
		t.nodes = append(t.nodes, n)
		t.nodeOf[n] = i
	}
	t.canonOf[raw] = i
	return i
}

// settle removes differences that no longer matter, and takes the steps that commute with all others.
func (t *tables) settle(n *node) {
	o := &t.objects[n.api]
	if !n.proc {
		n.started = 0
		n.src, n.known, n.vcur, n.view, n.look = false, 0, false, 0, noLook
		n.drain, n.apply, n.shut, n.refused, n.refusal, n.hooks, n.listed = 0, 0, 0, 0, 0, noWork, 0
		n.asking, n.open = askingUnknown, false
	} else if !n.vcur && n.look != halfLook && n.look != commitLook {
		// A lagging watch matters only for an action without a write, and such an action needs complete reads.
		n.catchUp()
	}
	if o.st() != v1alpha1.StateApplying && t.objects[n.seen()].st() != v1alpha1.StateApplying {
		n.apply, n.stepsDone, n.recorded, n.carried = 0, 0, 0, 0
	}
	if n.hooks == noWork {
		n.hturn, n.hstate = 0, 0
	}
	if n.drain == 0 {
		n.dturn, n.dstate = 0, 0
	}
	if n.look == noLook || n.look == halfLook {
		n.lh, n.lx, n.ls, n.le = 0, false, false, false
	}
	if n.look != commitLook {
		n.le, n.lb, n.lbKept = false, false, false
	}
	if n.known == 0 && !o.st().InTurn() {
		n.listed = 0 // a host that wants nothing forgets its pods
	}
	if n.look != commitLook && n.look != halfLook {
		n.lookFair = false
	}
	if !o.unsched {
		n.pods, n.latePod, n.admin = true, false, false
	}
	if !n.pods {
		n.latePod = false
	}
	if !o.st().InTurn() && n.terms[0].obj == 0 && n.terms[1].obj == 0 && n.orphans == [3]uint32{} {
		n.aged = false
	}
}

// renumber numbers turns, boots, UIDs, processes and dead epochs in the order of their first occurrence. They are
// compared only for equality and only within one node.
func (t *tables) renumber(n *node) {
	var turns, boots, uids, epochs, starts [256]uint8
	var nt, nb, nu, ne, ns uint8
	in := func(v *uint8, m *[256]uint8, next *uint8) {
		if *v == 0 {
			return
		}
		if m[*v] == 0 {
			*next++
			m[*v] = *next
		}
		*v = m[*v]
	}
	epoch := func(v *uint8) {
		if *v >= epochDead {
			in(v, &epochs, &ne)
			*v += epochDead - 1
		}
	}
	in(&n.boot, &boots, &nb)
	in(&n.started, &starts, &ns)
	t.each(n, func(o *object) {
		in(&o.uid, &uids, &nu)
		in(&o.boot, &boots, &nb)
		in(&o.host.boot, &boots, &nb)
		in(&o.host.uid, &uids, &nu)
		in(&o.host.start, &starts, &ns)
		in(&o.host.part, &turns, &nt)
		in(&o.host.permits, &turns, &nt)
		in(&o.turn, &turns, &nt)
		in(&o.ack.turn, &turns, &nt)
		in(&o.ack.boot, &boots, &nb)
		in(&o.grant.turn, &turns, &nt)
		in(&o.grant.boot, &boots, &nb)
		in(&o.grant.uid, &uids, &nu)
		epoch(&o.grant.epoch)
		in(&o.last.turn, &turns, &nt)
		in(&o.last.digest.boot, &boots, &nb)
		in(&o.last.digest.uid, &uids, &nu)
		in(&o.last.digest.start, &starts, &ns)
		in(&o.last.digest.part, &turns, &nt)
		in(&o.last.digest.permits, &turns, &nt)
		in(&o.retry, &turns, &nt)
		in(&o.runs.boot, &boots, &nb)
		for i := range o.hooks {
			in(&o.hooks[i], &turns, &nt)
		}
	})
	epoch(&n.lh)
	for _, turn := range []*uint8{&n.dturn, &n.hturn, &n.refused, &n.rebooted, &n.cancelled, &n.recorded, &n.carried, &n.hooked, &n.mayTurn} {
		*turn = turns[*turn] // a turn without a reference never comes back
	}
}

// pack returns the canonical key of s. Nodes are interchangeable, so pack sorts them by their numbers. count is the
// number of nodes.
func (t *tables) pack(s *state, count int) key {
	k := key{g: s.global()}
	for i := range count {
		k.n[i] = t.canonical(s.n[i])
	}
	return k.sorted(count)
}

// packed is a faster pack for a state that is one step after was, whose key is wasKey: most nodes are unchanged.
func (x *model) packed(s, was *state, wasKey key) key {
	k := key{g: s.global()}
	for i := range x.Nodes {
		if k.n[i] = wasKey.n[i]; s.n[i] != was.n[i] {
			k.n[i] = x.canonical(s.n[i])
		}
	}
	return k.sorted(x.Nodes)
}

func (k key) sorted(count int) key {
	for i := 1; i < count; i++ {
		for j := i; j > 0 && k.n[j] < k.n[j-1]; j-- {
			k.n[j], k.n[j-1] = k.n[j-1], k.n[j]
		}
	}
	return k
}

func (t *tables) unpack(k key, count int) state {
	var s state
	s.setGlobal(k.g)
	for i := range count {
		s.n[i] = t.nodes[k.n[i]]
	}
	return s
}
