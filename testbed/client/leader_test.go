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

// grants are the writes that give a node its turn: the only ones with a drain still to come.
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

// index of the first request of the kind at or after from, -1 for none.
func index(all []request, from int, match func(request) bool) int {
	if i := slices.IndexFunc(all[from:], match); i >= 0 {
		return from + i
	}
	return -1
}

func ofKind(kind string) func(request) bool {
	return func(r request) bool { return r.kind == kind || strings.HasPrefix(r.kind, kind+" ") }
}

// Fresh eyes: in each term a list from the quorum that begins after the Lease was won, and only then a decision.
func TestNoDecisionBeforeItsOwnList(t *testing.T) {
	freshLease(t)
	playHost(t, "n1", true)
	playHost(t, "n2", true)
	l := stand(t, "leader", func(c *candidate) {
		c.w.on(func(_ context.Context, r request, _ func() (*http.Response, error)) (*http.Response, error) {
			if r.kind == "LIST nodes" {
				time.Sleep(300 * time.Millisecond) // time enough to decide without it
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
	playHost(t, "bystander", false) // an only node would have no drain
	playHost(t, "n1", false)
	l := stand(t, "leader", nil)
	l.leads(1)
	until(t, "n1 in its care", func() bool { return state(t, "n1") == "idle" })
	uid := string(getNode(t, "n1").UID)
	stop(t)
	sayWants(t, uid, "n1", true)
	until(t, "held=Stopped", func() bool { return held(t, "n1") == "Stopped" })
	never(t, "a grant under the emergency stop", 2*time.Second, func() bool { return len(l.w.grants()) > 0 })
	lifted := time.Now()
	goOn(t)
	until(t, "the grant", func() bool { return state(t, "n1") == "draining" })
	if took := l.w.grants()[0].at.Sub(lifted); took > 15*time.Second { // a round without a reason is every 30 s
		t.Errorf("the lifted stop was seen after %v", took)
	}
	if held(t, "n1") != "" {
		t.Errorf("held=%s in a turn that goes on", held(t, "n1"))
	}
}

// A grant whose answer is lost counts: nothing else is granted until the same write was answered and the Node read.
func TestUnknownGrantHoldsTheOthers(t *testing.T) {
	freshLease(t)
	for _, n := range []string{"n1", "n2", "n3"} {
		playHost(t, n, true)
	}
	var lost atomic.Value // body of the grant whose answers are lost
	var answer atomic.Bool
	allow(t, 2)
	l := stand(t, "leader", func(c *candidate) {
		c.w.on(func(_ context.Context, r request, forward func() (*http.Response, error)) (*http.Response, error) {
			if isGrant(r) && !answer.Load() && (lost.CompareAndSwap(nil, r.body) || lost.Load() == r.body) {
				return cutAnswer(forward)
			}
			return nil, nil
		})
	})
	l.leads(1)
	until(t, "two tries of the same write", func() bool { return len(l.w.grants()) >= 2 })
	// A read after the second one may have settled it by now.
	for _, g := range l.w.grants()[:2] {
		if g.body != lost.Load() {
			t.Errorf("another grant while the outcome of one is not known: %s %s", g.kind, g.body)
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
		t.Errorf("%d nodes in a turn, want 2", in)
	}
}

// A write that is refused, in whatever words, is not sent again and again.
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
			l := stand(t, "leader", func(cd *candidate) {
				cd.w.on(func(_ context.Context, r request, _ func() (*http.Response, error)) (*http.Response, error) {
					if r.kind == "PATCH node n1" {
						return says(c.code, c.reason), nil
					}
					return nil, nil
				})
			})
			l.leads(1)
			until(t, "the first refusal", func() bool { return l.w.count("PATCH node n1") > 0 })
			// Things happen meanwhile, and each of them makes the leader decide again.
			began := time.Now()
			for i := 0; time.Since(began) < 4*time.Second; i++ {
				patchNode(t, "n2", fmt.Sprintf(`{"metadata":{"annotations":{"hook.lockkeeper.dev/count":"%d"}}}`, i))
			}
			// It is left alone for 30 s each time.
			most := 2 * (1 + int(time.Since(l.w.requests("PATCH node n1")[0].at)/(30*time.Second)))
			if n := l.w.count("PATCH node n1"); n > most {
				t.Errorf("%d writes to a node that refuses them, want %d at most", n, most)
			}
			if n := l.w.count("GET node n1"); n > most {
				t.Errorf("%d reads of it, want %d at most", n, most)
			}
			until(t, "the other node in its care", func() bool { return state(t, "n2") == "idle" })
			if !l.status().Leader || len(l.epochs()) != 1 {
				t.Errorf("status %+v", l.status())
			}
		})
	}
}

// A whole rack whose writes are refused keeps no one else waiting.
func TestManyRefusedKeepNobodyWaiting(t *testing.T) {
	freshLease(t)
	for i := range 40 {
		playHost(t, fmt.Sprintf("a%02d", i), false)
	}
	playHost(t, "z", false)
	l := stand(t, "leader", func(c *candidate) {
		c.w.on(func(_ context.Context, r request, _ func() (*http.Response, error)) (*http.Response, error) {
			if strings.HasPrefix(r.kind, "PATCH node a") {
				return says(403, "Forbidden"), nil
			}
			return nil, nil
		})
	})
	l.leads(1)
	until(t, "the last one in its care", func() bool { return state(t, "z") == "idle" })
	writes := l.w.requests("PATCH node")
	if most := 1 + 2*40*(1+int(time.Since(writes[0].at)/(30*time.Second))); len(writes) > most { // each is left alone for 30 s
		t.Errorf("%d writes until then, want %d at most", len(writes), most)
	}
}

// A decision on a Node that has changed since is dropped.
func TestConflictDropsTheDecision(t *testing.T) {
	freshLease(t)
	playHost(t, "bystander", false) // an only node would have no drain
	playHost(t, "n1", false)
	l := stand(t, "leader", nil)
	l.leads(1)
	until(t, "n1 in its care", func() bool { return state(t, "n1") == "idle" })
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
		t.Errorf("grants %+v, want the one that was a conflict", g)
	}
}

// A node that is deleted frees its slot, also when the answer to the grant comes after the watch has shown the end.
func TestLateAnswerOfADeletedNode(t *testing.T) {
	freshLease(t)
	playHost(t, "bystander", false) // an only node would have no drain
	playHost(t, "n1", true)
	var once atomic.Bool
	l := stand(t, "leader", func(c *candidate) {
		c.w.on(func(_ context.Context, r request, forward func() (*http.Response, error)) (*http.Response, error) {
			if !isGrant(r) || !once.CompareAndSwap(false, true) {
				return nil, nil
			}
			resp, err := forward()
			if derr := cp(t).Client().CoreV1().Nodes().Delete(context.Background(), "n1", deleteNow); derr != nil {
				t.Error(derr)
			}
			time.Sleep(time.Second) // the watch shows it meanwhile
			return resp, err
		})
	})
	l.leads(1)
	until(t, "the grant", once.Load)
	playHost(t, "n2", true)
	until(t, "n2's turn", func() bool { return state(t, "n2") == "draining" })
}

// A host whose clock is off does not stand, and hands over when it finds out in the middle of a term.
func TestSkewedClockDoesNotLead(t *testing.T) {
	freshLease(t)
	playHost(t, "bystander", false) // an only node would have no drain
	playHost(t, "n1", true)
	var ahead atomic.Int64
	ahead.Store(int64(40 * time.Second))
	l := stand(t, "leader", func(c *candidate) {
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

// What is guaranteed about two leaders: not that they are never two for a moment, which no one can, but that the one that
// cannot renew sends nothing any more once its renew deadline is over, before anybody else may take the Lease; and nothing at
// all after the Lease was released. What arrives later still, from inside the network, the protocol makes harmless.
func TestLeaderThatCannotRenewIsQuiet(t *testing.T) {
	t.Parallel()
	short := func(c *candidate) { c.opts.LeaseDuration, c.opts.RenewDeadline = 20*time.Second, 6*time.Second }
	for name, hang := range map[string]bool{"refused": false, "hanging": true} {
		t.Run(name, func(t *testing.T) {
			freshLease(t)
			playHost(t, "n1", true)
			playHost(t, "n2", false)
			var broken atomic.Bool
			a := stand(t, "a", func(c *candidate) {
				short(c)
				c.w.on(func(ctx context.Context, r request, _ func() (*http.Response, error)) (*http.Response, error) {
					switch {
					case !broken.Load() || r.kind != "PUT lease lockkeeper" && !(hang && r.kind == "GET lease lockkeeper"):
						return nil, nil
					case hang:
						<-ctx.Done()
						return nil, errCut
					case !strings.Contains(r.body, "a_"):
						return nil, nil // the release passes
					}
					return says(500, "InternalError"), nil
				})
			})
			first := a.leads(1)
			b := stand(t, "b", short)
			b.says("standby; " + first)
			broken.Store(true)
			// Reasons to write: n2 changes its mind all the time.
			uid, began := string(getNode(t, "n2").UID), time.Now()
			for i := 0; len(b.epochs()) == 0; i++ {
				sayWants(t, uid, "n2", i%2 == 0)
				if time.Since(began) > patience {
					t.Fatal("nobody took over")
				}
			}
			renewed := time.Time{} // one was on its way, perhaps, when the wire broke
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
				// What was on its way then may arrive a little later.
				if since := r.at.Sub(renewed); since > (a.opts.RenewDeadline+a.opts.LeaseDuration)/2 {
					t.Errorf("a wrote %v after it renewed last", since)
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
				t.Error("a wrote nothing although it led: this test could not fail")
			}
		})
	}
}

// An API server that answers no write of a Node, as with a webhook that hangs: after a few nothing more is sent, the loop goes
// round, and it continues by itself.
func TestNoAnswersAtAll(t *testing.T) {
	freshLease(t)
	for i := range 16 {
		playHost(t, fmt.Sprintf("n%d", i), false)
	}
	var deaf atomic.Bool
	deaf.Store(true)
	l := stand(t, "leader", func(c *candidate) {
		c.w.on(func(_ context.Context, r request, _ func() (*http.Response, error)) (*http.Response, error) {
			if deaf.Load() && strings.HasPrefix(r.kind, "PATCH node") {
				return nil, errCut
			}
			return nil, nil
		})
	})
	l.leads(1)
	until(t, "ten writes without an answer", func() bool { return l.w.count("PATCH node") >= 10 })
	never(t, "an eleventh node is written to", 3*time.Second, func() bool {
		nodes := map[string]bool{}
		for _, r := range l.w.requests("PATCH node") {
			nodes[r.kind] = true
		}
		return len(nodes) > 10
	})
	deaf.Store(false)
	for i := range 16 {
		until(t, "all nodes in its care", func() bool { return state(t, fmt.Sprintf("n%d", i)) == "idle" })
	}
	if len(l.epochs()) != 1 {
		t.Errorf("epochs %v", l.epochs())
	}
}

// What happens to a fleet at once is told node after node, and what continues does not wait for it.
func TestReasonsAreSpread(t *testing.T) {
	freshLease(t)
	const fleet = 60
	name := func(i int) string { return fmt.Sprintf("n%02d", i) }
	for i := range fleet {
		playHost(t, name(i), true)
	}
	stop(t)
	l := stand(t, "leader", nil)
	l.leads(1)
	reasons := func() (writes []request) {
		return slices.DeleteFunc(l.w.requests("PATCH node"), func(r request) bool {
			return !strings.Contains(r.body, `"lockkeeper.dev/held":"Stopped"`) || r.status != 200
		})
	}
	until(t, "the first reasons", func() bool { return len(reasons()) >= 20 })
	until(t, "a few more", func() bool { return len(reasons()) >= 28 })
	told := reasons()
	// The first twenty at once, then one a second: sixty nodes in a minute. On its way the first of them may have been held up.
	if took := told[27].at.Sub(told[0].at); took < 4*time.Second {
		t.Errorf("28 reasons in %v", took)
	}
	lifted := time.Now()
	goOn(t)
	until(t, "the grant", func() bool { return len(l.w.grants()) > 0 })
	if g := l.w.grants()[0]; g.at.Sub(lifted) > 20*time.Second { // the reasons that wait need half a minute
		t.Errorf("granted %v after the stop was lifted, while reasons waited", g.at.Sub(lifted))
	}
	seen := map[string]int{}
	for _, r := range reasons() {
		if seen[r.kind]++; seen[r.kind] > 1 {
			t.Errorf("%s was told twice", r.kind)
		}
	}
}

// A kubelet's word that says nothing new is no reason to decide: nothing is written, nothing read.
func TestIdleLeaderAsksNothing(t *testing.T) {
	freshLease(t)
	playHost(t, "n1", false)
	playHost(t, "n2", false)
	l := stand(t, "leader", nil)
	epoch := l.leads(1)
	until(t, "both in its care", func() bool { return state(t, "n1") == "idle" && state(t, "n2") == "idle" })
	count := func() int { return l.w.count() - l.w.count("GET lease", "PUT lease") }
	until(t, "the end of what taking them in has cost", func() bool {
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
		t.Errorf("%d requests beside the Lease's: %q", n, l.w.kinds())
	}
}
