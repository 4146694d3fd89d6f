package virtual

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// nodes returns a Node in no turn, and one in a turn.
func nodes() []*corev1.Node {
	idle := &corev1.Node{TypeMeta: typeMeta("v1", "Node"), ObjectMeta: objectMeta("", "n1")}
	idle.UID, idle.Status.NodeInfo.BootID = "uid-1", "boot-1"
	inTurn := idle.DeepCopy()
	inTurn.Labels = map[string]string{v1alpha1.LabelState: "draining", v1alpha1.LabelWants: "reboot"}
	inTurn.Annotations = map[string]string{
		v1alpha1.AnnotationTurn: "t1",
		v1alpha1.AnnotationHost: `{"protocol":1,"version":"1","nodeUID":"uid-1","bootID":"boot-1","bootTime":"2026-01-01T00:00:00Z","started":"2026-01-01T00:00:00Z","managed":true}`,
	}
	return []*corev1.Node{idle, inTurn}
}

// keysIn returns the labels and annotations that a merge patch changes, and the other fields.
func keysIn(t *testing.T, doc map[string]any) (labels, annotations, others []string) {
	t.Helper()
	b, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	var read map[string]map[string]any
	if err := json.Unmarshal(b, &read); err != nil {
		t.Fatal(err)
	}
	for part, fields := range read {
		for field, value := range fields {
			m, _ := value.(map[string]any)
			for key := range m {
				switch part + "." + field {
				case "metadata.labels":
					labels = append(labels, key)
				case "metadata.annotations":
					annotations = append(annotations, key)
				}
			}
			if part != "metadata" {
				others = append(others, part+"."+field)
			}
		}
	}
	return labels, annotations, others
}

// TestLiesAreAllowed: a host that lies writes what Kubernetes and the admission policies let a kubelet write, and nothing else.
func TestLiesAreAllowed(t *testing.T) {
	hostLabels, hostAnnotations := v1alpha1.HostKeys()
	for name, l := range lies {
		for _, n := range nodes() {
			for i := range 2 {
				doc := l.doc(&liar{rand.New(rand.NewPCG(1, 2)), n, v1alpha1.ReadKeys(n.Labels, n.Annotations)}, i)
				labels, annotations, others := keysIn(t, doc)
				for _, key := range labels {
					if !slices.Contains(hostLabels, key) {
						t.Errorf("%s writes the label %s", name, key)
					}
				}
				for _, key := range annotations {
					if !slices.Contains(hostAnnotations, key) && name != "keys-many" {
						t.Errorf("%s writes the annotation %s", name, key)
					}
				}
				allowed := []string{"spec.unschedulable"}
				if l.status {
					allowed = []string{"status.conditions", "status.nodeInfo", "status.images"}
				}
				for _, field := range others {
					if !slices.Contains(allowed, field) {
						t.Errorf("%s writes %s", name, field)
					}
				}
				if len(labels)+len(annotations)+len(others) == 0 {
					t.Errorf("%s writes nothing", name)
				}
			}
		}
	}
}

