package turns

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// oldVersion is what hosts run at first, newVersion what is staged.
const oldVersion, newVersion = "4.1.0", "4.2.0"

// scene is one test: hosts that one policy selects.
type scene struct {
	*rig.Scene
	name string // of it, of its policy, and the beginning of its hosts' names
	// owner closes the scene's hosts at its end; nil is t.
	owner *testing.T
	*world
}

// soon bounds one wait.
func (s *scene) soon() context.Context { return s.Within(rig.Soon) }

// policy makes the scene's policy what spec says next to its selector, and returns when the coordinator knows it.
func (s *scene) policy(spec string) {
	s.T.Helper()
	p, err := s.tryPolicy(spec)
	s.Must(err)
	s.policyIs("to be known to the coordinator", func(now *v1alpha1.DisruptionPolicy) bool {
		return now.Status.ObservedGeneration >= p.Generation
	})
}

func (s *scene) tryPolicy(spec string) (*v1alpha1.DisruptionPolicy, error) {
	return cp.ApplyPolicy(s.soon(), s.name, fmt.Sprintf("priority: 10\nnodeSelector: {matchLabels: {%s: %s}}\n%s", sceneLabel, s.name, spec))
}

// policyIs waits until the scene's policy is as cond wants it.
func (s *scene) policyIs(what string, cond func(*v1alpha1.DisruptionPolicy) bool) {
	s.T.Helper()
	var last string
	s.Eventually("policy "+s.name+" "+what, func(ctx context.Context) (bool, error) {
		p, err := cp.GetPolicy(ctx, s.name)
		if err != nil {
			return false, err
		}
		text, _ := json.Marshal(p.Status)
		last = string(text)
		return cond(p), fmt.Errorf("its status is %s", last)
	})
}

// makesNoProgress waits until the policy reports that it makes no progress, with the reason and the words.
func (s *scene) makesNoProgress(reason v1alpha1.Reason, words ...string) {
	s.T.Helper()
	s.policyIs(fmt.Sprintf("to say %s: %q", reason, words), func(p *v1alpha1.DisruptionPolicy) bool {
		return slices.ContainsFunc(p.Status.Conditions, func(c metav1.Condition) bool {
			return c.Type == v1alpha1.ConditionProgressing && c.Status == metav1.ConditionFalse && c.Reason == string(reason) && containsAll(c.Message, words)
		})
	})
}

func containsAll(text string, parts []string) bool {
	return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
}

// hosts starts hosts for the scene, with two units of its own, and returns when they are idle.
func (s *scene) hosts(n int) []*simhost.Host {
	s.T.Helper()
	var all []*simhost.Host
	for i := range n {
		all = append(all, s.host(simhost.Options{Name: fmt.Sprintf("%s-%d", s.name, i+1)}))
	}
	for _, h := range all {
		s.idle(h)
	}
	return all
}

func (s *scene) host(o simhost.Options) *simhost.Host {
	s.T.Helper()
	o.Binary, o.Version, o.RestartDelay = cmp.Or(o.Binary, s.binary), oldVersion, 300*time.Millisecond
	more := o.Config
	o.Config = func(c simhost.Config) {
		c.Set("", "log_level", "info")
		c.Set("metrics", "listen", "127.0.0.1:0")
		if more != nil {
			more(c)
		}
	}
	if o.Labels == nil {
		o.Labels = map[string]string{sceneLabel: s.name}
	}
	o.InhibitDelayMax = 20 * time.Minute // those that hold a shutdown up are the tests' own
	h, err := s.start(context.Background(), o)
	s.Must(err)
	t := s.T
	if s.owner != nil {
		t = s.owner
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s, by the referee:\n\t%s\nits log:\n%s", h.Name(), strings.Join(s.linesOf(h.Name()), "\n\t"), h.LogTail(60))
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		if _, race, found := strings.Cut(h.Logs(), "WARNING: DATA RACE"); found {
			t.Errorf("on %s: DATA RACE%.4000s", h.Name(), race)
		}
	})
	for _, unit := range []string{"app.service", "db.service"} {
		s.Must(h.Units().Set(unit, simhost.Unit{Load: "loaded", Active: "active"}))
	}
	return h
}

