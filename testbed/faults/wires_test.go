package faults

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/faultproxy"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// wireFault is a fault of all proxies of a host until it is lifted: some requests get this kind of harm.
func wireFault(name string, rule func(rng func(n int) int) faultproxy.Rule) kind {
	return kind{name: name, do: func(c *campaign, h *simhost.Host) (string, func()) {
		var mu sync.Mutex
		rng := rand.New(rand.NewPCG(c.rng.Uint64(), 2))
		r := rule(func(n int) int {
			mu.Lock()
			defer mu.Unlock()
			return rng.IntN(n)
		})
		var removes []func()
		for _, p := range c.Proxies[h.Name()].All() {
			removes = append(removes, p.Add(r))
		}
		return fmt.Sprintf("on %d wires", len(removes)), func() {
			for _, remove := range removes {
				remove()
			}
		}
	}}
}

// some refuses a share of the writes: one in n.
func some(n, status int, after time.Duration) func(func(int) int) faultproxy.Rule {
	return func(rng func(int) int) faultproxy.Rule {
		return func(r *faultproxy.Request) *faultproxy.Fault {
			if r.Write() && rng(n) == 0 {
				return faultproxy.Refuse(status, after)
			}
			return nil
		}
	}
}

var wireFaults = []kind{
	wireFault("answers that come late", func(rng func(int) int) faultproxy.Rule {
		return func(r *faultproxy.Request) *faultproxy.Fault {
			if r.Verb == "watch" {
				return nil
			}
			return &faultproxy.Fault{
				Delay:       time.Duration(rng(800)) * time.Millisecond,
				DelayAnswer: time.Duration(rng(800)) * time.Millisecond,
			}
		}
	}),
	wireFault("409 to writes", some(2, http.StatusConflict, 0)),
	wireFault("429 to writes", some(2, http.StatusTooManyRequests, time.Second)),
	wireFault("500 to writes", some(2, http.StatusInternalServerError, 0)),
	wireFault("500 to everything", func(rng func(int) int) faultproxy.Rule {
		return func(*faultproxy.Request) *faultproxy.Fault {
			if rng(2) == 0 {
				return faultproxy.Refuse(http.StatusInternalServerError, 0)
			}
			return nil
		}
	}),
	wireFault("503 to writes", some(2, http.StatusServiceUnavailable, time.Second)),
	wireFault("resets before", func(rng func(int) int) faultproxy.Rule {
		return func(*faultproxy.Request) *faultproxy.Fault {
			if rng(3) == 0 {
				return &faultproxy.Fault{Reset: true}
			}
			return nil
		}
	}),
	wireFault("resets after writes", func(rng func(int) int) faultproxy.Rule {
		return func(r *faultproxy.Request) *faultproxy.Fault {
			if r.Write() && rng(2) == 0 {
				return &faultproxy.Fault{ResetAnswer: true}
			}
			return nil
		}
	}),
	{name: "a black hole that lets go late", do: func(c *campaign, h *simhost.Host) (string, func()) {
		hole := make(chan struct{})
		var removes []func()
		for _, p := range c.Proxies[h.Name()].All() {
			removes = append(removes, p.Add(func(r *faultproxy.Request) *faultproxy.Fault {
				// The proxy delivers the held requests when the hole opens, in any order.
				return &faultproxy.Fault{Hold: hole, Late: r.Write()}
			}))
		}
		return "its writes arrive later", func() {
			for _, remove := range removes {
				remove()
			}
			close(hole)
		}
	}},
	{name: "a stale watch", do: func(c *campaign, h *simhost.Host) (string, func()) {
		// The fault cuts watches and delays the answers to new ones.
		hole := make(chan struct{})
		var removes []func()
		cut := 0
		for _, p := range c.Proxies[h.Name()].All() {
			removes = append(removes, p.Add(func(r *faultproxy.Request) *faultproxy.Fault {
				if r.Verb == "watch" {
					return &faultproxy.Fault{Hold: hole}
				}
				return nil
			}))
			cut += p.CutWatches()
		}
		return fmt.Sprintf("%d watches", cut), func() {
			for _, remove := range removes {
				remove()
			}
			close(hole)
		}
	}},
	{name: "watches cut", do: func(c *campaign, h *simhost.Host) (string, func()) {
		cut := 0
		for _, p := range c.Proxies[h.Name()].All() {
			cut += p.CutWatches()
		}
		return fmt.Sprintf("%d watches", cut), nil
	}},
	{name: "watches from a time that is forgotten", do: func(c *campaign, h *simhost.Host) (string, func()) {
		cut := 0
		for _, p := range c.Proxies[h.Name()].All() {
			var once sync.Once
			p.Add(func(r *faultproxy.Request) (f *faultproxy.Fault) {
				if r.Verb == "watch" {
					once.Do(func() { f = faultproxy.Refuse(http.StatusGone, 0) })
				}
				return f
			})
			cut += p.CutWatches()
		}
		return fmt.Sprintf("%d watches", cut), nil
	}},
	{name: "a clock that is off", do: func(c *campaign, h *simhost.Host) (string, func()) {
		d := time.Hour
		if c.rng.IntN(2) == 0 {
			d = -d
		}
		for _, p := range c.Proxies[h.Name()].All() {
			p.ShiftDate(d)
		}
		return d.String(), func() {
			for _, p := range c.Proxies[h.Name()].All() {
				p.ShiftDate(0)
			}
		}
	}},
}
