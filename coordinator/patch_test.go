package coordinator

import (
	"encoding/json"
	"fmt"
	"regexp"
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// text lists what a patch sets and removes, with short keys, in a stable order.
func text(p kube.Patch) string {
	b, err := json.Marshal([]map[string]*string{p.Labels, p.Annotations})
	if err != nil {
		panic(err)
	}
	now := regexp.MustCompile(`expired":"20[^"]*Z"`).ReplaceAllString(string(b), `expired":"now"`)
	return regexp.MustCompile(`(hook\.)?lockkeeper\.dev/`).ReplaceAllString(now, "$1")
}

func TestPatchOf(t *testing.T) {
	n := &turn.Node{Name: "n1", UID: "u", ResourceVersion: "7"}
	grant := &v1alpha1.Grant{Turn: "t1", Epoch: "e"}
	record, _ := json.Marshal(v1alpha1.FormatRecord(grant))
	for name, c := range map[string]struct {
		state v1alpha1.State
		v     rollout.Verdict
		want  string
	}{
		"a step on": {v1alpha1.StateDraining,
			rollout.Verdict{Move: &rollout.Move{From: v1alpha1.StateDraining, To: v1alpha1.StateRebooting, Grant: grant, Remove: []string{v1alpha1.HookAnnotation("db")}}},
			fmt.Sprintf(`[{"held":null,"state":"rebooting"},{"hook.db":null,"grant":%s,"turn":"t1"}]`, record)},
		"the end of a turn": {v1alpha1.StateUncordoning,
			rollout.Verdict{Move: &rollout.Move{From: v1alpha1.StateUncordoning, To: v1alpha1.StateIdle, Last: &v1alpha1.Last{Turn: "t1", Result: "Done"}}},
			`[{"held":null,"state":"idle"},{"grant":null,"last":"{\"turn\":\"t1\",\"result\":\"Done\",\"end\":\"0001-01-01T00:00:00Z\"}","turn":null}]`},
		"a request that was carried out": {v1alpha1.StateUncordoning,
			rollout.Verdict{Move: &rollout.Move{From: v1alpha1.StateUncordoning, To: v1alpha1.StateIdle, Remove: []string{v1alpha1.AnnotationRequest, v1alpha1.AnnotationRequestNow}}},
			`[{"held":null,"state":"idle"},{"grant":null,"request":null,"request-now":null,"turn":null}]`},
		"a record alone": {v1alpha1.StateDraining,
			rollout.Verdict{Held: v1alpha1.ReasonStopped, Move: &rollout.Move{From: v1alpha1.StateDraining, To: v1alpha1.StateDraining, Grant: grant}},
			fmt.Sprintf(`[{"held":"Stopped"},{"grant":%s,"turn":"t1"}]`, record)},
		"an intent whose time has come": {v1alpha1.StatePaused,
			rollout.Verdict{Move: &rollout.Move{From: v1alpha1.StatePaused, To: v1alpha1.StatePaused, Keep: true, Remove: []string{v1alpha1.AnnotationPaused}, Expired: true}},
			`[{"held":null},{"expired":"now","paused":null}]`},
		"what a node runs": {v1alpha1.StateIdle,
			rollout.Verdict{Held: v1alpha1.ReasonWindow, Move: &rollout.Move{From: v1alpha1.StateIdle, To: v1alpha1.StateIdle, Keep: true, Runs: &v1alpha1.Runs{OSVersion: "4.2", BootID: "b1"}}},
			`[{"held":"Window"},{"runs":"{\"osVersion\":\"4.2\",\"bootID\":\"b1\",\"since\":\"0001-01-01T00:00:00Z\"}"}]`},
		"let go": {v1alpha1.StateIdle,
			rollout.Verdict{Held: v1alpha1.ReasonDetached, Move: &rollout.Move{From: v1alpha1.StateIdle, To: v1alpha1.StateAbsent, LetGo: true, Remove: []string{v1alpha1.AnnotationCordon}}},
			`[{"held":"Detached","state":null,"wants":null},{"ack":null,"cordon":null,"expired":null,"grant":null,"host":null,"last":null,"runs":null,"turn":null}]`},
		"a state that is none": {"sideways",
			rollout.Verdict{Move: &rollout.Move{From: "sideways", To: "sideways", Keep: true}},
			`[{"held":null,"state":"sideways"},{}]`},
	} {
		n.State = c.state
		p := patchOf(n, &c.v)
		if got := text(p); got != c.want {
			t.Errorf("%s:\n%s, want\n%s", name, got, c.want)
		}
		if p.Node != "n1" || p.ResourceVersion != "7" || p.Manager != "lockkeeper-coordinator" || p.Unschedulable != nil {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

// TestNewTurnsHaveNewNames checks that each turn gets its own id, the same in both annotations, and that the verdict
// does not change.
func TestNewTurnsHaveNewNames(t *testing.T) {
	n := &turn.Node{Name: "n1", ResourceVersion: "7", Keys: v1alpha1.Keys{State: v1alpha1.StateIdle}}
	v := &rollout.Verdict{Move: &rollout.Move{From: v1alpha1.StateIdle, To: v1alpha1.StateDraining, NewTurn: true,
		Grant: &v1alpha1.Grant{Epoch: "e", NodeUID: "u", Wants: v1alpha1.WantsReboot}}}
	seen := map[string]bool{}
	for range 100 {
		p := patchOf(n, v)
		id := *p.Annotations[v1alpha1.AnnotationTurn]
		g, err := v1alpha1.ParseGrant(*p.Annotations[v1alpha1.AnnotationGrant])
		if err != nil || g.Turn != id || !regexp.MustCompile(`^[a-z2-7]{16}$`).MatchString(id) || seen[id] {
			t.Fatalf("turn %q, grant %+v, %v", id, g, err)
		}
		seen[id] = true
	}
	if v.Move.Grant.Turn != "" {
		t.Errorf("the turn of the verdict's grant became %q", v.Move.Grant.Turn)
	}
}

// TestTermsHaveTheirOwnIdentity checks that no identity names two terms, and that users see which host leads.
func TestTermsHaveTheirOwnIdentity(t *testing.T) {
	form := regexp.MustCompile(`^n1_[a-z2-7]{12}$`)
	if a, b := newEpoch("n1"), newEpoch("n1"); a == b || !form.MatchString(a) {
		t.Errorf("%q and %q", a, b)
	}
}
