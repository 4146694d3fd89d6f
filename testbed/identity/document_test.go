package identity

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A command of a document, with what it must answer: "ok", "yes", "no", or "refused: " and a part of the message.
type command struct{ text, want string }

// right reports whether the answer is the expected one.
func (c *command) right(out string, err error) bool {
	if text, refused := strings.CutPrefix(c.want, "refused: "); refused {
		return err != nil && strings.Contains(out, text)
	}
	last := out[strings.LastIndex(out, "\n")+1:] // warnings come first
	return (err == nil) == (c.want != "no") && (c.want == "ok" || last == c.want || strings.HasPrefix(last, c.want+" - "))
}

// section is the part of docs/security.md under a heading, "" for all of it.
func section(t *testing.T, heading string) string {
	t.Helper()
	data, err := os.ReadFile("../../docs/security.md")
	must(t, err)
	text := string(data)
	if heading == "" {
		return text
	}
	_, text, ok := strings.Cut(text, "\n"+heading+"\n")
	if !ok {
		t.Fatalf("docs/security.md has no %q", heading)
	}
	level, _, _ := strings.Cut(heading, " ")
	for _, end := range []string{"\n" + level + " ", "\n" + level[1:] + " "} {
		text, _, _ = strings.Cut(text, end)
	}
	return text
}

// commands are those of the shell blocks in a text, each with what stands behind it. A here-document belongs to its command.
func commands(t *testing.T, text string) []command {
	t.Helper()
	var all []command
	block, until := false, ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case until != "":
			all[len(all)-1].text += "\n" + line
			if line == until {
				until = ""
			}
			continue
		case strings.HasPrefix(line, "```"):
			block = line == "```sh"
			continue
		case !block || strings.TrimSpace(line) == "":
			continue
		}
		text, want, ok := strings.Cut(line, " # ")
		if !ok {
			t.Errorf("docs/security.md does not say what %q answers", line)
			continue
		}
		all = append(all, command{text, want})
		if _, word, ok := strings.Cut(text, "<<"); ok {
			until = word
		}
	}
	return all
}

// attacks are the rows of the table of attacks: a request, the answer, and the test that goes further.
func attacks(t *testing.T, text string) (all []command, tests []string) {
	t.Helper()
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.ReplaceAll(strings.TrimSpace(line), `\|`, "\x00"), "|")
		if len(cells) != 6 || !strings.HasPrefix(strings.TrimSpace(cells[2]), "`") {
			continue
		}
		for i := range cells {
			cells[i] = strings.Trim(strings.TrimSpace(strings.ReplaceAll(cells[i], "\x00", "|")), "`")
		}
		all = append(all, command{cells[2], "refused: " + cells[3]})
		tests = append(tests, cells[4])
	}
	return all, tests
}

// runAll runs commands as they stand there, with an administrator's credential and lockkeeper and kubectl in the path. What the API
// server learned a moment ago it may answer by a moment later, so an answer that is not right yet is asked for again.
func runAll(t *testing.T, all []command, env []string) {
	t.Helper()
	admin, err := cp.Kubeconfig("testbed:admin", "system:masters")
	must(t, err)
	dir := t.TempDir()
	must(t, os.Symlink(binary, filepath.Join(dir, "lockkeeper")))
	env = append(append(os.Environ(), "KUBECONFIG="+admin, "HOME="+t.TempDir(),
		"PATH="+dir+":"+filepath.Dir(cp.Binaries().Kubectl)+":"+os.Getenv("PATH")), env...)
	for _, c := range all {
		for end := time.Now().Add(soon); ; time.Sleep(200 * time.Millisecond) {
			cmd := exec.CommandContext(within(t), "sh", "-c", c.text)
			cmd.Env, cmd.Dir = env, dir
			out, err := cmd.CombinedOutput()
			said := strings.TrimSpace(string(out))
			if c.right(said, err) {
				break
			}
			if c.want == "ok" || time.Now().After(end) {
				t.Errorf("%s\n\tanswers %q (%v), the document says %q", c.text, said, err, c.want)
				break
			}
		}
	}
}

// runSection runs the commands under a heading of docs/security.md, and returns how many there are.
func runSection(t *testing.T, heading string, env []string) int {
	t.Helper()
	all := commands(t, section(t, heading))
	runAll(t, all, env)
	return len(all)
}

// identities are the variables that docs/security.md sets for its attacks.
const identities = "## Attacks, and what refuses them"

// TestSecurityDocument sends every attack of docs/security.md, and runs the commands with which a reader sees for themselves, against
// the answers that the page gives. TestStolenWorker and TestStolenCoordinator run its other commands.
func TestSecurityDocument(t *testing.T) {
	fixture(t)
	person(t, "agent", "", "nodes/status", "get", "patch")
	person(t, "pat", "", "nodes", "get", "patch")
	nodes := []string{"NODE=id-a", "OTHER=id-b", "PAUSED=id-c"}
	text := section(t, identities)
	var set strings.Builder
	for _, c := range commands(t, text) {
		set.WriteString(c.text + "\n")
	}
	all, tests := attacks(t, text)
	if len(all) < 30 {
		t.Errorf("the table has %d attacks", len(all))
	}
	for i := range all {
		if tests[i] == "" {
			t.Errorf("no test goes further than %s", all[i].text)
		}
		all[i].text = set.String() + all[i].text
	}
	runAll(t, all, nodes)
	if ran := runSection(t, "## See for yourself", nodes); ran < 14 {
		t.Errorf("%d commands were run", ran)
	}
	t.Logf("%d attacks", len(all))
}
