package step

import (
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Blocking is what a host knows of the pods that its policy's drain must not evict.
type Blocking struct {
	// Pods names them, or is "".
	Pods string
	// Since is since when there have been such pods, and the plan drains; zero if not.
	Since time.Time
	// Off is set if Block is off for the next turn: the pods have blocked for longer than
	// the policy allows. In a turn it is what the host published before.
	Off bool
}

// serverTimeSlack is by how much two estimates of the API server's time may differ.
const serverTimeSlack = 10 * time.Second

// BlockingBy returns the Blocking for the pods, of which the host knows if known is set. The
// time begins with the first such pods, and lasts across processes, boots and turns, because
// the host has published it.
//
// now is by the API server's clock. By the host's own, which may be weeks behind after a boot
// until it is set, the time that the policy gives the pods would be over as soon as it is set.
//
// Off does not change in a turn. So after a crash, the drain continues as it began, even if
// some of the pods are gone.
func (o *Observation) BlockingBy(pods string, known bool, now time.Time) Blocking {
	n := &o.Node
	was := &v1alpha1.Host{}
	if n.Host != nil && n.Host.NodeUID == n.UID {
		was = n.Host
	}
	b := Blocking{Pods: pods, Off: n.InTurn() && was.BlockOff}
	switch {
	case !o.Sources.Drains:
		return b
	case !known:
		b.Since, b.Off = was.BlockedSince, was.BlockOff
		return b
	case pods == "":
		return b
	}
	b.Since = now.UTC().Truncate(time.Second)
	if !was.BlockedSince.IsZero() && was.BlockedSince.Before(now.Add(serverTimeSlack)) { // a clock that was set back begins again
		b.Since = was.BlockedSince
	}
	if !n.InTurn() && o.Own != nil {
		limit := o.Own.BlockLimit()
		b.Off = limit > 0 && now.Sub(b.Since) >= limit
	}
	return b
}

// Veto returns why the pods hold the grant, for people, or "". own are the terms of the host's
// policy, or nil.
func (b *Blocking) Veto(own *v1alpha1.Terms) string {
	if b.Pods == "" || b.Off {
		return ""
	}
	text := b.Pods
	if b.Since.IsZero() || own == nil || own.BlockTimeout.Duration == 0 {
		return text
	}
	end := b.Since.Add(own.BlockTimeout.Duration).Format(time.RFC3339)
	if own.BlockLimit() > 0 {
		return text + "; until " + end + ", when drain.blockTimeout is over"
	}
	return text + "; drain.blockTimeout is over at " + end + ", and drain.onBlockTimeout is Hold"
}
