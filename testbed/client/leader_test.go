package client

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// grants returns the writes that give a node its turn. Only these start a drain.
func (w *wire) grants() []request {
	return slices.DeleteFunc(w.requests("PATCH node"), func(r request) bool { return !isGrant(r) })
}

func isGrant(r request) bool {
	return strings.HasPrefix(r.kind, "PATCH node ") && strings.Contains(r.body, `"lockkeeper.dev/state":"draining"`)
}

func state(t *testing.T, node string) string {
	t.Helper()
	return getNode(t, node).Labels["lockkeeper.dev/state"]
}

func held(t *testing.T, node string) string {
	t.Helper()
	return getNode(t, node).Labels["lockkeeper.dev/held"]
}

// index returns the index of the first matching request at or after from, or -1.
func index(all []request, from int, match func(request) bool) int {
	if i := slices.IndexFunc(all[from:], match); i >= 0 {
		return from + i
	}
	return -1
}

func ofKind(kind string) func(request) bool {
	return func(r request) bool { return r.kind == kind || strings.HasPrefix(r.kind, kind+" ") }
}

// TestNoDecisionBeforeItsOwnList checks that each term sends a quorum list after it won the Lease, and decides only
// after that.
func TestNoDecisionBeforeItsOwnList(t *testing.T) {
	freshLease(t)
	playHost(t, "n1", true)
	playHost(t, "n2", true)
	l := startCandidate(t, "leader", func(c *candidate) {
		c.w.on(func(_ context.Context, r request, _ func() (*http.Response, error)) (*http.Response, error) {
			if r.kind == "LIST nodes" {
				time.Sleep(300 * time.Millisecond) // enough time to decide without the list
			}
			return nil, nil
		})
	})
	for term := 1; term <= 2; term++ {
		epoch := l.leads(term)
		until(t, fmt.Sprintf("a write in term %d", term), func() bool {
			return slices.ContainsFunc(l.w.requests("PATCH node"), func(r request) bool { return strings.Contains(r.body, epoch) && r.status == 200 })
		})
		all := l.w.requests()
		won := index(all, 0, func(r request) bool { return r.kind == "PUT lease lockkeeper" && strings.Contains(r.body, epoch) })
		list := index(all, won, ofKind("LIST nodes"))
		write := index(all, won, ofKind("PATCH node"))
		if won < 0 || list < 0 || write < list {
			t.Fatalf("term %d: won at %d, listed at %d, wrote at %d", term, won, list, write)
		}
		if all[list].at.Before(all[won].answered) || all[write].at.Before(all[list].answered) {
			t.Errorf("term %d: won until %v, listed from %v to %v, wrote at %v", term, all[won].answered, all[list].at, all[list].answered, all[write].at)
		}
		if term == 1 {
			patchLease(t, `{"spec":{"holderIdentity":""}}`)
			patchNode(t, "n2", `{"metadata":{"annotations":{"lockkeeper.dev/paused":"for a write in the next term"}}}`)
		}
	}
	fresh(t, l.w)
	if n := len(carriedOut(l.w.grants())); n != 1 {
		t.Errorf("%d grants, want 1", n)
	}
}

func TestEmergencyStopIsSeenAtOnce(t *testing.T) {
	freshLease(t)
	playHost(t, "bystander", false) // the only node would get no drain
	playHost(t, "n1", false)
	l := startCandidate(t, "leader", nil)
	l.leads(1)
	until(t, "the nodes to be idle", func() bool { return state(t, "n1") == "idle" && state(t, "bystander") == "idle" })
	uid := string(getNode(t, "n1").UID)
	// The leader watches Nodes and the Lease apart, and may see a later change of a Node first. A paused node gets no turn either way, and
	// shows when the leader has seen the stop.
	patchNode(t, "bystander", `{"metadata":{"annotations":{"lockkeeper.dev/paused":"to see the stop"}}}`)
	sayWants(t, string(getNode(t, "bystander").UID), "bystander", true)
	stop(t)
	until(t, "the bystander to be held=Stopped", func() bool { return held(t, "bystander") == "Stopped" })
	sayWants(t, uid, "n1", true)
	until(t, "held=Stopped", func() bool { return held(t, "n1") == "Stopped" })
	never(t, "a grant during the emergency stop", 2*time.Second, func() bool { return len(l.w.grants()) > 0 })
	lifted := time.Now()
	goOn(t)
	until(t, "the grant", func() bool { return state(t, "n1") == "draining" })
	if took := l.w.grants()[0].at.Sub(lifted); took > 15*time.Second { // without a reason the loop runs every 30 s
		t.Errorf("the leader noticed the lifted stop after %v", took)
	}
	if held(t, "n1") != "" {
		t.Errorf("held=%s in a turn that continues", held(t, "n1"))
	}
}

