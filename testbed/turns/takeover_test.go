package turns

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/packaging/render/intents"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// takeoverPlaces are the stages in which a node is handed to another owner.
var takeoverPlaces = []string{"idle", "before-drain", "draining", "before-reboot", "rebooting", "rebooting, under way", "applying", "applying, under way", "before-uncordon", "uncordoning"}

// takeovers returns the scenes in which another owner takes a detached node over: all with
// LOCKKEEPER_SOAK, otherwise one that the seed draws.
func takeovers(t *testing.T) map[string]func(*scene) {
	all := map[string]func(*scene){
		"takeover-deleted":       deletedWhileDetached,
		"takeover-changed-world": changedWhileDetached,
	}
	for _, intent := range []string{intents.Detached, intents.Forced} {
		for _, place := range takeoverPlaces {
			at := intentPlaces[place]
			at.name = place
			name := strings.NewReplacer(" ", "-", ",", "", "detached with force", "forced").Replace("takeover-" + intent + "-" + place)
			all[name] = func(s *scene) {
				h, release, _ := s.bring(at)
				s.setIntent(h, intent, time.Time{})
				release()
				s.rests(h, cellOf(s.T, intent, place).Rest)
				s.takenOver(h, func() {})
			}
		}
	}
	return drawn(t, all, 1)
}

// other is the field manager of another owner, request that of a person who does not know that the node is detached.
const other, request = "other-owner", "a-person"

// write patches the host's Node as the manager.
func (s *scene) write(h *simhost.Host, manager, patch string) {
	s.T.Helper()
	_, err := cp.Client().CoreV1().Nodes().Patch(s.soon(), h.Name(), types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: manager})
	s.Must(err)
}

// written is what the managers have written to the Node, and when.
func written(n *corev1.Node, managers ...string) (all []metav1.ManagedFieldsEntry) {
	for _, e := range n.ManagedFields {
		if slices.Contains(managers, e.Manager) {
			all = append(all, e)
		}
	}
	return all
}

func (s *scene) node(h *simhost.Host) *corev1.Node {
	s.T.Helper()
	n, err := cp.Client().CoreV1().Nodes().Get(s.soon(), h.Name(), metav1.GetOptions{})
	s.Must(err)
	return n
}

// hostUpdate returns the version of the host's HostUpdate, "" if there is none.
func (s *scene) hostUpdate(h *simhost.Host) string {
	s.T.Helper()
	client, err := dynamic.NewForConfig(cp.AdminConfig())
	s.Must(err)
	u, err := client.Resource(v1alpha1.HostUpdateResource).Get(s.soon(), h.Name(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return ""
	}
	s.Must(err)
	return u.GetResourceVersion()
}

// takenOver has another owner cordon, label, annotate, taint, update and reboot a node that is detached, while people and hooks
// address lockkeeper; and more. Nothing of that makes lockkeeper write. Then the node is attached again, and takes its turn: what is
// the other owner's stays as it is.
func (s *scene) takenOver(h *simhost.Host, more func()) {
	s.T.Helper()
	s.statusLineHas(h, string(v1alpha1.ReasonDetached))
	before := s.node(h)

	s.Referee.AdminCordon(h.Name())
	s.write(h, other, `{"metadata":{"labels":{"example.com/owner":"vendor"},"annotations":{"example.com/ticket":"42"}},
		"spec":{"unschedulable":true,"taints":[{"key":"example.com/theirs","value":"yes","effect":"PreferNoSchedule"}]}}`)
	if h.Staged() == "" {
		s.Must(h.StageUpdate("4.3.0"))
	}
	s.Must(h.Crash(simhost.CrashOptions{ComesUpUpdated: true, StayDown: true}))
	update := s.hostUpdate(h) // not before: what the host publishes of its turn's end may come after its release
	s.Must(h.PowerOn())
	s.until(h, "to be Ready in the new boot", func(n *turn.Node) bool { return n.Ready && n.BootID == h.BootID() })
	more()
	s.statusLineHas(h, string(v1alpha1.ReasonDetached))
	reboots := h.Reboots()
	s.Referee.WantMade(h.Name())
	s.Must(h.StageUpdate("4.4.0"))
	s.Must(h.WriteFile(flagged, ""))
	s.write(h, request, fmt.Sprintf(`{"metadata":{"annotations":{%q:"reboot",%q:"t0"}}}`, v1alpha1.AnnotationRequest, v1alpha1.HookAnnotation("theirs")))
	// The coordinator decides with all of this.
	s.policy("rollout: {settle: 1s}")
	s.statusLineHas(h, string(v1alpha1.ReasonDetached))

	during := s.node(h)
	ours := []string{kube.FieldManager("host"), kube.FieldManager("coordinator")}
	if a, b := written(before, ours...), written(during, ours...); len(a) == 0 || !reflect.DeepEqual(a, b) {
		s.T.Errorf("lockkeeper wrote to %s while it was detached:\n%v\n%v", h.Name(), a, b)
	}
	if now := s.hostUpdate(h); now != update {
		s.T.Errorf("the HostUpdate of %s was written: version %s became %s", h.Name(), update, now)
	}

	s.Annotate(h.Name(), v1alpha1.AnnotationDetached, nil)
	s.until(h, "to be idle, and to want nothing", func(n *turn.Node) bool {
		return n.State == v1alpha1.StateIdle && n.HostReported() && n.Wants == v1alpha1.WantsNothing && n.Ready && n.BootID == h.BootID() &&
			n.Last != nil && n.Last.Result == v1alpha1.ResultDone
	})
	if got := h.Reboots() - reboots; got != 1 || h.Version() != "4.4.0" {
		s.T.Errorf("attached again, %s was rebooted %d times and runs %s", h.Name(), got, h.Version())
	}
	s.theirs(h, during)
}

// theirs checks that what the other owner wrote is as it was.
func (s *scene) theirs(h *simhost.Host, during *corev1.Node) {
	s.T.Helper()
	after := s.node(h)
	if a, b := written(during, other), written(after, other); len(a) == 0 || !reflect.DeepEqual(a, b) {
		s.T.Errorf("of the other owner's fields on %s became\n%v\n%v", h.Name(), a, b)
	}
	hasTaint := slices.ContainsFunc(after.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "example.com/theirs" && t.Value == "yes" })
	if n := turn.FromNode(after); !n.Unschedulable || n.Mark || !hasTaint || after.Labels["example.com/owner"] != "vendor" || after.Annotations["example.com/ticket"] != "42" {
		s.T.Errorf("%s is unschedulable %t, mark %t, and has %v, %v, %v", h.Name(), n.Unschedulable, n.Mark, after.Spec.Taints, after.Labels, after.Annotations)
	}
}

