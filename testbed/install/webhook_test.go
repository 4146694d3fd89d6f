package install

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// A receiver is a webhook that fails as often as it is told to.
type receiver struct {
	*httptest.Server
	mu    sync.Mutex
	fails int
	got   []string // every body, also of calls that were failed
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(io.LimitReader(req.Body, 1<<16))
		r.mu.Lock()
		defer r.mu.Unlock()
		text := string(body)
		if req.Method != http.MethodPost || req.Header.Get("Content-Type") != "application/json" || req.URL.RequestURI() != "/hook?key=s%20ecret" {
			text = req.Method + " " + req.URL.RequestURI() + " " + req.Header.Get("Content-Type") + " " + text
		}
		r.got = append(r.got, text)
		if r.fails > 0 {
			r.fails--
			http.Error(w, "not now", http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) fail(times int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fails, r.got = times, nil
}

func (r *receiver) heard() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.got...)
}

// TestNotifyWebhook follows the example through both of its stages.
func TestNotifyWebhook(t *testing.T) {
	t.Parallel()
	const here, other = "webhook-a", "webhook-b"
	e := apply(t, "notify-webhook")
	nodes(t, here, other)
	cordon(t, here, true)
	hook := newReceiver(t)
	url := "WEBHOOK_URL=" + hook.URL + "/hook?key=s%20ecret"
	path := exampleTools(t, "kubectl", "curl", "sleep")

	first := newTurn()
	for i, state := range []v1alpha1.State{v1alpha1.StateBeforeReboot, v1alpha1.StateBeforeUncordon} {
		name := "notify-" + string(state)
		enter(t, here, state, first)
		pod := e.onlyOn(t, here)
		token := e.token(t, pod)
		if i == 0 {
			rights(t, e, token, here, other, name, first)
		}
		hook.fail(2)
		p := start(t, e.script, path, e.env(t, here, token, url))
		confirmed(t, here, name, first)
		body := `{"node":"` + here + `","stage":"` + string(state) + `","turn":"` + first + `"}`
		got := hook.heard()
		if len(got) < 3 {
			t.Errorf("%s: confirmed after %d calls, of which two failed", state, len(got))
		}
		for _, text := range got {
			if text != body {
				t.Errorf("%s: the webhook was told %s, expected %s", state, text, body)
			}
		}
		p.running()
		enter(t, here, v1alpha1.StateUncordoning, first) // whatever the stage continues to
		e.onlyOn(t, "")
		p.stopped()
	}

	// The turn is cancelled while the receiver is away, and the next is in the same stage when it is back.
	second, third := newTurn(), newTurn()
	enter(t, here, v1alpha1.StateBeforeReboot, second)
	hook.fail(1 << 20)
	p := start(t, e.script, path, e.env(t, here, e.token(t, e.onlyOn(t, here)), url))
	p.says("error: 503")
	enter(t, here, v1alpha1.StateBeforeReboot, third)
	hook.fail(0)
	p.ends(0)
	if got := said(t, here, "notify-before-reboot"); got != "" {
		t.Errorf("what told of turn %s has said %q in turn %s", second, got, third)
	}

	// The receiver has taken it, and the turn ends before that is confirmed.
	held := slowPatch(t)
	p = start(t, e.script, held.path(t, "curl", "sleep"), e.env(t, here, e.token(t, e.onlyOn(t, here)), url))
	held.reached(t)
	enter(t, here, v1alpha1.StateBeforeReboot, newTurn())
	held.release(t)
	p.ends(0)
	if got := said(t, here, "notify-before-reboot"); got != "" {
		t.Errorf("what told of turn %s has said %q later", third, got)
	}
}