// TestUnknownGrantHoldsTheOthers checks that a grant with a lost answer counts: the leader grants nothing else until
// the same write was answered and the Node was read.
func TestUnknownGrantHoldsTheOthers(t *testing.T) {
	freshLease(t)
	for _, n := range []string{"n1", "n2", "n3"} {
		playHost(t, n, true)
	}
	var lost atomic.Value // body of the grant whose answers are lost
	var answer atomic.Bool
	allow(t, 2)
	l := startCandidate(t, "leader", func(c *candidate) {
		c.w.on(func(_ context.Context, r request, forward func() (*http.Response, error)) (*http.Response, error) {
			if isGrant(r) && !answer.Load() && (lost.CompareAndSwap(nil, r.body) || lost.Load() == r.body) {
				return cutAnswer(forward)
			}
			return nil, nil
		})
	})
	l.leads(1)
	until(t, "two tries of the same write", func() bool { return len(l.w.grants()) >= 2 })
	// A read after the second try may have settled it.
	for _, g := range l.w.grants()[:2] {
		if g.body != lost.Load() {
			t.Errorf("another grant while the outcome of one is unknown: %s %s", g.kind, g.body)
		}
	}
	answer.Store(true)
	until(t, "the second grant", func() bool {
		return slices.ContainsFunc(l.w.grants(), func(r request) bool { return r.body != lost.Load() && r.status == 200 })
	})
	all := l.w.requests()
	other := index(all, 0, func(r request) bool { return isGrant(r) && r.body != lost.Load() })
	last := -1
	for i := range all[:other] {
		if isGrant(all[i]) {
			last = i
		}
	}
	read := index(all, last, func(r request) bool { return strings.HasPrefix(r.kind, "GET node ") && r.status == 200 })
	if read < 0 || read > other {
		t.Errorf("the Node was not read between the last try (%d) and the next grant (%d)", last, other)
	}
	in := 0
	for _, n := range []string{"n1", "n2", "n3"} {
		if state(t, n) == "draining" {
			in++
		}
	}
	if in != 2 {
		t.Errorf("%d nodes in a turn, expected 2", in)
	}
}

// TestRefusedWriteIsNoHotLoop checks that the leader does not repeat a refused write in a loop, whatever the error is.
func TestRefusedWriteIsNoHotLoop(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		code   int
		reason string
	}{
		"forbidden":                  {403, "Forbidden"},
		"invalid":                    {422, "Invalid"},
		"a conflict that is none":    {409, "Conflict"},
		"too many requests, for now": {429, "TooManyRequests"},
	} {
		t.Run(name, func(t *testing.T) {
			freshLease(t)
			playHost(t, "n1", true)
			playHost(t, "n2", false)
			l := startCandidate(t, "leader", func(cd *candidate) {
				cd.w.on(func(_ context.Context, r request, _ func() (*http.Response, error)) (*http.Response, error) {
					if r.kind == "PATCH node n1" {
						return says(c.code, c.reason), nil
					}
					return nil, nil
				})
			})
			l.leads(1)
			until(t, "the first refusal", func() bool { return l.w.count("PATCH node n1") > 0 })
			// Changes in the meantime each make the leader decide again.
			began := time.Now()
			for i := 0; time.Since(began) < 4*time.Second; i++ {
				patchNode(t, "n2", fmt.Sprintf(`{"metadata":{"annotations":{"hook.lockkeeper.dev/count":"%d"}}}`, i))
			}
			// The leader leaves the node alone for 30 s each time.
			most := 2 * (1 + int(time.Since(l.w.requests("PATCH node n1")[0].at)/(30*time.Second)))
			if n := l.w.count("PATCH node n1"); n > most {
				t.Errorf("%d writes to a node that refuses them, expected at most %d", n, most)
			}
			if n := l.w.count("GET node n1"); n > most {
				t.Errorf("%d reads of the node, expected at most %d", n, most)
			}
			until(t, "the other node to be idle", func() bool { return state(t, "n2") == "idle" })
			if !l.status().Leader || len(l.epochs()) != 1 {
				t.Errorf("status %+v", l.status())
			}
		})
	}
}

