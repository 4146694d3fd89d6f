package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/kube"
)

// TestWhyATermEnded checks that the journal of a host that stops or reboots does not say that it campaigns again.
func TestWhyATermEnded(t *testing.T) {
	for want, cause := range map[string]error{
		"its term ended; it campaigns again":                       errTermOver,
		"its term ended: the Lease is gone":                        fmt.Errorf("%w: %w", errTermOver, errors.New("the Lease is gone")),
		"its term ended: lockkeeper stops, or the host shuts down": context.Canceled,
		"its term ended: reading lease lockkeeper/lockkeeper: bad": errors.New("reading lease lockkeeper/lockkeeper: bad"),
	} {
		term, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		if got := ended(term); got != want {
			t.Errorf("%v: %q, expected %q", cause, got, want)
		}
	}
}

// TestRefusalsAreForgotten checks that the memory of a refusal ends, because an autoscaler creates and deletes Nodes
// with ever new names.
func TestRefusalsAreForgotten(t *testing.T) {
	const shortly = 2 * time.Second
	synctest.Test(t, func(t *testing.T) {
		l := &leader{refused: map[string]refusal{}, kick: make(chan struct{}, 1)}
		if next := l.refusals(); next != refusedFor {
			t.Errorf("without a refusal: %v", next)
		}
		l.leaveAlone("a", refusedFor, errors.New("no"), false)
		time.Sleep(10 * time.Second)
		l.leaveAlone("b", shortly, errors.New("no"), true)
		if next := l.refusals(); next != shortly || len(l.refused) != 2 {
			t.Errorf("next try in %v, %d remembered", next, len(l.refused))
		}
		time.Sleep(shortly)
		if next := l.refusals(); next != refusedFor-10*time.Second-shortly || len(l.refused) != 1 {
			t.Errorf("next try in %v, %d remembered", next, len(l.refused))
		}
		time.Sleep(refusedFor)
		l.refusals()
		if len(l.refused) != 0 {
			t.Errorf("%d remembered indefinitely", len(l.refused))
		}
	})
}

// TestBlockerIsReported checks that what blocks a candidate is reported even if the text is the same as at the end of
// its term, because only then systemctl status shows it.
func TestBlockerIsReported(t *testing.T) {
	var said []Status
	c := &candidate{Options: Options{Report: func(s Status) { said = append(said, s) }, Log: slog.New(slog.DiscardHandler)}}
	for _, blocked := range []bool{false, true, true} {
		c.say(Status{Candidate: true, Why: "this host's clock is off", Blocked: blocked})
	}
	if len(said) != 2 || said[0].Blocked || !said[1].Blocked {
		t.Errorf("said %+v", said)
	}
}

// TestOutageIsReportedOnce checks that a standby reports an API server that it cannot reach once, although each of its tries
// fails at a connection with another port.
func TestOutageIsReportedOnce(t *testing.T) {
	client, err := kube.ConnectConfig(&rest.Config{Host: "https://api:6443"}, "coordinator", "test", 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	var said []Status
	c := &candidate{Options: Options{LeaseNamespace: "n", LeaseName: "l", Report: func(s Status) { said = append(said, s) }, Log: slog.New(slog.DiscardHandler)}, client: client}
	for port := range 3 {
		c.standsBy("", fmt.Errorf("read tcp 10.0.0.5:%d->10.0.0.1:6443: %w", 43210+port, syscall.ECONNRESET))
	}
	if len(said) != 1 || said[0].Blocked || !strings.HasPrefix(said[0].Why, "reading lease n/l: cannot reach https://api:6443: connection reset by peer") {
		t.Errorf("said %+v", said)
	}
}
