package install

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// fluoHooks returns the two versions of the hook in docs/from-fluo.md: FLUO's and lockkeeper's.
func fluoHooks(t *testing.T) (fluo, ours string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/from-fluo.md")
	must(t, err)
	var blocks []string
	for _, b := range strings.Split(string(text), "```yaml\n")[1:] {
		b, _, _ = strings.Cut(b, "```")
		blocks = append(blocks, b)
	}
	if len(blocks) != 2 || !strings.Contains(blocks[0], "before-reboot: \"true\"") || !strings.Contains(blocks[1], v1alpha1.LabelState+": before-drain") {
		t.Fatalf("the page has %d blocks of YAML, expected FLUO's and lockkeeper's", len(blocks))
	}
	return blocks[0], blocks[1]
}

// rest is what the page says both versions have besides.
const rest = `apiVersion: v1
kind: Namespace
metadata: {name: batch-hook}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: batch, namespace: batch-hook}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: batch-hook}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: batch-hook}
subjects: [{kind: ServiceAccount, name: batch, namespace: batch-hook}]
`

// TestFLUOHookDocument runs lockkeeper's version of the hook in docs/from-fluo.md: its pod runs only on the node that is in the stage,
// and its script, with the pod's token, confirms the turn when the work is done, and no other turn.
func TestFLUOHookDocument(t *testing.T) {
	t.Parallel()
	const hook, here, there = "batch", "fluo-a", "fluo-b"
	must(t, examplePlane().ApplyLockkeeper(exampleSoon(t)))
	fluo, ours := fluoHooks(t)
	dir := t.TempDir()
	for name, text := range map[string]string{"rest.yaml": rest, "fluo.yaml": fluo, "ours.yaml": ours} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	for _, args := range [][]string{
		{"apply", "-f", filepath.Join(dir, "rest.yaml")},
		{"apply", "--dry-run=server", "--validate=strict", "-f", filepath.Join(dir, "fluo.yaml")},
		{"apply", "--validate=strict", "-f", filepath.Join(dir, "ours.yaml")},
	} {
		if out, err := kubectl(t, admin(t), args...); err != nil {
			t.Fatalf("kubectl %q: %v\n%s", args, err, out)
		}
	}
	nodes(t, here, there)
	e := &example{name: hook, namespace: "batch-hook", home: t.TempDir()}
	var err error
	e.set, err = examplePlane().Client().AppsV1().DaemonSets(e.namespace).Get(exampleSoon(t), hook, metav1.GetOptions{})
	must(t, err)
	c := e.container()
	if !slices.Equal(c.Command, []string{"/bin/sh", "-euc"}) || len(c.Args) != 1 {
		t.Fatalf("the container runs %q %q", c.Command, c.Args)
	}
	e.script = filepath.Join(dir, "hook.sh")
	must(t, os.WriteFile(e.script, []byte("set -eu\n"+c.Args[0]), 0o644))
	path := exampleTools(t, "kubectl", "sleep")
	lock := filepath.Join(dir, "lock")
	run := func(turn string) *process {
		t.Helper()
		must(t, os.WriteFile(lock, nil, 0o644))
		enter(t, here, v1alpha1.StateBeforeDrain, turn)
		env := slices.DeleteFunc(e.env(t, here, e.token(t, e.onlyOn(t, here))), func(v string) bool { return strings.HasPrefix(v, "LOCK=") })
		return start(t, e.script, path, append(env, "LOCK="+lock))
	}

	first := newTurn()
	run(first).says("turn " + first)
	if got := said(t, here, hook); got != "" {
		t.Errorf("it has confirmed %q although its work is not done", got)
	}
	must(t, os.Remove(lock))
	confirmed(t, here, hook, first)
	enter(t, here, v1alpha1.StateDraining, first)
	e.onlyOn(t, "")

	// The turn ends while it works, and another one begins: it confirms neither.
	second, third := newTurn(), newTurn()
	p := run(second)
	p.says("turn " + second)
	enter(t, here, v1alpha1.StateIdle, "")
	enter(t, here, v1alpha1.StateBeforeDrain, third)
	must(t, os.Remove(lock))
	p.ends(1)
	if got := said(t, here, hook); got != "" {
		t.Errorf("it has confirmed %q, and its turn was %q", got, second)
	}
}