// TestManyRefusedDelayNoOthers checks that a rack of nodes whose writes are refused does not delay other nodes.
func TestManyRefusedDelayNoOthers(t *testing.T) {
	freshLease(t)
	for i := range 40 {
		playHost(t, fmt.Sprintf("a%02d", i), false)
	}
	playHost(t, "z", false)
	l := startCandidate(t, "leader", func(c *candidate) {
		c.w.on(func(_ context.Context, r request, _ func() (*http.Response, error)) (*http.Response, error) {
			if strings.HasPrefix(r.kind, "PATCH node a") {
				return says(403, "Forbidden"), nil
			}
			return nil, nil
		})
	})
	l.leads(1)
	until(t, "the last node to be idle", func() bool { return state(t, "z") == "idle" })
	writes := l.w.requests("PATCH node")
	if most := 1 + 2*40*(1+int(time.Since(writes[0].at)/(30*time.Second))); len(writes) > most { // each is left alone for 30 s
		t.Errorf("%d writes until then, expected at most %d", len(writes), most)
	}
}

// TestConflictDropsTheDecision checks that the leader drops a decision on a Node that has changed since.
func TestConflictDropsTheDecision(t *testing.T) {
	freshLease(t)
	playHost(t, "bystander", false) // the only node would get no drain
	playHost(t, "n1", false)
	l := startCandidate(t, "leader", nil)
	l.leads(1)
	until(t, "n1 to be idle", func() bool { return state(t, "n1") == "idle" })
	var once atomic.Bool
	l.w.on(func(_ context.Context, r request, _ func() (*http.Response, error)) (*http.Response, error) {
		if isGrant(r) && once.CompareAndSwap(false, true) {
			patchNode(t, "n1", `{"metadata":{"annotations":{"lockkeeper.dev/paused":"just in time"}}}`)
		}
		return nil, nil
	})
	sayWants(t, string(getNode(t, "n1").UID), "n1", true)
	until(t, "n1 paused", func() bool { return state(t, "n1") == "paused" })
	never(t, "a turn of a paused node", time.Second, func() bool { return getNode(t, "n1").Annotations["lockkeeper.dev/turn"] != "" })
	if g := l.w.grants(); len(g) != 1 || g[0].status != http.StatusConflict {
		t.Errorf("grants %+v, expected the one with the conflict", g)
	}
}

// TestLateAnswerOfADeletedNode checks that a deleted node frees its slot, even if the answer to the grant arrives after
// the watch reported the deletion.
func TestLateAnswerOfADeletedNode(t *testing.T) {
	freshLease(t)
	playHost(t, "bystander", false) // the only node would get no drain
	playHost(t, "n1", true)
	var once atomic.Bool
	l := startCandidate(t, "leader", func(c *candidate) {
		c.w.on(func(_ context.Context, r request, forward func() (*http.Response, error)) (*http.Response, error) {
			if !isGrant(r) || !once.CompareAndSwap(false, true) {
				return nil, nil
			}
			resp, err := forward()
			if derr := cp(t).Client().CoreV1().Nodes().Delete(context.Background(), "n1", deleteNow); derr != nil {
				t.Error(derr)
			}
			time.Sleep(time.Second) // the watch reports the deletion in the meantime
			return resp, err
		})
	})
	l.leads(1)
	until(t, "the grant", once.Load)
	playHost(t, "n2", true)
	until(t, "n2's turn", func() bool { return state(t, "n2") == "draining" })
}