// changedWhileDetached renames the policy and runs the next version of lockkeeper while the node is detached.
func changedWhileDetached(s *scene) {
	next, err := simhost.BuildMutant(s.T.Context(), os.Stderr, simhost.Mutation{File: "main.go", Old: "var version string\n", New: "var version = \"v9.9.9\"\n"})
	s.Must(err)
	link := filepath.Join(s.T.TempDir(), "lockkeeper")
	s.Must(os.Symlink(s.binary, link))
	at := intentPlaces["draining"]
	at.name, at.begin = "draining", func(s *scene) *simhost.Host {
		h := s.host(simhost.Options{Name: s.name + "-1", Binary: link})
		s.idle(h)
		return h
	}
	h, release, _ := s.bring(at)
	s.setIntent(h, intents.Detached, time.Time{})
	release()
	s.rests(h, cellOf(s.T, intents.Detached, "draining").Rest)
	s.takenOver(h, func() {
		s.Must(cp.DeletePolicy(s.soon(), s.name))
		s.name += "-renamed"
		s.policy("rollout: {settle: 0s}")
		h.StopLockkeeper()
		s.Must(os.Symlink(next, link+".new"))
		s.Must(os.Rename(link+".new", link))
		s.Must(h.StartLockkeeper())
	})
	if n := s.Now(h.Name()); n.Host.Version != "v9.9.9" {
		s.T.Errorf("%s runs lockkeeper %s", h.Name(), n.Host.Version)
	}
}

// deletedWhileDetached deletes a detached Node. Nothing follows. The Node that the kubelet then makes has no annotation, and is
// lockkeeper's.
func deletedWhileDetached(s *scene) {
	at := intentPlaces["before-reboot"]
	at.name = "before-reboot"
	h, release, _ := s.bring(at)
	s.setIntent(h, intents.Forced, time.Time{})
	release()
	s.rests(h, cellOf(s.T, intents.Forced, "before-reboot").Rest)
	uid := s.Now(h.Name()).UID
	h.StopKubelet()
	s.Must(cp.Client().CoreV1().Nodes().Delete(s.soon(), h.Name(), metav1.DeleteOptions{}))
	s.statusLineHas(h, "its Node has not been seen yet")
	s.Must(h.StartKubelet())
	n := s.until(h, "to be idle, and to want nothing", func(n *turn.Node) bool {
		return n.State == v1alpha1.StateIdle && n.HostReported() && n.Wants == v1alpha1.WantsNothing && n.Ready && n.Last != nil
	})
	if n.UID == uid || n.Unschedulable || n.Last.Result != v1alpha1.ResultDone {
		s.T.Errorf("%s: UID %s after %s, unschedulable %t, last %+v", h.Name(), n.UID, uid, n.Unschedulable, n.Last)
	}
	s.did(h, 1)
}
