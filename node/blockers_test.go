package node

import (
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/drain"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/local"
	"lockkeeper.dev/lockkeeper/node/step"
)

// TestBlockerSince checks that the start time of a blocker does not change when a drain starts again, and that the
// order does not depend on the order of the reports.
func TestBlockerSince(t *testing.T) {
	start := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	var b blockers
	pod := func(at time.Duration) v1alpha1.Blocker {
		x := blocker(v1alpha1.BlockerBudget, "shop/web", "needs 3")
		x.Pod, x.Since = "shop/web-0", metav1.NewTime(start.Add(at))
		return x
	}
	b.list([]v1alpha1.Blocker{pod(0)}, start)
	b.list([]v1alpha1.Blocker{pod(0)}, start.Add(5*time.Minute))
	b.list(nil, start.Add(5*time.Minute+time.Second)) // the API server was down for a moment, so the drain starts again
	got := b.list([]v1alpha1.Blocker{pod(5*time.Minute + 2*time.Second)}, start.Add(5*time.Minute+2*time.Second))
	if !got[0].Since.Time.Equal(start) {
		t.Errorf("blocks since %v, expected %v", got[0].Since, start)
	}
	b.list(nil, start.Add(7*time.Minute))
	got = b.list([]v1alpha1.Blocker{pod(10 * time.Minute)}, start.Add(10*time.Minute))
	if !got[0].Since.Time.Equal(start.Add(10 * time.Minute)) {
		t.Errorf("blocks again since %v", got[0].Since)
	}
	one, two := blocker(v1alpha1.BlockerInhibitor, "apt", ""), blocker(v1alpha1.BlockerInhibitor, "backup", "")
	for _, all := range [][]v1alpha1.Blocker{{one, two}, {two, one}} {
		var b blockers
		if got := b.list(all, start); got[0].Name != "apt" || got[1].Name != "backup" {
			t.Errorf("order %s, %s", got[0].Name, got[1].Name)
		}
	}
	if got := b.list([]v1alpha1.Blocker{one, two, one}, start); len(got) != 2 {
		t.Errorf("%d blockers, expected each once", len(got))
	}
	if b.list(nil, start.Add(time.Hour)); len(b) != 0 {
		t.Errorf("%d blockers are remembered", len(b))
	}
}

// TestPodBlocker checks the kind and the name of what keeps a pod on the node.
func TestPodBlocker(t *testing.T) {
	const several = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support"
	for _, c := range []struct {
		reason          drain.Reason
		budget, message string
		kind            v1alpha1.BlockerKind
		name            v1alpha1.UpdateName
	}{
		{drain.PodDisruptionBudget, "shop/web", "The disruption budget web needs 3", v1alpha1.BlockerBudget, "shop/web"},
		{drain.PodDisruptionBudget, "", several, v1alpha1.BlockerBudget, "shop/web-0"},
		{drain.ServerError, "", "Internal error occurred", v1alpha1.BlockerAPIServer, "shop/web-0"},
		{drain.TooManyRequests, "", "too many requests", v1alpha1.BlockerAPIServer, "shop/web-0"},
		{drain.Unreachable, "", "connection refused", v1alpha1.BlockerAPIServer, "shop/web-0"},
		{drain.Refused, "", `admission webhook "a.example.com" denied the request: no`, v1alpha1.BlockerWebhook, "shop/web-0"},
		{drain.Refused, "", "pods is forbidden", v1alpha1.BlockerPod, "shop/web-0"},
		{drain.NotDeleted, "", "an eviction was accepted", v1alpha1.BlockerPod, "shop/web-0"},
		{drain.Finalizer, "", "finalizers: example.com/a", v1alpha1.BlockerFinalizer, "shop/web-0"},
		{drain.Terminating, "", "its kubelet", v1alpha1.BlockerPod, "shop/web-0"},
		{drain.BlockedByPolicy, "", "the policy", v1alpha1.BlockerPod, "shop/web-0"},
	} {
		since := time.Unix(1700000000, 0)
		got := podBlocker(drain.Blocker{Pod: drain.Pod{Namespace: "shop", Name: "web-0"}, Reason: c.reason, Budget: c.budget, Message: c.message, Since: since})
		want := v1alpha1.Blocker{Kind: c.kind, Name: c.name, Pod: "shop/web-0", Message: v1alpha1.UpdateText(c.message), Since: metav1.NewTime(since)}
		if got != want {
			t.Errorf("%s: %+v, want %+v", c.reason, got, want)
		}
	}
}

