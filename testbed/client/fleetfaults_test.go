package client

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/testbed/faultproxy"
)

// perPod bounds the faults that hit one pod's evictions and deletions, so that its real answer comes in time.
const perPod = 2

// writeFaults are what may happen to an eviction or a deletion.
var writeFaults = []func(*rand.Rand) *faultproxy.Fault{
	func(*rand.Rand) *faultproxy.Fault { return faultproxy.Refuse(http.StatusConflict, 0) },
	func(*rand.Rand) *faultproxy.Fault { return faultproxy.Refuse(http.StatusTooManyRequests, 0) },
	func(r *rand.Rand) *faultproxy.Fault {
		return faultproxy.Refuse(http.StatusTooManyRequests, time.Duration(1+r.IntN(2))*time.Second)
	},
	func(*rand.Rand) *faultproxy.Fault { return faultproxy.Refuse(http.StatusServiceUnavailable, 0) },
	func(*rand.Rand) *faultproxy.Fault { return &faultproxy.Fault{Reset: true} },
	func(*rand.Rand) *faultproxy.Fault { return &faultproxy.Fault{ResetAnswer: true} },
	func(r *rand.Rand) *faultproxy.Fault { return &faultproxy.Fault{Delay: shortly(r)} },
	func(r *rand.Rand) *faultproxy.Fault { return &faultproxy.Fault{DelayAnswer: shortly(r)} },
	func(*rand.Rand) *faultproxy.Fault { return faultproxy.Refuse(http.StatusInternalServerError, 0) },
	func(*rand.Rand) *faultproxy.Fault {
		return faultproxy.Refuse(http.StatusInternalServerError, time.Second)
	},
}

// slowFaults is how many faults at the end of writeFaults double the drain's long delays, of 5 s and more.
const slowFaults = 2

// listFaults are what may happen to a list.
var listFaults = []func(*rand.Rand) *faultproxy.Fault{
	func(*rand.Rand) *faultproxy.Fault {
		return faultproxy.Refuse(http.StatusTooManyRequests, time.Second)
	},
	func(*rand.Rand) *faultproxy.Fault { return faultproxy.Refuse(http.StatusInternalServerError, 0) },
	func(*rand.Rand) *faultproxy.Fault {
		return faultproxy.Refuse(http.StatusInternalServerError, time.Second)
	},
	func(*rand.Rand) *faultproxy.Fault { return faultproxy.Refuse(http.StatusServiceUnavailable, 0) },
	func(*rand.Rand) *faultproxy.Fault { return &faultproxy.Fault{Reset: true} },
	func(*rand.Rand) *faultproxy.Fault { return &faultproxy.Fault{ResetAnswer: true} },
	func(r *rand.Rand) *faultproxy.Fault { return &faultproxy.Fault{Delay: shortly(r)} },
	func(r *rand.Rand) *faultproxy.Fault { return &faultproxy.Fault{DelayAnswer: shortly(r)} },
	func(r *rand.Rand) *faultproxy.Fault { return &faultproxy.Fault{Page: int64(1 + r.IntN(3))} },
	func(r *rand.Rand) *faultproxy.Fault { return &faultproxy.Fault{Page: int64(1 + r.IntN(3))} },
}

// watchFaults are what may happen to a watch that begins, besides being cut later.
var watchFaults = []func(*rand.Rand) *faultproxy.Fault{
	func(*rand.Rand) *faultproxy.Fault { return faultproxy.Refuse(http.StatusGone, 0) },
	func(*rand.Rand) *faultproxy.Fault {
		return faultproxy.Refuse(http.StatusTooManyRequests, time.Second)
	},
	func(*rand.Rand) *faultproxy.Fault { return faultproxy.Refuse(http.StatusInternalServerError, 0) },
	func(*rand.Rand) *faultproxy.Fault { return &faultproxy.Fault{Reset: true} },
	func(r *rand.Rand) *faultproxy.Fault { return &faultproxy.Fault{Delay: shortly(r)} },
}

func shortly(r *rand.Rand) time.Duration { return time.Duration(100+r.IntN(1200)) * time.Millisecond }

// fault is the rule of the host's proxy. The fleet's seed and the number of the request decide.
func (h *fleetHost) fault(r *faultproxy.Request) *faultproxy.Fault {
	h.asked(r)
	key := fnv.New64a()
	fmt.Fprint(key, h.node, r.Verb, r.Resource, r.Subresource, r.Number)
	rng := rand.New(rand.NewPCG(h.plan.seed<<20|h.plan.number, key.Sum64()))
	uid, _ := targetOf(r.Label)
	writes := writeFaults
	if g := h.f.judge.groupNamed(r.Name); !h.plan.long && g != nil && g.obstacle != nil {
		writes = writes[:len(writes)-slowFaults]
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.faults == 0 || rng.IntN(3) != 0 || r.Write() && h.hit[uid] == perPod {
		return nil
	}
	h.faults--
	var f *faultproxy.Fault
	switch {
	case r.Write():
		h.hit[uid]++
		f = writes[rng.IntN(len(writes))](rng)
		if f.RetryAfter > 0 && r.Verb == "create" {
			h.later = append(h.later, retryAfter{uid, r.Time, f.RetryAfter})
		}
	case r.Verb == "list":
		h.unread = time.Now()
		f = listFaults[rng.IntN(len(listFaults))](rng)
	case r.Verb == "watch" && rng.IntN(2) == 0:
		at := 2 * shortly(rng)
		h.unread = time.Now().Add(at)
		time.AfterFunc(at, func() { h.proxy.CutWatches() })
		return nil
	default:
		h.unread = time.Now()
		f = watchFaults[rng.IntN(len(watchFaults))](rng)
	}
	return f
}

// retryAfter is an answer to an eviction with a Retry-After.
type retryAfter struct {
	uid types.UID
	at  time.Time
	d   time.Duration
}

// labelWrite labels a write with the UID that it demands and the grace period that it sets, "" for none.
func labelWrite(r *faultproxy.Request) string {
	obj, err := r.Object()
	if err != nil {
		return err.Error()
	}
	o, ok := obj.(*metav1.DeleteOptions)
	if e, is := obj.(*policyv1.Eviction); is {
		o, ok = e.DeleteOptions, e.DeleteOptions != nil
	}
	if !ok {
		return "/"
	}
	uid, grace := "", ""
	if o.Preconditions != nil && o.Preconditions.UID != nil {
		uid = string(*o.Preconditions.UID)
	}
	if o.GracePeriodSeconds != nil {
		grace = strconv.FormatInt(*o.GracePeriodSeconds, 10)
	}
	return uid + "/" + grace
}

// targetOf returns the UID and the grace period in a write's label.
func targetOf(label string) (uid types.UID, grace string) {
	u, grace, _ := strings.Cut(label, "/")
	return types.UID(u), grace
}

// noAnswer reports whether an answer says nothing about the pod: the API server is away, or a proxy is in its place.
func noAnswer(rec *faultproxy.Record) bool {
	return rec.Code == 0 || slices.Contains([]int{http.StatusBadGateway, http.StatusServiceUnavailable}, rec.Code) || rec.Outcome == faultproxy.Withheld
}
