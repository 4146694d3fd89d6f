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

// drainWire sees every request of a client and its answer.
type drainWire struct {
	// before is called before a request goes out; what it returns, if anything, is answered instead.
	before func(kind string, req *http.Request) (*http.Response, error)

	mu       sync.Mutex
	counts   map[string]int
	statuses []int               // of evictions, as they came in
	byUID    map[types.UID][]int // the same
	evicted  []string            // names in the order in which their first evictions went out
}

// The kinds of requests that there should be. Others are counted under their method and path.
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

// others are the requests that are neither list, watch nor eviction.
func (w *drainWire) others() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Collect(maps.Keys(w.counts)), func(kind string) bool {
		return kind == kindList || kind == kindWatch || kind == kindEvict
	})
}

// answers are the status codes of the evictions so far.
func (w *drainWire) answers() []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]int{}, w.statuses...)
}

// answersTo are the status codes of the evictions with that UID as their precondition.
func (w *drainWire) answersTo(uid types.UID) []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]int{}, w.byUID[uid]...)
}

// believed leaves out of the answers to a pod's evictions those that only say that NodeRestriction does not know the pod yet: the API
// server's plugin sees pods through a watch of its own, which on a busy machine is later than the drain's. The drain asks again then.
func believed(answers []int) []int {
	return slices.DeleteFunc(slices.Clone(answers), func(code int) bool { return code == http.StatusNotFound })
}

// accepted wants each of the pods' evictions to have been accepted, and asked for again only after a 404.
func (w *drainWire) accepted(t *testing.T, pods ...*corev1.Pod) {
	t.Helper()
	for _, p := range pods {
		got := w.answersTo(p.UID)
		if len(got) == 0 || got[len(got)-1] != http.StatusCreated || len(believed(got)) != 1 {
			t.Errorf("answers to the evictions of %s: %v, want one 201 and nothing after it", p.Name, got)
		}
	}
}

// acceptedOnce wants the same, every eviction to have had an answer, and none to have been for another pod.
func (w *drainWire) acceptedOnce(t *testing.T, pods ...*corev1.Pod) {
	t.Helper()
	w.accepted(t, pods...)
	sum := 0
	for _, p := range pods {
		sum += len(w.answersTo(p.UID))
	}
	if sent := w.count(kindEvict); sent != sum {
		t.Errorf("%d evictions were sent, and %d answers are to those of the %d pods", sent, sum, len(pods))
	}
}

// preconditionOf is the UID that an eviction insists on, "" for none.
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

// order is that of the first evictions.
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

// set cuts the cable, or mends it.
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