// TestLiesAreLies: what a host that lies writes in its record or its report is what its name says, as readers read it.
func TestLiesAreLies(t *testing.T) {
	n := nodes()[1]
	read := func(name string) (v1alpha1.Keys, string) {
		doc := lies[name].doc(&liar{rand.New(rand.NewPCG(1, 2)), n, v1alpha1.ReadKeys(n.Labels, n.Annotations)}, 0)
		after := n.DeepCopy()
		meta := doc["metadata"].(map[string]any)
		if m, ok := meta["annotations"].(map[string]any); ok {
			for key, value := range m {
				after.Annotations[key], _ = value.(string)
			}
		}
		return v1alpha1.ReadKeys(after.Labels, after.Annotations), after.Annotations[v1alpha1.AnnotationHost]
	}
	// These records are not read at all.
	for _, name := range []string{"record-huge", "record-huger", "record-garbage", "record-types", "record-deep", "protocol-0", "veto-unknown"} {
		if k, text := read(name); k.Host != nil || len(k.Problems) == 0 {
			t.Errorf("%s: a reader accepts %.100s", name, text)
		}
	}
	// These are read, and lie.
	for name, lies := range map[string]func(h *v1alpha1.Host) bool{
		"times-past":    func(h *v1alpha1.Host) bool { return h.BootTime.Year() == 1 },
		"times-future":  func(h *v1alpha1.Host) bool { return h.Started.Year() == 9999 },
		"boot-id":       func(h *v1alpha1.Host) bool { return h.BootID != "boot-1" },
		"node-uid":      func(h *v1alpha1.Host) bool { return h.NodeUID != "uid-1" },
		"protocol-99":   func(h *v1alpha1.Host) bool { return h.Protocol == 99 },
		"veto":          func(h *v1alpha1.Host) bool { return h.Veto != "" },
		"changes-many":  func(h *v1alpha1.Host) bool { return len(h.Changes) == 150 },
		"hooks":         func(h *v1alpha1.Host) bool { return len(h.HookStages) == 11 },
		"unmanaged":     func(h *v1alpha1.Host) bool { return !h.Managed },
		"version":       func(h *v1alpha1.Host) bool { return len(h.Version) > 5000 },
		"changes-names": func(h *v1alpha1.Host) bool { return h.Changes[0].Source == "\n\x00" },
		"steps":         func(h *v1alpha1.Host) bool { return len(h.Steps) == 2 },
		"takes-part":    func(h *v1alpha1.Host) bool { return h.TakesPart != "" && h.TakesPart != "t1" },
		"changes-new":   func(h *v1alpha1.Host) bool { return len(h.Changes) == 2 },
		"boot-ids":      func(h *v1alpha1.Host) bool { return h.BootID != "boot-1" },
		"wants-reboot":  func(h *v1alpha1.Host) bool { return h.Changes[0].Version == "666" },
		"veto-new":      func(h *v1alpha1.Host) bool { return h.Veto == "NotAReason" },
	} {
		if k, text := read(name); k.Host == nil || !lies(k.Host) {
			t.Errorf("%s: a reader reads %.300s", name, text)
		}
	}
	for name, want := range map[string]string{
		"ack-done": "t1/boot-1/draining/done", "ack-committed": "t1/boot-1/draining/committed",
		"ack-refused": "t1/boot-1/draining/refused:Uncordoned", "ack-failed": "t1/boot-1/draining/failed:StillWanted", "ack-garbage": "",
	} {
		if k, _ := read(name); k.Ack.String() != want {
			t.Errorf("%s: a reader reads %q, expected %q", name, k.Ack, want)
		}
	}
	if k, _ := read("ack-other-turn"); k.Ack.Turn == "t1" || k.Ack.State != v1alpha1.StateDraining {
		t.Errorf("ack-other-turn: %v", k.Ack)
	}
	if k, _ := read("ack-other-boot"); k.Ack.BootID == "boot-1" || k.Ack.Turn != "t1" {
		t.Errorf("ack-other-boot: %v", k.Ack)
	}
	if k, _ := read("ack-other-state"); !k.Ack.State.InTurn() {
		t.Errorf("ack-other-state: %v", k.Ack)
	}
}

