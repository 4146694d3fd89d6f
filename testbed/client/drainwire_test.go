package client

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
)

// drainWire records every request of a client and its answer.
type drainWire struct {
	// before is called before a request is sent. If it returns a response or an error, the client gets that instead.
	before func(kind string, req *http.Request) (*http.Response, error)

	mu       sync.Mutex
	counts   map[string]int
	statuses []int               // of evictions, in the order of arrival
	byUID    map[types.UID][]int // the same by UID of the pod
	evicted  []string            // names in the order of their first evictions
}

// These are the expected kinds of requests. Other requests are counted by method and path.
const (
	kindList  = "LIST pods"
	kindWatch = "WATCH pods"
	kindEvict = "POST eviction"
)

func drainKindOf(req *http.Request) string {
	switch path := req.URL.Path; {
	case req.Method == http.MethodGet && path == "/api/v1/pods" && req.URL.Query().Get("watch") != "":
		return kindWatch
	case req.Method == http.MethodGet && path == "/api/v1/pods":
		return kindList
	case req.Method == http.MethodPost && strings.HasSuffix(path, "/eviction"):
		return kindEvict
	default:
		return req.Method + " " + path
	}
}

type drainTransport func(*http.Request) (*http.Response, error)

func (f drainTransport) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func (w *drainWire) wrap(next http.RoundTripper) http.RoundTripper {
	return drainTransport(func(req *http.Request) (*http.Response, error) {
		kind := drainKindOf(req)
		w.mu.Lock()
		if w.counts == nil {
			w.counts = map[string]int{}
		}
		w.counts[kind]++
		if kind == kindEvict {
			if name := strings.Split(req.URL.Path, "/")[6]; !slices.Contains(w.evicted, name) {
				w.evicted = append(w.evicted, name)
			}
		}
		w.mu.Unlock()
		if w.before != nil {
			if resp, err := w.before(kind, req); resp != nil || err != nil {
				return resp, err
			}
		}
		resp, err := next.RoundTrip(req)
		if err == nil && kind == kindEvict {
			w.mu.Lock()
			w.statuses = append(w.statuses, resp.StatusCode)
			if w.byUID == nil {
				w.byUID = map[types.UID][]int{}
			}
			uid := preconditionOf(req)
			w.byUID[uid] = append(w.byUID[uid], resp.StatusCode)
			w.mu.Unlock()
		}
		return resp, err
	})
}

func (w *drainWire) count(kind string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counts[kind]
}

// others returns the requests that are not a list, a watch or an eviction.
func (w *drainWire) others() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Collect(maps.Keys(w.counts)), func(kind string) bool {
		return kind == kindList || kind == kindWatch || kind == kindEvict
	})
}

// answers returns the status codes of the evictions so far.
func (w *drainWire) answers() []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]int{}, w.statuses...)
}

// answersTo returns the status codes of the evictions with that UID as their precondition.
func (w *drainWire) answersTo(uid types.UID) []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]int{}, w.byUID[uid]...)
}

// believed drops answers that only say that NodeRestriction does not know the pod yet. That plugin of the API server
// has its own watch of pods, which on a busy machine lags behind the watch of the drain. The drain retries in that
// case.
func believed(answers []int) []int {
	return slices.DeleteFunc(slices.Clone(answers), func(code int) bool { return code == http.StatusNotFound })
}

// accepted checks that each pod's eviction was accepted, and retried only after a 404.
func (w *drainWire) accepted(t *testing.T, pods ...*corev1.Pod) {
	t.Helper()
	for _, p := range pods {
		got := w.answersTo(p.UID)
		if len(got) == 0 || got[len(got)-1] != http.StatusCreated || len(believed(got)) != 1 {
			t.Errorf("answers to the evictions of %s: %v, expected one 201 as the last", p.Name, got)
		}
	}
}

// acceptedOnce checks the same, and in addition that every eviction has an answer and that there are no evictions of
// other pods.
func (w *drainWire) acceptedOnce(t *testing.T, pods ...*corev1.Pod) {
	t.Helper()
	w.accepted(t, pods...)
	sum := 0
	for _, p := range pods {
		sum += len(w.answersTo(p.UID))
	}
	if sent := w.count(kindEvict); sent != sum {
		t.Errorf("%d evictions were sent, but %d answers belong to the %d pods", sent, sum, len(pods))
	}
}

// preconditionOf returns the UID precondition of an eviction, or "".
func preconditionOf(req *http.Request) types.UID {
	body, err := req.GetBody()
	if err != nil {
		return ""
	}
	defer body.Close()
	var e policyv1.Eviction
	if json.NewDecoder(body).Decode(&e) != nil || e.DeleteOptions == nil || e.DeleteOptions.Preconditions == nil || e.DeleteOptions.Preconditions.UID == nil {
		return ""
	}
	return *e.DeleteOptions.Preconditions.UID
}

// order returns the pods in the order of their first evictions.
func (w *drainWire) order() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string{}, w.evicted...)
}

// String lists the requests by kind.
func (w *drainWire) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprint(w.counts)
}

// cable is a TCP proxy that can be cut.
type cable struct {
	to string
	l  net.Listener

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]bool
}

func newCable(to string) (*cable, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &cable{to: to, l: l, conns: map[net.Conn]bool{}}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go c.carry(conn)
		}
	}()
	return c, nil
}

func (c *cable) carry(near net.Conn) {
	defer near.Close()
	far, err := net.Dial("tcp4", c.to)
	if err != nil {
		return
	}
	defer far.Close()
	if !c.keep(near, far) {
		return
	}
	go func() {
		io.Copy(far, near)
		far.Close()
	}()
	io.Copy(near, far)
}

func (c *cable) keep(conns ...net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut {
		return false
	}
	for _, conn := range conns {
		c.conns[conn] = true
	}
	return true
}

// set cuts or restores the cable.
func (c *cable) set(cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = cut
	if cut {
		for conn := range c.conns {
			conn.Close()
		}
		clear(c.conns)
	}
}
