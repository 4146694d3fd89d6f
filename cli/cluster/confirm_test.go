package cluster

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// awaiting puts the node into a stage of a turn that awaits storage and cache
// in before-drain, and backup in before-reboot together with the volumes.
func awaiting(s v1alpha1.State, id string) func(*corev1.Node) {
	hook := func(name string) v1alpha1.Hook {
		return v1alpha1.Hook{Name: name, Timeout: metav1.Duration{Duration: time.Hour}, OnTimeout: v1alpha1.OnTimeoutWait}
	}
	return all(inTurn(s, "13:00:00", "seen"), func(n *corev1.Node) {
		g := grant(n, "13:00:00")
		g.Turn = id
		g.Terms.BeforeDrain = []v1alpha1.Hook{hook("storage"), hook("cache")}
		g.Terms.BeforeReboot = []v1alpha1.Hook{hook("backup")}
		g.Terms.WaitForVolumeDetach = true
		n.Annotations[v1alpha1.AnnotationTurn] = id
		n.Annotations[v1alpha1.AnnotationGrant] = v1alpha1.FormatRecord(g)
	})
}

func confirmed(hook, id string) func(*corev1.Node) {
	return annotation(v1alpha1.HookAnnotation(hook), id)
}

// confirm confirms a hook of n1 and returns what it prints.
func confirm(t *testing.T, s *Source, hook string) (string, error) {
	var out bytes.Buffer
	err := s.Confirm(t.Context(), "n1", hook, false, Printer{Out: &out, Err: &out})
	return out.String(), err
}

func TestConfirm(t *testing.T) {
	ownUnits := func(n *corev1.Node) {
		setHost(n, func(h *v1alpha1.Host) {
			h.HookStages = []v1alpha1.State{v1alpha1.StateBeforeDrain}
		})
	}
	volume := func(n *corev1.Node) {
		n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "a"}}
	}
	said := func(hook, rest string) string {
		return "n1: hook " + hook + " is confirmed for turn t1; " + rest + ".\n" +
			"The same with kubectl: kubectl annotate node n1 --overwrite hook.lockkeeper.dev/" + strings.Fields(hook)[0] + "=t1\n"
	}
	const undo = "To undo: kubectl annotate node n1 hook.lockkeeper.dev/storage-\n"
	for _, tc := range []struct {
		name       string
		node       func(*corev1.Node)
		hook       string
		text, fail string
		writes     int
	}{
		{"the first of two", awaiting(v1alpha1.StateBeforeDrain, "t1"), "storage",
			said("storage of before-drain", "the stage still waits for hook cache") + undo, "", 1},
		{"the last", all(awaiting(v1alpha1.StateBeforeDrain, "t1"), confirmed("cache", "t1")), "storage",
			said("storage of before-drain", "the stage waits for no other hook"), "", 1},
		{"over another turn's confirmation", all(awaiting(v1alpha1.StateBeforeDrain, "t1"), confirmed("storage", "t0"), confirmed("cache", "t0")), "storage",
			strings.Replace(said("storage of before-drain", "the stage still waits for hook cache"), "cache.\n", "cache. It replaces \"t0\".\n", 1) +
				"To undo: kubectl annotate node n1 --overwrite hook.lockkeeper.dev/storage=t0\n", "", 1},
		{"the host's own units", all(awaiting(v1alpha1.StateBeforeDrain, "t1"), confirmed("cache", "t1"), ownUnits), "storage",
			said("storage of before-drain", "the stage still waits for the host's hook units") + undo, "", 1},
		{"volumes", all(awaiting(v1alpha1.StateBeforeReboot, "t1"), volume), "backup",
			said("backup of before-reboot", "the stage still waits for volumes to detach (1)") + "To undo: kubectl annotate node n1 hook.lockkeeper.dev/backup-\n", "", 1},
		{"already", all(awaiting(v1alpha1.StateBeforeDrain, "t1"), confirmed("storage", "t1")), "storage",
			"n1: hook storage is already confirmed for turn t1, nothing changed.\n", "", 0},
		{"a hook of another stage", awaiting(v1alpha1.StateBeforeDrain, "t1"), "backup",
			"", "nothing to confirm: turn t1 of n1 is in before-drain, which waits for storage, cache; backup belongs to before-reboot", 0},
		{"a hook that no stage waits for", awaiting(v1alpha1.StateBeforeDrain, "t1"), "stroage",
			"", "nothing to confirm: turn t1 of n1 is in before-drain, which waits for storage, cache; no stage of this turn waits for stroage", 0},
		{"a stage without hooks", awaiting(v1alpha1.StateBeforeUncordon, "t1"), "storage",
			"", "nothing to confirm: turn t1 of n1 is in before-uncordon, which waits for no hook that is confirmed by an annotation; storage belongs to before-drain", 0},
		{"no hook stage", awaiting(v1alpha1.StateDraining, "t1"), "storage",
			"", "nothing to confirm: turn t1 of n1 is in draining, which waits for no hooks; storage belongs to before-drain", 0},
		{"no turn", func(*corev1.Node) {}, "storage", "", "nothing to confirm: n1 is in no turn, its state is idle", 0},
		{"not managed", unmanaged, "storage", "", "nothing to confirm: n1 is in no turn and has no state", 0},
		{"a broken grant", all(awaiting(v1alpha1.StateBeforeDrain, "t1"), annotation(v1alpha1.AnnotationGrant, "{")), "storage",
			"", "nothing to confirm: n1 is in before-drain with an unreadable grant, which the coordinator repairs", 0},
		{"no name of a hook", awaiting(v1alpha1.StateBeforeDrain, "t1"), "a/b", "", `hook name "a/b": `, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode("n1", tc.node)
			s, client, writes := faulty(t, nil, n)
			text, err := confirm(t, s, tc.hook)
			if text != tc.text || *writes != tc.writes {
				t.Errorf("%d writes, said %q", *writes, text)
			}
			if (tc.fail == "") != (err == nil) || err != nil && !strings.HasPrefix(err.Error(), tc.fail) {
				t.Errorf("error %v, expected %s", err, tc.fail)
			}
			if tc.fail != "" {
				return
			}
			got, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
			if err != nil || got.Annotations[v1alpha1.HookAnnotation(tc.hook)] != "t1" {
				t.Errorf("the Node says %q, %v", got.Annotations[v1alpha1.HookAnnotation(tc.hook)], err)
			}
		})
	}
}