// TestTroubleNamesWhatIsThere checks that a webhook that refuses the host's report is the blocker, and not the pods
// that left before the report, and that the host still publishes its wants.
func TestTroubleNamesWhatIsThere(t *testing.T) {
	var last local.Host
	client, err := kube.ConnectConfig(&rest.Config{Host: "http://127.0.0.1:1"}, "host", "v1", 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	h := &Host{name: "n1", log: slog.New(slog.DiscardHandler), inputs: inputs{client: client, view: kube.WatchNode(&kubernetes.Clientset{}, "n1", func() {})}}
	shows := func(state v1alpha1.State, version string) {
		h.view.Overlay(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u1", ResourceVersion: version,
			Labels: map[string]string{v1alpha1.LabelState: string(state)}, Annotations: map[string]string{v1alpha1.AnnotationTurn: "t1"}}})
	}
	shows(v1alpha1.StateDraining, "1")
	h.Report = func(s local.Host) { last = s }
	h.progress = drain.Progress{Total: 1, Evictable: 1, Blockers: []drain.Blocker{
		{Pod: drain.Pod{Namespace: "shop", Name: "web-0"}, Reason: drain.PodDisruptionBudget, Budget: "shop/web", Since: time.Now()}}}
	o := situation(v1alpha1.StateDraining, func(o *step.Observation) { o.Drain.Running = true })
	h.reportDecision(o, step.Decision{Do: step.DoDrain}, nil)
	if len(last.Blockers) != 1 || last.Drain == nil {
		t.Fatalf("draining: %+v", last)
	}
	o = situation(v1alpha1.StateDraining, func(o *step.Observation) { o.Drain.Complete = true })
	h.reportDecision(o, step.Decision{Write: &step.Write{}}, nil) // the report has to be written
	h.trouble(&kube.Trouble{Text: "webhook refuses", RefusedBy: "w"})
	if len(last.Blockers) != 1 || last.Blockers[0].Kind != v1alpha1.BlockerWebhook || last.Drain != nil {
		t.Errorf("refused: %+v, drain %+v", last.Blockers, last.Drain)
	}
	// The host has not finished its work in this state.
	shows(v1alpha1.StateBeforeReboot, "2")
	o = situation(v1alpha1.StateBeforeReboot, nil)
	h.reportDecision(o, step.Decision{Write: &step.Write{}}, nil)
	h.trouble(&kube.Trouble{Text: "webhook refuses", RefusedBy: "w"})
	if last.State != v1alpha1.StateBeforeReboot || last.Wants != v1alpha1.WantsReboot || last.UID != "u1" {
		t.Errorf("refused in another state: %+v", last)
	}
}

// TestSourcesError checks that a source that cannot be read is reported, although the host wants nothing and so has no veto.
func TestSourcesError(t *testing.T) {
	const unread = "File /x cannot be read: no"
	for wants, reads := range map[v1alpha1.Wants]func(*step.Sources){
		v1alpha1.WantsNothing: func(s *step.Sources) { s.Unreadable = unread },
		v1alpha1.WantsReboot:  func(s *step.Sources) { s.Veto, s.VetoDetail, s.Unreadable = v1alpha1.ReasonHeldBack, "held", unread },
	} {
		var h Host
		o := situation(v1alpha1.StateIdle, func(o *step.Observation) { o.Sources.Wants = wants })
		if got := h.sourcesError(&o); got != "" {
			t.Errorf("wants %s, and all can be read: %q", wants, got)
		}
		reads(&o.Sources)
		if got := h.sourcesError(&o); got != unread {
			t.Errorf("wants %s: %q, expected %q", wants, got, unread)
		}
	}
}