// TestTheftsAreAllowed: a thief with the coordinator's credential writes what the admission policies let the coordinator write: its own keys, the
// removal of requests, and the Lease's spec. A grant that the thief forges is one that a host accepts.
func TestTheftsAreAllowed(t *testing.T) {
	ownLabels, ownAnnotations := v1alpha1.CoordinatorKeys()
	removed := []string{v1alpha1.AnnotationRequest, v1alpha1.AnnotationRequestNow}
	for name, theft := range thefts {
		lease := map[string]any{"kind": "Lease", "metadata": map[string]any{"name": "lockkeeper"}, "spec": map[string]any{"holderIdentity": "n2_7"}}
		n := nodes()[1]
		n.Labels[v1alpha1.LabelState] = "idle"
		server := newObjects(n, lease)
		th := &thief{rand.New(rand.NewPCG(1, 2)), &people{&fakeFleet{server: server}, newTrace()}, []string{"n1"}}
		for i := range 3 {
			theft.act(th, i)
		}
		if len(server.patches) == 0 {
			t.Errorf("%s writes nothing", name)
		}
		for _, p := range server.patches {
			if p.user != thiefUser {
				t.Errorf("%s writes as %s", name, p.user)
			}
			labels, annotations, others := keysIn(t, p.doc)
			for _, key := range labels {
				if !slices.Contains(ownLabels, key) {
					t.Errorf("%s writes the label %s", name, key)
				}
			}
			for _, key := range annotations {
				value := p.doc["metadata"].(map[string]any)["annotations"].(map[string]any)[key]
				if !slices.Contains(ownAnnotations, key) && !(value == nil && slices.Contains(removed, key)) {
					t.Errorf("%s writes the annotation %s", name, key)
				}
			}
			if p.path == leasePath && len(labels)+len(annotations) > 0 || p.path != leasePath && len(others) > 0 {
				t.Errorf("%s writes %v %v of %s", name, others, annotations, p.path)
			}
			if grant, ok := annotationIn(p.doc, v1alpha1.AnnotationGrant); ok && name != "grant-garbage" {
				g, err := v1alpha1.ParseGrant(grant)
				if err != nil || g.NodeUID != "uid-1" || g.BootID != "boot-1" || g.Turn == "" || g.Epoch == "" || time.Since(g.StageAt) > time.Minute {
					t.Errorf("%s: the grant is %s: %v", name, grant, err)
				}
			}
		}
	}
}

func annotationIn(doc map[string]any, key string) (string, bool) {
	meta, _ := doc["metadata"].(map[string]any)
	m, _ := meta["annotations"].(map[string]any)
	s, ok := m[key].(string)
	return s, ok
}

// TestThiefSkipsADrain: a thief with the coordinator's credential moves hosts past their drain, or grants them a reboot without one. An admin has
// cordoned their nodes, so no cordon is missing: only the missing commit, or the drain in the host's own plan, can stop a host.
func TestThiefSkipsADrain(t *testing.T) {
	for _, mode := range []string{"grant-reboot", "grant-undrained"} {
		t.Run(mode, func(t *testing.T) {
			faults := "6m thief for=1s mode=" + mode
			for _, host := range []string{"n1", "n2", "n3", "n4"} {
				faults += "\n1s cordon " + host + " for=8m"
			}
			p, err := Parse("plan seed=2 length=10m0s\n" + faults)
			if err != nil {
				t.Fatal(err)
			}
			if res := run(t, Options{Hosts: 4, Workloads: 3}, p, false); res.Why != "" {
				t.Errorf("%s\nits requests and faults:\n%s", res.Why, res.trace)
			}
		})
	}
}

// TestRestoredLie checks that a host arrives after it has lied about its status and the store was set back to that time: its kubelet had
// overwritten the lie, and Clean ends it again.
func TestRestoredLie(t *testing.T) {
	p, err := Parse("plan seed=1 length=3m0s\n1m lie n1 for=1m mode=status-huge\n2m30s rewind for=45s")
	if err != nil {
		t.Fatal(err)
	}
	inBubble(t, Options{Hosts: 1, Plan: p}, func(t *testing.T, f *Fleet) {
		<-f.Start()
		if len(f.Node("n1").Status.Images) == 0 {
			t.Error("the store does not have the lie again")
		}
		f.Clean()
		f.Stage("n1", "2.0.0")
		if why := f.Arrive(time.Hour); why != "" {
			t.Error(why)
		}
	})
}
