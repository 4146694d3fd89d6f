package explore

import (
	"fmt"
	"strconv"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// object is one version of a Node, as small as possible. Turns, boots, UIDs and epochs are numbers that are compared
// only for equality; 0 means none. An object has no resourceVersion; see node.
type object struct {
	uid            uint8 // 0: the Node does not exist
	young          bool  // it was created less than the settle time ago
	boot           uint8 // as the kubelet reports
	ready, unsched bool
	readyLong      bool  // it has been Ready for the canaries' time
	state          uint8 // index into states

	wants    uint8 // 1 + index into wants; 0: no label
	host     hostRecord
	ack      ackRecord
	turn     uint8
	grant    grantRecord
	last     lastRecord
	mark     bool
	paused   bool
	detached uint8 // 1: detached, 2: by force
	managed  uint8 // 1: managed=false
	retry    uint8
	request  uint8 // an admin's request for a reboot; requests with different texts have different numbers
	now      uint8 // the same, for one that does not wait
	runs     runsRecord
	hooks    [3]uint8 // the id of the turn for which hook "h0" to "h2" is confirmed
}

type hostRecord struct {
	boot, uid       uint8
	start           uint8 // start time of the process, different for each process
	managed, drains bool
	hookFailed      bool
	applyFailed     bool
	units           bool  // it has hook units in each hook stage
	part            uint8 // the turn that the host takes part in
	permits         uint8 // the turn in which the host lets its FleetLock client reboot
	veto            uint8
	request, client bool  // one of the changes is a request; a FleetLock client's
	change, version uint8 // the OS version after the change, 0: no change; the current OS version
	blocked         uint8 // since when pods have blocked it: an index into blockedSince, 0: none does
	blockOff        bool
}

// runsRecord is since when the node has run a version.
type runsRecord struct {
	version, boot uint8
	long          bool // for the canaries' time
}

type ackRecord struct{ turn, boot, state, word, reason uint8 }

// grantRecord holds ages instead of times: how many times the longest timeout has passed since the event.
type grantRecord struct {
	turn, epoch, uid, boot, wants, change, version uint8
	blockOff                                       bool
	drains, only, asked, client                    bool  // asked: one of the changes is a request; client: a FleetLock client's
	request, now                                   uint8 // which
	started, stage                                 int8
	frozen                                         int8 // 1 + age; 0: not frozen
	pausedFor                                      int8
	result, reason                                 uint8
}

type lastRecord struct {
	turn, result, reason, change uint8
	request, client              bool // one of the changes is a request; a FleetLock client's
	backoff                      bool // not-before is in the future
	settles                      bool // the turn ended less than the settle time ago
	digest                       hostRecord
	wants                        uint8 // the wants behind the digest; 0: none
}

var (
	states    = v1alpha1.States()
	wantsList = []v1alpha1.Wants{v1alpha1.WantsNothing, v1alpha1.WantsApply, v1alpha1.WantsDrain, v1alpha1.WantsReboot}
	words     = []v1alpha1.Report{"", v1alpha1.ReportSeen, v1alpha1.ReportCommitted, v1alpha1.ReportDone, v1alpha1.ReportRefused, v1alpha1.ReportFailed}
	results   = []v1alpha1.Result{"", v1alpha1.ResultDone, v1alpha1.ResultCancelled, v1alpha1.ResultBackedOut, v1alpha1.ResultFailed}
	reasons   = reasonList()
)

func reasonList() []v1alpha1.Reason {
	list := []v1alpha1.Reason{v1alpha1.ReasonNone}
	for _, d := range v1alpha1.ReasonDocs() {
		list = append(list, d.Reason)
	}
	return list
}

// number returns the index of v in list. It panics for a value that is not in the list, because that is an error of the
// model.
func number[T comparable](list []T, v T) uint8 {
	for i, x := range list {
		if x == v {
			return uint8(i)
		}
	}
	panic(fmt.Sprintf("explore: %v is not in %v", v, list))
}

func (o *object) st() v1alpha1.State { return states[o.state] }
func (o *object) exists() bool       { return o.uid != 0 }
func (o *object) says(w v1alpha1.Report) bool {
	return o.turn != 0 && o.ack.turn == o.turn && o.ack.state == o.state && words[o.ack.word] == w
}

// requested reports whether an admin requests a reboot.
func (o *object) requested() bool { return o.request != 0 || o.now != 0 }

// committed reports whether the host has reported a commit for this turn in its current state.
func (o *object) committed() bool {
	s := o.st()
	return (s == v1alpha1.StateRebooting || s == v1alpha1.StateApplying) && o.says(v1alpha1.ReportCommitted)
}

// now is the constant time of the model. Earlier points in time are whole eons before it.
var now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

const eon = 400 * time.Hour // longer than any timeout

func id(prefix string, n uint8) string {
	if n == 0 {
		return ""
	}
	return prefix + strconv.Itoa(int(n))
}

func num(s string) uint8 {
	if s == "" {
		return 0
	}
	n, err := strconv.ParseUint(s[1:], 10, 8)
	if err != nil {
		panic("explore: unknown id: " + s)
	}
	return uint8(n)
}

func version(n uint8) string { return id("4.", n) }

func versionNum(s string) uint8 {
	if s == "" {
		return 0
	}
	return num(s[1:])
}

func changes(to uint8, requested bool) (all []v1alpha1.Change) {
	if to != 0 {
		all = append(all, v1alpha1.Change{Source: v1alpha1.SourceOSUpdate, Version: version(to)})
	}
	if requested {
		all = append(all, v1alpha1.Change{Source: v1alpha1.SourceRequest})
	}
	return all
}

func changeNum(changes []v1alpha1.Change) (to uint8, requested, client bool) {
	for _, c := range changes {
		switch c.Source {
		case v1alpha1.SourceRequest:
			requested = true
		case v1alpha1.SourceFleetLock:
			client = true
		default:
			to = versionNum(c.Version)
		}
	}
	return to, requested, client
}

// requestDigests are the digests of requests, by their numbers.
var requestDigests = []string{"", v1alpha1.Digest(v1alpha1.FormatRecord(requestOf(1))), v1alpha1.Digest(v1alpha1.FormatRecord(requestOf(2)))}

// requestOf returns a request's payload.
func requestOf(n uint8) *v1alpha1.Request {
	if n == 0 {
		return nil
	}
	return &v1alpha1.Request{Action: "reboot", Reason: id("r", n)}
}

// at returns the start time of a process. A process that finds a commit writes its start time before it acts on the
// commit. That write invalidates every write that its predecessor has in flight.
func at(start uint8) time.Time { return now.Add(time.Duration(start) * time.Second) }

func ago(age int8) time.Time { return now.Add(-time.Duration(age) * eon) }

func ageOf(t time.Time) int8 { return int8(now.Sub(t).Round(eon) / eon) }

// facts returns the Node as the product's cores see it, parsed from real labels and annotations.
func (o *object) facts(name string) turn.Node {
	n := turn.Node{
		Name: name, UID: id("u", o.uid), ResourceVersion: "1", Created: now.Add(-time.Hour),
		BootID: id("b", o.boot), Ready: o.ready, Unschedulable: o.unsched,
	}
	if o.young {
		n.Created = now
	}
	n.ReadySince = sinceOf(o.readyLong)
	n.Keys = v1alpha1.ReadKeys(o.wire())
	return n
}
