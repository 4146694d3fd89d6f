package explore

import (
	"fmt"
	"strconv"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// object is one version of a Node, as small as it can be: turns, boots, UIDs
// and epochs are numbers that only equality is asked of, 0 being none. It
// holds no resourceVersion; see node.
type object struct {
	uid            uint8 // 0: there is no such Node
	boot           uint8 // as the kubelet says
	ready, unsched bool
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
	hooks    [3]uint8 // what confirms hook "h0" to "h2": the id of a turn
}

type hostRecord struct {
	boot, uid       uint8
	start           uint8 // of the process, no other started then
	managed, drains bool
	part            uint8 // the turn that it takes part in
	change, version uint8 // the OS version that a change leads to, 0 none; the OS version
}

type ackRecord struct{ turn, boot, state, word, reason uint8 }

// grantRecord holds ages in place of times: how many times the longest of all
// timeouts has passed since.
type grantRecord struct {
	turn, epoch, uid, boot, wants, change, version uint8
	drains, only                                   bool
	started, stage                                 int8
	frozen                                         int8 // since, 1 + its age; 0: it is not
	pausedFor                                      int8
	result, reason                                 uint8
}

type lastRecord struct {
	turn, result, reason, change uint8
	backoff                      bool // not-before lies in the future
	digest                       hostRecord
	wants                        uint8 // of digest: 0 is none
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

// number is the index of v in list; a value that is not in it is a mistake of
// the model, which must not be passed over.
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

// committed: the host has said so in this turn's present state.
func (o *object) committed() bool {
	s := o.st()
	return (s == v1alpha1.StateRebooting || s == v1alpha1.StateApplying) && o.says(v1alpha1.ReportCommitted)
}

// now is the one moment of the model; epochs of time lie eon before it.
var now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

const eon = 400 * time.Hour // longer than any timeout may be

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
		panic("explore: not an id of the model: " + s)
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

func changes(to uint8) []v1alpha1.Change {
	if to == 0 {
		return nil
	}
	return []v1alpha1.Change{{Source: v1alpha1.SourceOSUpdate, Version: version(to)}}
}

func changeNum(c []v1alpha1.Change) uint8 {
	if len(c) == 0 {
		return 0
	}
	return versionNum(c[0].Version)
}

// at is when a process started. It is written before a process that finds a
// commit acts on it, and so kills what its predecessor had on its way.
func at(start uint8) time.Time { return now.Add(time.Duration(start) * time.Second) }

func ago(age int8) time.Time { return now.Add(-time.Duration(age) * eon) }

func ageOf(t time.Time) int8 { return int8(now.Sub(t).Round(eon) / eon) }

// facts is the Node that the product's cores see, read out of real labels and
// annotations.
func (o *object) facts(name string) turn.Node {
	n := turn.Node{
		Name: name, UID: id("u", o.uid), ResourceVersion: "1", Created: now.Add(-time.Hour),
		BootID: id("b", o.boot), Ready: o.ready, Unschedulable: o.unsched,
	}
	n.Keys = v1alpha1.ReadKeys(o.wire())
	return n
}