// TestSkewedClockDoesNotLead checks that a host with a wrong clock is not a candidate, and hands over when it notices
// the skew during a term.
func TestSkewedClockDoesNotLead(t *testing.T) {
	freshLease(t)
	playHost(t, "bystander", false) // the only node would get no drain
	playHost(t, "n1", true)
	var ahead atomic.Int64
	ahead.Store(int64(40 * time.Second))
	l := startCandidate(t, "leader", func(c *candidate) {
		c.w.on(func(_ context.Context, _ request, forward func() (*http.Response, error)) (*http.Response, error) {
			resp, err := forward()
			if err == nil {
				resp.Header.Set("Date", time.Now().Add(time.Duration(ahead.Load())).UTC().Format(http.TimeFormat))
			}
			return resp, err
		})
	})
	l.says("clock")
	never(t, "it stands", 6*time.Second, func() bool { return l.w.count("PUT lease") > 0 })
	ahead.Store(int64(-20 * time.Second)) // within what is allowed
	first := l.leads(1)
	until(t, "the grant", func() bool { return state(t, "n1") == "draining" })
	ahead.Store(int64(-40 * time.Second))
	l.says("clock")
	until(t, "the Lease to be released", func() bool { return holder(t) != first })
}

// TestLeaderThatCannotRenewIsQuiet checks the guarantee about two leaders. Two instances may believe for a moment that
// they lead; nothing can prevent that. But a leader that cannot renew sends nothing after its renew deadline, before
// another instance may take the Lease, and nothing at all after it released the Lease. The protocol makes writes
// harmless that the network delivers even later.
func TestLeaderThatCannotRenewIsQuiet(t *testing.T) {
	t.Parallel()
	short := func(c *candidate) { c.opts.LeaseDuration, c.opts.RenewDeadline = 20*time.Second, 6*time.Second }
	for name, hang := range map[string]bool{"refused": false, "hanging": true} {
		t.Run(name, func(t *testing.T) {
			freshLease(t)
			playHost(t, "n1", true)
			playHost(t, "n2", false)
			var broken atomic.Bool
			a := startCandidate(t, "a", func(c *candidate) {
				short(c)
				c.w.on(func(ctx context.Context, r request, _ func() (*http.Response, error)) (*http.Response, error) {
					switch {
					case !broken.Load() || r.kind != "PUT lease lockkeeper" && !(hang && r.kind == "GET lease lockkeeper"):
						return nil, nil
					case hang:
						<-ctx.Done()
						return nil, errCut
					case !strings.Contains(r.body, "a_"):
						return nil, nil // let the release pass
					}
					return says(500, "InternalError"), nil
				})
			})
			first := a.leads(1)
			b := startCandidate(t, "b", short)
			b.says("standby; " + first)
			broken.Store(true)
			// The wants of n2 change all the time, so the leader has reasons to write.
			uid, began := string(getNode(t, "n2").UID), time.Now()
			for i := 0; len(b.epochs()) == 0; i++ {
				sayWants(t, uid, "n2", i%2 == 0)
				if time.Since(began) > patience {
					t.Fatal("no instance took over")
				}
			}
			renewed := time.Time{} // a renewal may have been in flight when the wire broke
			for _, r := range a.w.leaseWrites(first, renewed) {
				if r.status == 200 {
					renewed = r.at
				}
			}
			won := b.w.requests("PUT lease")[0]
			writes := 0
			for _, r := range a.w.requests("PATCH node") {
				if r.at.After(renewed) {
					writes++
				}
				// A write that was in flight at that time may arrive a little later.
				if since := r.at.Sub(renewed); since > (a.opts.RenewDeadline+a.opts.LeaseDuration)/2 {
					t.Errorf("a wrote %v after its last renewal", since)
				}
				if r.at.After(won.at) {
					t.Errorf("a wrote %v after b took the Lease", r.at.Sub(won.at))
				}
				for _, p := range a.w.requests("PUT lease") {
					if !strings.Contains(p.body, "a_") && r.at.After(p.at) {
						t.Errorf("a wrote %v after it released the Lease", r.at.Sub(p.at))
					}
				}
			}
			if writes == 0 {
				t.Error("a wrote nothing although it led: the test proves nothing")
			}
		})
	}
}

