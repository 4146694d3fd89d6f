package identitytest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestSecurityDocument runs the commands of docs/security.md as they stand there, against what stands behind each.
func TestSecurityDocument(t *testing.T) {
	fixture(t)
	text, err := os.ReadFile("../../docs/security.md")
	must(t, err)
	admin, err := cp.Kubeconfig("testbed:admin", "system:masters")
	must(t, err)
	env := append(os.Environ(), "KUBECONFIG="+admin, "NODE=id-a", "OTHER=id-b", "HOME="+t.TempDir(),
		"PATH="+filepath.Dir(cp.Binaries().Kubectl)+":"+os.Getenv("PATH"))
	block, ran := false, 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "```") {
			block = line == "```sh"
			continue
		}
		if !block || line == "" {
			continue
		}
		command, want, ok := strings.Cut(line, " # ")
		if !ok {
			t.Errorf("nothing stands behind %q", line)
			continue
		}
		ran++
		cmd := exec.CommandContext(within(t), "sh", "-c", command)
		cmd.Env = env
		out, err := cmd.CombinedOutput()
		said := strings.TrimSpace(string(out))
		words, refused := strings.CutPrefix(want, "refused: ")
		right := false
		switch {
		case want == "ok":
			right = err == nil
		case refused:
			right = err != nil && strings.Contains(said, words)
		case want == "yes", want == "no":
			last := said[strings.LastIndex(said, "\n")+1:] // warnings come first
			right = (err == nil) == (want == "yes") && (last == want || strings.HasPrefix(last, want+" - "))
		}
		if !right {
			t.Errorf("%s\n\tsaid %q (%v), the document says %q", command, said, err, want)
		}
	}
	if ran < 19 {
		t.Errorf("%d commands were run, expected 19", ran)
	}
}