// idle waits until a host's node is idle and the host has said that it wants nothing: what is there now is in effect.
func (s *scene) idle(h *simhost.Host) {
	s.T.Helper()
	s.until(h, "to be idle, and to want nothing", func(n *turn.Node) bool {
		return n.State == v1alpha1.StateIdle && n.HostReported() && n.Wants == v1alpha1.WantsNothing && n.Ready && n.BootID == h.BootID()
	})
}

// until waits until cond holds for the host's Node, and returns that version of it.
func (s *scene) until(h *simhost.Host, what string, cond func(*turn.Node) bool) *turn.Node {
	s.T.Helper()
	return s.Until(h.Name(), rig.Soon, what, cond)
}

// reaches waits until the host has acked its turn, and the turn is in the state.
func (s *scene) reaches(h *simhost.Host, state v1alpha1.State) *turn.Node {
	s.T.Helper()
	return s.Reaches(h.Name(), state)
}

// commits waits for the host's ack committed in the state.
func (s *scene) commits(h *simhost.Host, state v1alpha1.State) *turn.Node {
	s.T.Helper()
	return s.Commits(h.Name(), state)
}

func (s *scene) held(h *simhost.Host, reason v1alpha1.Reason) *turn.Node {
	s.T.Helper()
	return s.Held(h.Name(), reason)
}

// published waits until the host has said that it wants this, for these changes.
func (s *scene) published(h *simhost.Host, wants v1alpha1.Wants, changes ...string) *turn.Node {
	s.T.Helper()
	return s.until(h, fmt.Sprintf("to want %s, for %v", wants, changes), func(n *turn.Node) bool {
		return n.HostReported() && n.Wants == wants && len(n.Host.Changes) == len(changes) && !slices.ContainsFunc(n.Host.Changes, func(c v1alpha1.Change) bool {
			return !slices.Contains(changes, string(c.Source)) && !slices.Contains(changes, c.Name)
		})
	})
}

// statusLineHas waits until the host's status line contains a text.
func (s *scene) statusLineHas(h *simhost.Host, text string) {
	s.T.Helper()
	s.Must(h.WaitNotify(s.soon(), fmt.Sprintf("saying %q", text), func(n simhost.Notify) bool { return strings.Contains(n.Status, text) }))
}

// ended waits until the host has come to the end of so many turns, and is idle and as it was: schedulable, with nothing of
// ours but the record of the last one. It checks what all of them were like, as "Done: draining rebooting uncordoning": the
// result, the reason if there is one, the states.
func (s *scene) ended(h *simhost.Host, want ...string) *turn.Node {
	s.T.Helper()
	s.over(h, len(want))
	n := s.until(h, "to be idle, Ready and schedulable", func(n *turn.Node) bool {
		return n.State == v1alpha1.StateIdle && n.BootID == h.BootID() && n.Ready && n.HostReported()
	})
	s.Sync()
	if turns := s.turns(h); !slices.Equal(turns, want) {
		s.T.Errorf("the turns of %s were\n\t%s\nexpected\n\t%s", h.Name(), strings.Join(turns, "\n\t"), strings.Join(want, "\n\t"))
	}
	if n.Unschedulable || n.Mark || n.Turn != "" || n.Grant != nil || len(n.Hooks) > 0 {
		s.T.Errorf("%s is idle: unschedulable %t, mark %t, turn %q, grant %t, hooks %v", h.Name(), n.Unschedulable, n.Mark, n.Turn, n.Grant != nil, n.Hooks)
	}
	return n
}

// over waits until so many of the host's turns have ended.
func (s *scene) over(h *simhost.Host, count int) {
	s.T.Helper()
	s.Eventually(fmt.Sprintf("%d turns of %s to end", count, h.Name()), func(context.Context) (bool, error) {
		turns := s.turns(h)
		return len(turns) >= count, fmt.Errorf("they were %q", turns)
	})
}

