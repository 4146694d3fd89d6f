package explore

import (
	"fmt"
	"strings"
)

// kind names what a step does.
type kind uint8

// kindSet is a set of kinds of faults.
type kindSet uint64

const _ kindSet = 1 << (loseAnswer - crash) // the last kind has to fit

const (
	// Steps of a host's process.
	stepHost kind = iota
	readRest
	seeNode
	expire
	poll
	evicted
	applied
	ranHooks
	lateHooks
	dueHooks
	listPods
	// Steps of a machine.
	start
	goDown
	report
	notReady
	heal
	confirm
	settled
	podEnds
	blockTime
	ranTime
	offer
	ask
	askAgain
	hangUp
	withdrawn
	clientReboots
	rebootByHand
	// Steps of a term.
	list
	watch
	lateDecision
	watchLease
	decide
	sendWrite
	settleWrite
	tryAgain
	landUnknown
	landOrphan
	campaign
	freeLease
	// Admin steps that undo a fault. They cost no fault.
	resume
	attach
	manage
	goOn
	recreateLease
	recreateNode
	clearTurn
	unguard
	policyEvicts
	blackoutBegins
	blackoutEnds

	// Faults. Each costs one fault of the run.
	crash
	rollback
	killProcess
	loseHostWrite
	failRead
	cancel
	restage
	refuseReboot
	failApply
	failHooks
	sicken
	latePod
	cordon
	uncordon
	pause
	detach
	forceDetach
	unmanage
	strip
	request
	requestNow
	withdraw
	deleteNode
	guard
	age
	loseWrite
	crashLeader
	takeOver
	stop
	blankLease
	deleteLease
	blockPod
	policyHolds
	forgeBlockOff
	blip
	lie
	newer
	steady
	loseAnswer
)

var kindNames = map[kind]string{
	stepHost: "step", readRest: "read-lease", seeNode: "see", expire: "look-expires", poll: "poll", evicted: "evicted", applied: "applied", ranHooks: "ran-hooks", lateHooks: "late-hooks", dueHooks: "due-hooks", listPods: "list-pods",
	start: "start", goDown: "down", report: "kubelet", notReady: "not-ready", heal: "heal", confirm: "confirm", settled: "settled",
	podEnds: "pod-ends", blockTime: "block-time", ranTime: "ran-time", offer: "offer",
	ask: "ask", askAgain: "ask-again", hangUp: "hang-up", withdrawn: "withdrawn", clientReboots: "client-reboots", rebootByHand: "by-hand",
	list: "list", watch: "watch", lateDecision: "too-late", watchLease: "watch-lease", decide: "decide", sendWrite: "send",
	settleWrite: "settle", tryAgain: "try-again", landUnknown: "lands", landOrphan: "lands-late", campaign: "campaign", freeLease: "free-lease",
	resume: "resume", attach: "attach", manage: "manage", goOn: "go", recreateLease: "recreate-lease", recreateNode: "recreate", clearTurn: "retry",
	unguard: "unguard", policyEvicts: "policy-evicts", blackoutBegins: "blackout", blackoutEnds: "blackout-ends",
	crash: "CRASH", rollback: "ROLLBACK", killProcess: "KILL", loseHostWrite: "LOSE-HOST", failRead: "FAIL-READ", cancel: "CANCEL", restage: "RESTAGE", refuseReboot: "REFUSE-REBOOT",
	failApply: "FAIL-APPLY", failHooks: "FAIL-HOOKS", sicken: "SICKEN", latePod: "LATE-POD", cordon: "CORDON", uncordon: "UNCORDON", pause: "PAUSE",
	detach: "DETACH", forceDetach: "FORCE-DETACH", unmanage: "UNMANAGE", strip: "STRIP", request: "REQUEST", requestNow: "REQUEST-NOW", withdraw: "WITHDRAW", deleteNode: "DELETE", guard: "GUARD", age: "AGE",
	loseWrite: "LOSE", crashLeader: "CRASH-LEADER", takeOver: "TAKE-OVER", stop: "STOP", blankLease: "BLANK-LEASE", deleteLease: "DELETE-LEASE",
	blockPod: "BLOCK-POD", policyHolds: "POLICY-HOLDS", forgeBlockOff: "FORGE-BLOCK", blip: "BLIP", lie: "LIE", newer: "NEWER", steady: "STEADY", loseAnswer: "LOSE-ANSWER",
}

func kindsOf(kinds ...kind) (s kindSet) {
	for _, k := range kinds {
		s |= 1 << (k - crash)
	}
	return s
}

// allKinds is the set of all kinds of faults, except those about requests, pods that block, canaries and
// FleetLock clients.
var allKinds = kindsOf(crash, rollback, killProcess, loseHostWrite, failRead, cancel, restage, refuseReboot, failApply, failHooks, sicken, latePod, cordon, uncordon,
	pause, detach, forceDetach, unmanage, strip, deleteNode, guard, age, loseWrite, crashLeader, takeOver, stop, blankLease, deleteLease)

// requests is the set of what admins do with requests for reboots.
var requests = kindsOf(request, requestNow, withdraw)

// ofBlocks is what happens to a host with pods that block, and ofCanaries to the nodes that others wait for.
var (
	ofBlocks   = kindsOf(blockPod, policyHolds, forgeBlockOff)
	ofCanaries = kindsOf(blip, lie, newer)
)

// action identifies one step, so that a script of steps can be replayed.
type action struct {
	kind kind
	node int8 // -1: not about a node
	term int8 // -1: not about a term
	arg  int8
}

// String returns the action as one line of a script: the kind; the node (n1 to n3) or "-"; the term ("leader" or
// "older") or "-"; and a number that distinguishes steps with the same first three fields.
func (a action) String() string {
	node, slot := "-", "-"
	if a.node >= 0 {
		node = fmt.Sprintf("n%d", a.node+1)
	}
	if a.term >= 0 {
		slot = [...]string{"leader", "older"}[a.term]
	}
	return fmt.Sprintf("%-14s %-2s %-6s %d", kindNames[a.kind], node, slot, a.arg)
}

func parseAction(line string) (action, error) {
	line, _, _ = strings.Cut(line, "#")
	f := strings.Fields(line)
	if len(f) != 4 {
		return action{}, fmt.Errorf("%d fields in %q, expected 4", len(f), line)
	}
	a := action{node: -1, term: -1}
	found := false
	for k, name := range kindNames {
		if name == f[0] {
			a.kind, found = k, true
		}
	}
	if !found {
		return a, fmt.Errorf("unknown step %q", f[0])
	}
	if f[1] != "-" {
		if _, err := fmt.Sscanf(f[1], "n%d", &a.node); err != nil {
			return a, fmt.Errorf("node %q: %w", f[1], err)
		}
		a.node--
	}
	switch f[2] {
	case "leader":
		a.term = 0
	case "older":
		a.term = 1
	}
	_, err := fmt.Sscan(f[3], &a.arg)
	return a, err
}
