package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/hookauthor"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

const (
	hosts, candidates = 3, 2
	// lag is the time for which faults may hold requests back; the referee needs it.
	lag = 30 * time.Second
	// long is how long the API server may be down in a soak run. The referee of such a fleet uses longLag.
	long, longLag = time.Minute, 90 * time.Second
)

// policyText has hooks in all stages, and short timeouts for the waits that a campaign may cause.
const policyText = `
rollout: {settle: 200ms, backoff: 1s, backoffMax: 2s, maxTurnsPerDay: 48}
timeouts: {seen: 10s}
hooks:
  beforeDrain: [{name: storage}]
  beforeReboot: [{name: backup}]
  beforeUncordon: [{name: check}]
`

// fleet is three hosts, each of whose processes is behind a proxy.
type fleet struct {
	*rig.Scene
	book    *book
	authors *hookauthor.Authors
	update  int // the last update, 4.update.0
}

func newFleet(t *testing.T, cp *controlplane.ControlPlane, soak bool) *fleet {
	t.Helper()
	f := &fleet{update: 1, Scene: rig.Begin(t, cp, rig.Options{
		Policy: policyText, Proxied: true, Work: rig.Spread(hosts),
		Fleet: simhost.FleetOptions{
			Hosts: hosts, Coordinators: candidates,
			Host: simhost.Options{
				Binary: binary, RestartDelay: 200 * time.Millisecond, DownTime: 200 * time.Millisecond,
				InhibitDelayMax: time.Second,
				Config: func(c simhost.Config) {
					c.Set("lease", "duration", 4*time.Second)
					c.Set("lease", "renew_deadline", 3*time.Second)
					c.Set("sources", "poll_interval", 300*time.Millisecond)
				},
			},
		},
		Lag: map[bool]time.Duration{false: lag, true: longLag}[soak],
	})}
	ready := false
	defer func() {
		if !ready {
			f.close()
		}
	}()
	var err error
	f.book, err = openBook(cp)
	f.Must(err)
	f.authors, err = hookauthor.Start(cp.Client(), func(text string) { t.Log(text) })
	f.Must(err)
	ready = true
	return f
}

// close stops the fleet and returns the referee's report.
func (f *fleet) close() rig.Report {
	if f.authors != nil {
		f.authors.Close()
	}
	if f.book != nil {
		f.book.close()
	}
	return f.Verdict()
}

func within(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

func (f *fleet) version() string { return fmt.Sprintf("4.%d.0", f.update) }

// now reads a Node. ok is false if the Node or the API server does not exist.
func (f *fleet) now(name string) (n turn.Node, ok bool) {
	ctx, cancel := within(5 * time.Second)
	defer cancel()
	obj, err := f.ControlPlane.Client().CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return turn.Node{}, false
	}
	return turn.FromNode(obj), true
}

// gone reports whether the API server answers that the Node does not exist.
func (f *fleet) gone(name string) bool {
	ctx, cancel := within(5 * time.Second)
	defer cancel()
	_, err := f.ControlPlane.Client().CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	return apierrors.IsNotFound(err)
}

// patch edits a Node as an admin; a nil value removes a key. It reports whether the API server accepted the edit.
func (f *fleet) patch(name string, doc map[string]any) bool {
	f.T.Helper()
	return f.patchAs(f.ControlPlane.Client(), name, doc)
}

func (f *fleet) patchAs(client kubernetes.Interface, name string, doc map[string]any) bool {
	f.T.Helper()
	body, err := json.Marshal(doc)
	f.Must(err)
	ctx, cancel := within(5 * time.Second)
	defer cancel()
	_, err = client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: rig.KubectlManager})
	return err == nil
}

// leading returns the host whose term the Lease names, or nil.
func (f *fleet) leading() *simhost.Host {
	ctx, cancel := within(5 * time.Second)
	defer cancel()
	epoch, err := f.LeaseHolder(ctx)
	if err != nil {
		return nil
	}
	return f.HostOf(epoch)
}

// errPatience is the error of a wait that timed out.
var errPatience = errors.New("timed out")

// book follows all Nodes.
type book struct {
	informer cache.SharedIndexInformer
	changed  chan struct{}
	close    func()
}

func openBook(cp *controlplane.ControlPlane) (*book, error) {
	b := &book{informer: coreinformers.NewNodeInformer(cp.Client(), 0, cache.Indexers{}), changed: make(chan struct{}, 1)}
	poke := func() {
		select {
		case b.changed <- struct{}{}:
		default:
		}
	}
	_, err := b.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { poke() }, UpdateFunc: func(any, any) { poke() }, DeleteFunc: func(any) { poke() },
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.informer.RunWithContext(ctx)
	}()
	b.close = func() { cancel(); <-done }
	return b, nil
}

// find waits until a Node fits, and returns its name, or "" after d.
func (b *book) find(d time.Duration, fits func(*turn.Node) bool) string {
	late := time.NewTimer(d)
	defer late.Stop()
	for {
		for _, obj := range b.informer.GetStore().List() {
			if o, ok := obj.(*corev1.Node); ok {
				if n := turn.FromNode(o); fits(&n) {
					return n.Name
				}
			}
		}
		select {
		case <-b.changed:
		case <-late.C:
			return ""
		}
	}
}
