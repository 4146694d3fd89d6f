package node

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/step"
)

const (
	// unheardAfter is how long a host wants something and hears nothing before
	// it looks whether anybody leads, and how long after that it looks again.
	unheardAfter = 10 * time.Minute
	// heardAfter is the same where the node is held for a reason: somebody
	// spoke once, and long queues are no reason for requests.
	heardAfter = time.Hour
	// leaseSlack is what is added to a Lease's own duration before it is
	// called dead: the skew of clocks is known to a few seconds only.
	leaseSlack = 30 * time.Second
	// foundAgain is when a host that found nobody looks again; each time it
	// waits twice as long, up to foundLast. A fleet may be without a coordinator
	// for weeks, on purpose.
	foundAgain = 2 * time.Minute
	foundLast  = 15 * time.Minute
	// doubtFor is when it looks once more before it says that it found nobody:
	// between two coordinators there is a moment in which nobody leads.
	doubtFor = 15 * time.Second
)

// unheard is what a host that wants something has heard, and what it found when
// it looked whether anybody leads.
type unheard struct {
	state v1alpha1.State
	held  v1alpha1.Reason
	wants v1alpha1.Wants

	looked time.Time       // last, or when the host was last spoken to
	doubt  bool            // it found nobody, and has not looked a second time
	found  v1alpha1.Reason // "": not looked, or somebody leads
	detail string
	again  time.Duration // after which it looks again, having found nobody
}

// listen looks at the Lease when the host has wanted something for long and
// nobody has said a word: a host whose coordinator is gone, or whose right to
// look is, has to say so by itself.
func (h *Host) listen(ctx context.Context, o *step.Observation) {
	n, u := &o.Node, &h.unheard
	now := unheard{state: n.State, held: n.Held, wants: o.Sources.Wants}
	waits := n.UID != "" && !n.InTurn() && o.Sources.Complete && o.Sources.Wants.Something()
	if !waits || u.state != now.state || u.held != now.held || u.wants != now.wants || u.looked.IsZero() {
		now.looked = time.Now()
		*u = now
		return
	}
	patience := h.Patience
	switch {
	case patience != 0:
	case n.Held == "":
		patience = unheardAfter
	default:
		patience = heardAfter
	}
	if time.Since(u.looked) >= u.due(patience) && h.view.Err() == nil {
		found, detail := h.lookForLeader(ctx)
		u.learn(found, detail)
		u.looked = time.Now()
	}
	o.NoLeader, o.NoLeaderDetail = u.found, u.detail
}

// due is how long after the last look the next one is due, for a host whose
// patience is that long.
func (u *unheard) due(patience time.Duration) time.Duration {
	switch {
	case u.doubt:
		return min(patience, doubtFor)
	case u.found != "":
		return min(patience, u.again)
	}
	return patience
}

// learn takes in what a look found.
func (u *unheard) learn(found v1alpha1.Reason, detail string) {
	switch {
	case found == "":
		u.doubt, u.found, u.detail, u.again = false, "", "", 0
	case u.found == "" && !u.doubt:
		u.doubt = true
	case u.found == "":
		u.doubt, u.found, u.detail, u.again = false, found, detail, foundAgain
	default:
		u.found, u.detail, u.again = found, detail, min(2*u.again, foundLast)
	}
}

// lookForLeader reads the Lease and says why nobody leads, as far as this host
// can tell.
func (h *Host) lookForLeader(ctx context.Context) (v1alpha1.Reason, string) {
	ctx, cancel := context.WithTimeout(ctx, kube.Timeout)
	defer cancel()
	name := h.LeaseNamespace + "/" + h.LeaseName
	l, err := h.client.CoordinationV1().Leases(h.LeaseNamespace).Get(ctx, h.LeaseName, metav1.GetOptions{})
	if kube.NoLease(err, h.LeaseName) {
		return v1alpha1.ReasonNoCoordinator, "there is no Lease " + name + "; apply the manifests: lockkeeper manifests | kubectl apply -f -"
	}
	if t := h.client.Explain(err); t != nil {
		if t.Reason == "" {
			return h.unheard.found, h.unheard.detail // nobody knows; the watch will tell of it
		}
		return t.Reason, t.Text
	}
	s := &l.Spec
	if s.HolderIdentity == nil || *s.HolderIdentity == "" || s.RenewTime == nil {
		return v1alpha1.ReasonNoCoordinator, "nobody holds the Lease " + name
	}
	ahead, _ := h.client.Skew()
	life := leaseSlack
	if s.LeaseDurationSeconds != nil {
		life += time.Duration(*s.LeaseDurationSeconds) * time.Second
	}
	if time.Now().Add(ahead).Sub(s.RenewTime.Time) > life {
		return v1alpha1.ReasonNoCoordinator, fmt.Sprintf("nobody has renewed the Lease %s since %s", name, s.RenewTime.UTC().Format("2006-01-02 15:04:05 UTC"))
	}
	return "", ""
}