// TestConfirmDryRun: a dry run lets no turn continue.
func TestConfirmDryRun(t *testing.T) {
	n := newNode("n1", awaiting(v1alpha1.StateBeforeDrain, "t1"))
	s, client, _ := faulty(t, nil, n)
	checked := 0
	client.PrependReactor("patch", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if dry := a.(clienttesting.PatchActionImpl).PatchOptions.DryRun; !slices.Equal(dry, []string{metav1.DryRunAll}) {
			t.Errorf("dry run %q", dry)
		}
		checked++
		return true, n, nil // the fake would store it
	})
	var out bytes.Buffer
	err := s.Confirm(t.Context(), "n1", "storage", true, Printer{Out: &out, Err: &out})
	const want = "Dry run, nothing is changed. Without --dry-run:\nn1: hook storage of before-drain is confirmed for turn t1; "
	if err != nil || !strings.HasPrefix(out.String(), want) || strings.Contains(out.String(), "To undo") || checked != 1 {
		t.Errorf("%q, %v, checked %d times", out.String(), err, checked)
	}
}

// TestConfirmReadsAgain: a Node that changed since it was read is read again, and a confirmation that
// was meant for one turn is never written for the next.
func TestConfirmReadsAgain(t *testing.T) {
	s, _, writes := faulty(t, []error{conflict("n1"), conflict("n1"), nil}, newNode("n1", awaiting(v1alpha1.StateBeforeDrain, "t1")))
	if text, err := confirm(t, s, "storage"); err != nil || !strings.HasPrefix(text, "n1: hook storage of before-drain is confirmed") || *writes != 3 {
		t.Errorf("two conflicts: %q, %v after %d writes", text, err, *writes)
	}
	s, _, writes = faulty(t, []error{conflict("n1"), conflict("n1"), conflict("n1"), conflict("n1"), conflict("n1"), conflict("n1")}, newNode("n1", awaiting(v1alpha1.StateBeforeDrain, "t1")))
	if _, err := confirm(t, s, "storage"); !apierrors.IsConflict(err) || *writes != retries {
		t.Errorf("indefinitely in conflict: %v after %d writes", err, *writes)
	}

	s, client, writes := faulty(t, []error{conflict("n1")}, newNode("n1", awaiting(v1alpha1.StateBeforeDrain, "t1")))
	next := newNode("n1", awaiting(v1alpha1.StateBeforeDrain, "t2"))
	next.ResourceVersion = "next"
	client.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) { return *writes > 0, next, nil })
	const want = "nothing was confirmed: turn t1 of n1 ended meanwhile; check the node before you confirm a hook of another turn"
	if text, err := confirm(t, s, "storage"); err == nil || err.Error() != want || *writes != 1 {
		t.Errorf("the next turn: %q, %v after %d writes", text, err, *writes)
	}

	s, _, _ = faulty(t, []error{errors.New("connection reset")}, newNode("n1", awaiting(v1alpha1.StateBeforeDrain, "t1")))
	if _, err := confirm(t, s, "storage"); err == nil || !strings.Contains(err.Error(), "the outcome of the write is unknown") {
		t.Errorf("no answer: %v", err)
	}
}

// TestHookNames reads the names that a shell completes. No schema checks those in a grant, and a shell may expand them.
func TestHookNames(t *testing.T) {
	names := func(first string) []string {
		n := newNode("n1", awaiting(v1alpha1.StateBeforeDrain, "t1"))
		n.Annotations[v1alpha1.AnnotationGrant] = strings.Replace(n.Annotations[v1alpha1.AnnotationGrant], `"storage"`, `"`+first+`"`, 1)
		s, _, _ := faulty(t, nil, n)
		names, err := s.HookNames(t.Context(), "n1")
		if err != nil {
			t.Error(err)
		}
		return names
	}
	if got := names("storage"); !slices.Equal(got, []string{"storage", "cache"}) {
		t.Errorf("%q", got)
	}
	for _, hostile := range []string{"$(reboot)", "`reboot`", "a b", `\u001b[2J`, ""} {
		if got := names(hostile); len(got) > 0 {
			t.Errorf("%q with %q in the grant", got, hostile)
		}
	}
}
