package coordinator

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"lockkeeper.dev/lockkeeper/kube"
)

// TestBlindLeader checks that a leader that cannot read what it needs reports that, and later releases its term,
// because another instance may be able to read it.
func TestBlindLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []Status
		ended := error(nil)
		l := &leader{
			candidate: &candidate{
				Options: Options{LeaseDuration: 30 * time.Second, RenewDeadline: 20 * time.Second, Report: func(s Status) { said = append(said, s) }, Log: slog.New(slog.DiscardHandler)},
				lease:   newLeaseWatch(&kubernetes.Clientset{}, "lockkeeper", "lockkeeper", nil),
			},
			epoch: "me_1", view: kube.WatchNodes(&kubernetes.Clientset{}, nil, nil), over: func(why error) { ended = why },
		}
		after := func(d time.Duration) {
			time.Sleep(d)
			l.reportBlind()
		}
		l.reportBlind()
		after(19 * time.Second)
		if len(said) != 0 || ended != nil {
			t.Fatalf("after 19 s: reports %v, ended by %v; expected nothing, because the leader may have just started", said, ended)
		}
		l.reportSight("")
		said = nil
		l.reportBlind()
		after(20 * time.Second)
		if len(said) != 1 || !said[0].Leader || !said[0].Blocked || !strings.Contains(said[0].Why, "the Nodes") {
			t.Fatalf("after 20 s: reports %+v", said)
		}
		after(69 * time.Second)
		if ended != nil {
			t.Fatalf("ended after 89 s: %v", ended)
		}
		after(time.Second)
		if _, blocked := errors.AsType[blocker](ended); !blocked {
			t.Errorf("after three Lease durations: ended by %v", ended)
		}
		l.reportSight("")
		if last := said[len(said)-1]; last.Blocked || !last.Leader {
			t.Errorf("report after the recovery: %+v", last)
		}
	})
}

type answers struct {
	coordinationclient.LeasesGetter
	coordinationclient.LeaseInterface
	lease *coordinationv1.Lease
	err   error
}

func (a *answers) Leases(string) coordinationclient.LeaseInterface { return a }

func (a *answers) Get(context.Context, string, metav1.GetOptions) (*coordinationv1.Lease, error) {
	return a.lease, a.err
}

func (a *answers) Update(_ context.Context, l *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	return l, a.err
}

// TestLocksAnswersAreInView checks that the watch's view contains at once what the lock reads and writes, for example
// an emergency stop.
func TestLocksAnswersAreInView(t *testing.T) {
	w := newLeaseWatch(&kubernetes.Clientset{}, "n", "l", nil)
	lease := func(version, holder string) *coordinationv1.Lease {
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "l", UID: "1", ResourceVersion: version}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder},
		}
	}
	w.read(lease("5", "old_1"))
	select {
	case <-w.freed:
		t.Error("the Lease is held although it was released")
	default:
	}
	a := &answers{lease: lease("7", "")}
	leases := reportingLeases{a, w.read}.Leases("n")
	var seen []string
	look := func() { seen = append(seen, holderOf(w.now())) }
	got, err := leases.Get(t.Context(), "l", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	look()
	got.Spec.HolderIdentity = new(string)
	*got.Spec.HolderIdentity = "scribbled" // the elector's lock modifies its argument
	look()
	if _, err := leases.Update(t.Context(), lease("8", "me_1"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	look()
	a.err = errors.New("no")
	_, _ = leases.Update(t.Context(), lease("9", "lost"), metav1.UpdateOptions{})
	look()
	select {
	case <-w.freed:
	default:
		t.Error("no report of the release of the Lease")
	}
	if want := []string{"", "", "me_1", "me_1"}; !slices.Equal(seen, want) {
		t.Errorf("views %q, expected %q", seen, want)
	}
}
