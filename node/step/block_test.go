package step

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// TestBlockingBy checks since when pods block, by what the host has published, and when Block is off.
func TestBlockingBy(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 500, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Truncate(time.Second).Add(-d) }
	ends := &v1alpha1.Terms{BlockTimeout: metav1.Duration{Duration: time.Hour}, OnBlockTimeout: v1alpha1.OnBlockTimeoutEvict}
	holds := &v1alpha1.Terms{BlockTimeout: metav1.Duration{Duration: time.Hour}}
	for name, c := range map[string]struct {
		pods    string
		unknown bool
		noDrain bool
		own     *v1alpha1.Terms
		was     *v1alpha1.Host
		inTurn  bool
		since   time.Time
		off     bool
		veto    string
	}{
		"no pods":                  {own: ends},
		"the first time":           {pods: "a/b", own: ends, since: ago(0), veto: "a/b; until 2026-01-01T13:00:00Z, when drain.blockTimeout is over"},
		"no time":                  {pods: "a/b", own: &v1alpha1.Terms{}, since: ago(0), veto: "a/b"},
		"no policy":                {pods: "a/b", since: ago(0), veto: "a/b"},
		"published":                {pods: "a/b", own: ends, was: &v1alpha1.Host{BlockedSince: ago(59 * time.Minute)}, since: ago(59 * time.Minute), veto: "a/b; until 2026-01-01T12:01:00Z, when drain.blockTimeout is over"},
		"over":                     {pods: "a/b", own: ends, was: &v1alpha1.Host{BlockedSince: ago(time.Hour)}, since: ago(time.Hour), off: true},
		"over just now":            {pods: "a/b", own: ends, was: &v1alpha1.Host{BlockedSince: now.Add(-time.Hour)}, since: now.Add(-time.Hour), off: true},
		"over, and the pods hold":  {pods: "a/b", own: holds, was: &v1alpha1.Host{BlockedSince: ago(2 * time.Hour)}, since: ago(2 * time.Hour), veto: "a/b; drain.blockTimeout is over at 2026-01-01T11:00:00Z, and drain.onBlockTimeout is Hold"},
		"over, and the pods gone":  {own: ends, was: &v1alpha1.Host{BlockedSince: ago(2 * time.Hour), BlockOff: true}},
		"over, and no drain":       {pods: "a/b", noDrain: true, own: ends, was: &v1alpha1.Host{BlockedSince: ago(2 * time.Hour), BlockOff: true}, veto: "a/b"},
		"another Node's":           {pods: "a/b", own: ends, was: &v1alpha1.Host{NodeUID: "u2", BlockedSince: ago(2 * time.Hour), BlockOff: true}, since: ago(0), veto: "a/b; until 2026-01-01T13:00:00Z, when drain.blockTimeout is over"},
		"a moment ahead":           {pods: "a/b", own: ends, was: &v1alpha1.Host{BlockedSince: ago(-3 * time.Second)}, since: ago(-3 * time.Second), veto: "a/b; until 2026-01-01T13:00:03Z, when drain.blockTimeout is over"},
		"in the future":            {pods: "a/b", own: ends, was: &v1alpha1.Host{BlockedSince: ago(-time.Hour)}, since: ago(0), veto: "a/b; until 2026-01-01T13:00:00Z, when drain.blockTimeout is over"},
		"not listed yet":           {unknown: true, own: ends, was: &v1alpha1.Host{BlockedSince: ago(2 * time.Hour), BlockOff: true}, since: ago(2 * time.Hour), off: true},
		"in a turn without it":     {pods: "a/b", own: ends, was: &v1alpha1.Host{BlockedSince: ago(2 * time.Hour)}, inTurn: true, since: ago(2 * time.Hour), veto: "a/b; until 2026-01-01T11:00:00Z, when drain.blockTimeout is over"},
		"in a turn with it":        {pods: "a/b", own: ends, was: &v1alpha1.Host{BlockedSince: ago(2 * time.Hour), BlockOff: true}, inTurn: true, since: ago(2 * time.Hour), off: true},
		"in a turn, the pods gone": {own: ends, was: &v1alpha1.Host{BlockOff: true}, inTurn: true, off: true},
	} {
		o := Observation{Node: turn.Node{UID: aUID}, Own: c.own, Sources: Sources{Drains: !c.noDrain}}
		o.Node.State = v1alpha1.StateIdle
		if c.inTurn {
			o.Node.State = v1alpha1.StateDraining
		}
		if o.Node.Host = c.was; c.was != nil && c.was.NodeUID == "" {
			c.was.NodeUID = aUID
		}
		b := o.BlockingBy(c.pods, !c.unknown, now)
		if !b.Since.Equal(c.since) || b.Off != c.off || b.Pods != c.pods {
			t.Errorf("%s: %+v, expected since %v, off %t", name, b, c.since, c.off)
		}
		if got := b.Veto(c.own); got != c.veto {
			t.Errorf("%s: veto %q, expected %q", name, got, c.veto)
		}
	}
}

// TestBlockIsOffIfAllSaySo: pods are evicted in spite of Block only if the grant, the host's record and its policy say so.
func TestBlockIsOffIfAllSaySo(t *testing.T) {
	rules := v1alpha1.PodRules{Block: []v1alpha1.PodSelector{{Namespace: "a"}}, Skip: []v1alpha1.PodSelector{{Namespace: "b"}}, Unmanaged: v1alpha1.PodBlock, EmptyDir: v1alpha1.PodSkip}
	for bits := range 16 {
		grant, record, evicts, sameUID := bits&1 > 0, bits&2 > 0, bits&4 > 0, bits&8 > 0
		own := &v1alpha1.Terms{PodRules: rules, BlockTimeout: metav1.Duration{Duration: time.Hour}}
		if evicts {
			own.OnBlockTimeout = v1alpha1.OnBlockTimeoutEvict
		}
		n := turn.Node{UID: aUID}
		n.Grant = &v1alpha1.Grant{BlockOff: grant, Terms: v1alpha1.Terms{PodRules: rules}}
		n.Host = &v1alpha1.Host{NodeUID: map[bool]string{false: "u2", true: aUID}[sameUID], BlockOff: record}
		for i, r := range EvictionBy(&n, own).Rules {
			off := len(r.Block) == 0 && r.Unmanaged == v1alpha1.PodEvict
			if want := bits == 15; off != want || !off && (len(r.Block) != 1 || r.Unmanaged != v1alpha1.PodBlock) || len(r.Skip) != 1 || r.EmptyDir != v1alpha1.PodSkip {
				t.Errorf("grant %t, record %t, policy %t, this Node's record %t: rules %d are %+v", grant, record, evicts, sameUID, i, r)
			}
		}
	}
	n := turn.Node{UID: aUID}
	n.Grant = &v1alpha1.Grant{BlockOff: true, Terms: v1alpha1.Terms{PodRules: rules}}
	if e := EvictionBy(&n, nil); len(e.Rules[0].Block) != 1 {
		t.Errorf("without a record and a policy: %+v", e)
	}
}
