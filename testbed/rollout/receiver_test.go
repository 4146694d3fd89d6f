package rollout

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/notify"
)

// receiver receives notifications in the generic format. It does not answer until answer is called.
type receiver struct {
	*httptest.Server
	answers chan struct{} // closed when it answers

	mu  sync.Mutex
	all []notify.Message
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{answers: make(chan struct{})}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var m notify.Message
		d := json.NewDecoder(req.Body)
		d.DisallowUnknownFields()
		if err := d.Decode(&m); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			t.Error(err)
			return
		}
		select {
		case <-r.answers:
		case <-req.Context().Done():
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.all = append(r.all, m)
	}))
	t.Cleanup(func() {
		r.answer()
		r.Close()
	})
	return r
}

// answer makes the receiver answer from now on.
func (r *receiver) answer() {
	select {
	case <-r.answers:
	default:
		close(r.answers)
	}
}

// messages returns the accepted messages: occasion, reason and object.
func (r *receiver) messages() (all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.all {
		text := fmt.Sprintf("%s %s", m.Occasion, m.Reason)
		switch {
		case len(m.Nodes) > 0:
			text += fmt.Sprintf(" %v %s", m.Nodes, m.Turn)
		case m.Occasion != v1alpha1.OccasionStop:
			text += " " + m.Policy
		}
		if m.Cluster != "here" || m.Time.IsZero() || m.Text == "" {
			text += fmt.Sprintf(" INCOMPLETE %+v", m)
		}
		all = append(all, text)
	}
	return all
}

// received waits for the number of messages in want, and fails the test unless the messages equal want in any order.
func (s *scene) received(r *receiver, want ...string) {
	s.T.Helper()
	s.Eventually("notifications", func(context.Context) (bool, error) {
		got := r.messages()
		return len(got) >= len(want), fmt.Errorf("received %q", got)
	})
	got := r.messages()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		s.T.Errorf("received\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