// TestNoAnswersAtAll has the API server answer no write of a Node, as with a webhook that hangs. After a few writes the
// leader sends no more, its loop keeps running, and it recovers without help.
func TestNoAnswersAtAll(t *testing.T) {
	freshLease(t)
	for i := range 16 {
		playHost(t, fmt.Sprintf("n%d", i), false)
	}
	var deaf atomic.Bool
	deaf.Store(true)
	l := startCandidate(t, "leader", func(c *candidate) {
		c.w.on(func(_ context.Context, r request, _ func() (*http.Response, error)) (*http.Response, error) {
			if deaf.Load() && strings.HasPrefix(r.kind, "PATCH node") {
				return nil, errCut
			}
			return nil, nil
		})
	})
	l.leads(1)
	until(t, "ten writes without an answer", func() bool { return l.w.count("PATCH node") >= 10 })
	never(t, "a write to an eleventh node", 3*time.Second, func() bool {
		nodes := map[string]bool{}
		for _, r := range l.w.requests("PATCH node") {
			nodes[r.kind] = true
		}
		return len(nodes) > 10
	})
	deaf.Store(false)
	for i := range 16 {
		until(t, "all nodes to be idle", func() bool { return state(t, fmt.Sprintf("n%d", i)) == "idle" })
	}
	if len(l.epochs()) != 1 {
		t.Errorf("epochs %v", l.epochs())
	}
}

// TestReasonsAreSpread checks that the leader writes reasons that concern the whole fleet one node after another, and
// that moves do not wait for them.
func TestReasonsAreSpread(t *testing.T) {
	freshLease(t)
	const fleet = 60
	name := func(i int) string { return fmt.Sprintf("n%02d", i) }
	for i := range fleet {
		playHost(t, name(i), true)
	}
	stop(t)
	l := startCandidate(t, "leader", nil)
	l.leads(1)
	reasons := func() (writes []request) {
		return slices.DeleteFunc(l.w.requests("PATCH node"), func(r request) bool {
			return !strings.Contains(r.body, `"lockkeeper.dev/held":"Stopped"`) || r.status != 200
		})
	}
	until(t, "the first reasons", func() bool { return len(reasons()) >= 20 })
	until(t, "a few more", func() bool { return len(reasons()) >= 28 })
	told := reasons()
	// The first twenty are written at once, then one a second: sixty nodes in a minute. The first may have been
	// delayed on the way.
	if took := told[27].at.Sub(told[0].at); took < 4*time.Second {
		t.Errorf("28 reasons in %v", took)
	}
	lifted := time.Now()
	goOn(t)
	until(t, "the grant", func() bool { return len(l.w.grants()) > 0 })
	if g := l.w.grants()[0]; g.at.Sub(lifted) > 20*time.Second { // the waiting reasons need half a minute
		t.Errorf("granted %v after the stop was lifted, while reasons waited", g.at.Sub(lifted))
	}
	seen := map[string]int{}
	for _, r := range reasons() {
		if seen[r.kind]++; seen[r.kind] > 1 {
			t.Errorf("%s was written twice", r.kind)
		}
	}
}

// TestIdleLeaderAsksNothing checks that a kubelet's heartbeat without news makes the leader neither read nor write.
func TestIdleLeaderAsksNothing(t *testing.T) {
	freshLease(t)
	playHost(t, "n1", false)
	playHost(t, "n2", false)
	l := startCandidate(t, "leader", nil)
	epoch := l.leads(1)
	until(t, "both nodes to be idle", func() bool { return state(t, "n1") == "idle" && state(t, "n2") == "idle" })
	count := func() int { return l.w.count() - l.w.count("GET lease", "PUT lease") }
	until(t, "the end of the requests that admit the nodes", func() bool {
		before := count()
		time.Sleep(2 * time.Second)
		return count() == before
	})
	from, before := time.Now(), count()
	for i := 0; len(l.w.leaseWrites(epoch, from)) < 6; i++ {
		must(t, cp(t).SetNodeReady(t.Context(), "n1", "boot-1", true))
		patchNode(t, "n2", fmt.Sprintf(`{"metadata":{"annotations":{"example.org/agent":"%d"}}}`, i))
	}
	if n := count() - before; n > 0 {
		t.Errorf("%d requests except those for the Lease: %q", n, l.w.kinds())
	}
}