// turns are the host's turns that have ended, by the referee's stream, which misses nothing.
func (s *scene) turns(h *simhost.Host) []string {
	var all, states []string
	word := "Done"
	for _, text := range s.linesOf(h.Name()) {
		from, rest, found := strings.Cut(text, " -> ")
		if !found {
			continue
		}
		fields := strings.Fields(rest) // the state, "turn", its id and, once it is backed out, result and reason
		if len(fields) >= 5 {
			word = fields[3] + " " + fields[4]
		}
		switch {
		case fields[0] != string(v1alpha1.StateIdle):
			states = append(states, fields[0])
		case from != v1alpha1.StateAbsent.String() && len(states) > 0:
			all = append(all, word+": "+strings.Join(states, " "))
			states, word = nil, "Done"
		}
	}
	return all
}

// evictions is how many pods were evicted from the host's node so far.
func (s *scene) evictions(h *simhost.Host) (n int) {
	s.T.Helper()
	s.Sync()
	for _, text := range s.linesOf(h.Name()) {
		if strings.HasPrefix(text, "pod ") && strings.HasSuffix(text, " evicted") {
			n++
		}
	}
	return n
}

// did checks how often the host was rebooted, and what its systemd was asked for.
func (s *scene) did(h *simhost.Host, reboots int, jobs ...string) {
	s.T.Helper()
	if got := h.Reboots(); got != reboots {
		s.T.Errorf("%s was rebooted %d times, expected %d", h.Name(), got, reboots)
	}
	if got := h.Units().Jobs(); !slices.Equal(got, jobs) {
		s.T.Errorf("systemd on %s was asked for %q, expected %q", h.Name(), got, jobs)
	}
}

// stage stages the new version.
func (s *scene) stage(h *simhost.Host) {
	s.T.Helper()
	if s.Referee != nil {
		s.Referee.WantMade(h.Name())
	}
	s.Must(h.StageUpdate(newVersion))
}

// confirm is the word of a hook's author for the turn that the node is in.
func (s *scene) confirm(h *simhost.Host, hook string) {
	s.T.Helper()
	n := s.until(h, "to be in a turn", func(n *turn.Node) bool { return n.Turn != "" })
	body := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.HookAnnotation(hook), n.Turn)
	_, err := cp.Client().CoreV1().Nodes().Patch(s.soon(), h.Name(), types.MergePatchType, body, metav1.PatchOptions{FieldManager: "hook-" + hook})
	s.Must(err)
}

// lockkeeper runs a command as an admin, and returns what it says of both kinds.
func (s *scene) lockkeeper(args ...string) (string, error) {
	s.T.Helper()
	admin, err := cp.Kubeconfig("testbed:admin", "system:masters")
	s.Must(err)
	cmd := exec.CommandContext(s.soon(), binary, args...)
	cmd.Env = []string{"KUBECONFIG=" + admin, "HOME=" + s.T.TempDir()}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// statusShows waits until `lockkeeper status NODE` has all of the words.
func (s *scene) statusShows(h *simhost.Host, words ...string) {
	s.T.Helper()
	s.Eventually(fmt.Sprintf("lockkeeper status %s to tell %q", h.Name(), words), func(context.Context) (bool, error) {
		out, err := s.lockkeeper("status", h.Name())
		return containsAll(out, words), fmt.Errorf("it tells (%v)\n%s", err, out)
	})
}

// work puts one pod on the host's node and returns when it runs. Of a budget it may be evicted, or may not.
func (s *scene) work(h *simhost.Host, budget int32) (namespace string) {
	s.T.Helper()
	namespace = h.Name()
	max := intstr.FromInt32(budget)
	s.Must(cp.CreateWorkload(s.soon(), controlplane.Workload{
		Namespace: namespace, Name: "work", Replicas: 1, MaxUnavailable: &max,
		NodeSelector: map[string]string{corev1.LabelHostname: h.Name()},
	}))
	s.Must(cp.WaitWorkload(s.soon(), namespace, "work"))
	return namespace
}

// block has the host's node carry a pod that no one may evict until release.
func (s *scene) block(h *simhost.Host) (release func()) {
	s.T.Helper()
	namespace := s.work(h, 0)
	return func() {
		s.T.Helper()
		_, err := cp.Client().PolicyV1().PodDisruptionBudgets(namespace).Patch(s.soon(), "work", types.MergePatchType,
			[]byte(`{"spec":{"maxUnavailable":1}}`), metav1.PatchOptions{})
		s.Must(err)
	}
}
