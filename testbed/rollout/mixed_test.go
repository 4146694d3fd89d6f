package rollout

import (
	"fmt"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// TestMixedCluster rolls the nodes that have lockkeeper in a cluster in which as many have none, and some are taken out. The budget
// is a percentage. Of the other nodes some are cordoned or not Ready: none of them is counted, labeled or waited for.
// With LOCKKEEPER_SOAK there are ten nodes with lockkeeper, ten without, and five that are taken out.
func TestMixedCluster(t *testing.T) {
	t.Parallel()
	with, without, budget := 4, 4, "50%" // two at once
	if rig.Number(t, "LOCKKEEPER_SOAK", 0) > 0 {
		with, without, budget = 10, 10, "20%"
	}
	s := play(t, with, 1, "rollout: {settle: 0s, maxUnavailable: "+budget+", maxUnavailableTotal: "+budget+"}", quick, func(o *rig.Options) { o.Budget = 2 })
	nodes := s.ControlPlane.Client().CoreV1().Nodes()
	var foreign []string
	for i := range without {
		name := fmt.Sprintf("foreign-%d", i)
		_, err := s.ControlPlane.CreateNode(s.Within(rig.Soon), controlplane.NodeSpec{Name: name}) // never Ready
		s.Must(err)
		foreign = append(foreign, name)
		if i%2 == 0 {
			s.Cordon(name)
		}
	}
	out := map[string]simhost.Options{
		"out-label":    {Labels: map[string]string{v1alpha1.LabelManaged: "false"}},
		"out-detached": {WithoutLockkeeper: true}, // until it is detached: a kubelet cannot set that
		"out-file":     {Config: func(c simhost.Config) { c.Set("", "managed_by_default", false) }},
		"out-cordoned": {Labels: map[string]string{v1alpha1.LabelManaged: "false"}},
		"in-label":     {Labels: map[string]string{v1alpha1.LabelManaged: "true"}, Config: func(c simhost.Config) { c.Set("", "managed_by_default", false) }},
	}
	hosts := map[string]*simhost.Host{}
	for name, o := range out {
		o.Name, o.Binary = name, binary
		h, err := s.StartHost(t.Context(), o)
		s.Must(err)
		t.Cleanup(func() { s.Check(h.Close()) })
		hosts[name] = h
		s.Until(name, rig.Soon, "to be Ready", func(n *turn.Node) bool { return n.Ready })
	}
	s.Annotate("out-detached", v1alpha1.AnnotationDetached, "theirs")
	s.Must(hosts["out-detached"].StartLockkeeper())
	s.Cordon("out-cordoned")
	s.Until("in-label", rig.Soon, "to be adopted", func(n *turn.Node) bool { return n.State == v1alpha1.StateIdle })
	delete(out, "in-label")

	var names []string
	for _, h := range s.Fleet.Hosts {
		names = append(names, h.Name())
	}
	for name := range out {
		s.Referee.WantMade(name)
		s.Must(hosts[name].StageUpdate(newVersion))
	}
	s.stage(names...)
	s.updated(names...)
	if most := s.Referee.Report().MaxDisturbed; most != 2 {
		t.Errorf("at most %d nodes were disturbed at once, expected 2", most)
	}
	for _, name := range append(foreign, "out-label", "out-detached", "out-file", "out-cordoned") {
		obj, err := nodes.Get(s.Within(rig.Soon), name, metav1.GetOptions{})
		s.Must(err)
		if n := turn.FromNode(obj); left(&n) != "" || n.Held != "" || len(n.Info) > 0 {
			t.Errorf("%s has %s, held=%s, %v", name, left(&n), n.Held, n.Info)
		}
		if h := hosts[name]; h != nil && h.Reboots() > 0 {
			t.Errorf("%s was rebooted %d times", name, h.Reboots())
		}
	}

	// The host's file is changed on the running host, and the label on another: both join, and take their turns.
	s.Must(hosts["out-file"].Configure(func(c simhost.Config) { c.Set("", "managed_by_default", true) }))
	s.Must(hosts["out-file"].Signal(syscall.SIGHUP))
	s.Label("out-label", v1alpha1.LabelManaged, nil)
	for _, name := range []string{"out-file", "out-label"} {
		s.Until(name, rig.Rolled, "to be updated", func(n *turn.Node) bool {
			return hosts[name].Version() == newVersion && n.State == v1alpha1.StateIdle && n.Last != nil && n.Last.Result == v1alpha1.ResultDone
		})
	}
	for _, name := range foreign {
		s.Must(nodes.Delete(s.Within(rig.Soon), name, metav1.DeleteOptions{}))
	}
}
