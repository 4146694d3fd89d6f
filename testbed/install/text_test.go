package install

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// unpacked is the deb's files in a directory.
func unpacked(t *testing.T) string {
	t.Helper()
	tree := t.TempDir()
	mustRun(t, "dpkg-deb", "-x", artefact(dist(t), debForm, v1), tree)
	return tree
}

// TestInstalledPages follows each relative link of the documents that are installed.
func TestInstalledPages(t *testing.T) {
	tree := filepath.Join(unpacked(t), "usr/share/doc/lockkeeper")
	links := 0
	must(t, filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range regexp.MustCompile(`\]\(([^)#: ]+)(#[^)]*)?\)`).FindAllStringSubmatch(string(text), -1) {
			links++
			if _, missing := os.Stat(filepath.Join(filepath.Dir(path), m[1])); missing != nil {
				t.Errorf("%s links to %s, which is not installed", strings.TrimPrefix(path, tree+"/"), m[1])
			}
		}
		return err
	}))
	if links < 100 {
		t.Errorf("only %d links found", links)
	}
}

// TestNoMarkdownIsInstalled looks for Markdown where nothing renders it. The journal's catalog quotes commands like this: `command`.
func TestNoMarkdownIsInstalled(t *testing.T) {
	tree := unpacked(t)
	for name, pattern := range map[string]string{
		"etc/lockkeeper/lockkeeper.toml":             "\\]\\(|`|\\*\\*",
		"usr/share/man/man5/lockkeeper.toml.5.gz":    "\\]\\(|`|\\*\\*",
		"usr/share/man/man8/lockkeeper.8.gz":         "\\]\\(|`|\\*\\*",
		"usr/lib/systemd/catalog/lockkeeper.catalog": "\\]\\(|\\*\\*",
	} {
		out, err := run(t, "zgrep", "-nE", pattern, filepath.Join(tree, name))
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 { // 1: nothing found
			t.Errorf("%s has Markdown, or cannot be read: %v\n%s", name, err, out)
		}
	}
}

// TestUnitsNameAPage requires documentation that a host without manual pages can show.
func TestUnitsNameAPage(t *testing.T) {
	found, err := filepath.Glob(filepath.Join(unpacked(t), "usr/lib/systemd/system/lockkeeper*"))
	if err != nil || len(found) != 4 {
		t.Fatalf("units %q: %v", found, err)
	}
	for _, unit := range found {
		text, err := os.ReadFile(unit)
		must(t, err)
		if !regexp.MustCompile(`(?m)^Documentation=https://\S+ man:lockkeeper\(8\)`).Match(text) {
			t.Errorf("%s has no address in Documentation=", filepath.Base(unit))
		}
	}
}

// TestManualPages has two programs read the pages, and looks for a word that is rendered.
func TestManualPages(t *testing.T) {
	tree := unpacked(t)
	for page, word := range map[string]string{"man8/lockkeeper.8.gz": "lockkeeper check-config [FLAG", "man5/lockkeeper.toml.5.gz": "poll_interval"} {
		path := filepath.Join(tree, "usr/share/man", page)
		if out, err := run(t, "mandoc", "-T", "lint", "-W", "warning", path); err != nil || out != "" {
			t.Errorf("mandoc: %v\n%s", err, out)
		}
		out, err := run(t, "sh", "-ec", `MANWIDTH=80 man --warnings --local-file "$1" 2>&1 >/dev/null`, "sh", path)
		if err != nil || out != "" {
			t.Errorf("man %s: %v\n%s", page, err, out)
		}
		if out := mustRun(t, "man", "--local-file", path); !strings.Contains(out, word) {
			t.Errorf("%s does not speak of %q:\n%s", page, word, out)
		}
	}
	broken := filepath.Join(t.TempDir(), "broken.8")
	if err := os.WriteFile(broken, []byte(".TH BROKEN 8 2026-11-21\n.SH NAME\nbroken \\- it is\n.XX\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, _ := run(t, "mandoc", "-T", "lint", "-W", "warning", broken); out == "" {
		t.Error("mandoc finds no mistake")
	}
}

// asked is what is typed before a press of the tab key, and some of what the shell has to offer then.
var asked = []struct {
	typed []string
	offer string
	never string
}{
	{[]string{"st"}, "status", "retry"},
	{[]string{"status", "--"}, "--all --kubeconfig --output", "--effective"},
	{[]string{"status", "--output", ""}, "text table wide json yaml name", "xml"},
	{[]string{"status", "-o", "j"}, "json", "text"},
	{[]string{"help", "re"}, "retry", "status"},
	{[]string{"check-config", "--e"}, "--effective", "--all"},
	{[]string{"status", "--kubeconfig", "/et"}, "etc", "status"},
}

func TestCompletions(t *testing.T) {
	tree := unpacked(t)
	share := filepath.Join(tree, "usr/share")
	t.Setenv("PATH", filepath.Join(tree, "usr/bin")+":"+os.Getenv("PATH")) // the shells ask lockkeeper itself
	for shell, ask := range map[string]func(t *testing.T, typed []string) string{
		"bash": func(t *testing.T, typed []string) string {
			return mustRun(t, "bash", append([]string{"--norc", "-uc", `source "$1"; shift
				COMP_WORDS=(lockkeeper "$@") COMP_CWORD=$#; _lockkeeper; printf '%s\n' "${COMPREPLY[@]}"`, "bash",
				filepath.Join(share, "bash-completion/completions/lockkeeper")}, typed...)...)
		},
		"fish": func(t *testing.T, typed []string) string {
			return mustRun(t, "fish", "--no-config", "-c", `source $argv[1]; complete -C $argv[2] | string replace -r '\t.*' ''; true`,
				filepath.Join(share, "fish/vendor_completions.d/lockkeeper.fish"), "lockkeeper "+strings.Join(typed, " "))
		},
		// zsh completes on a terminal only, so it is given one of its own, and shows all with ^D.
		"zsh": func(t *testing.T, typed []string) string {
			return mustRun(t, "zsh", "-fc", zshAsks, "zsh", filepath.Join(share, "zsh/vendor-completions"), "lockkeeper "+strings.Join(typed, " "))
		},
	} {
		t.Run(shell, func(t *testing.T) {
			for _, a := range asked {
				got := ask(t, a.typed)
				for word := range strings.FieldsSeq(a.offer) {
					if !strings.Contains(got, word) {
						t.Errorf("lockkeeper %s: no %s among\n%s", strings.Join(a.typed, " "), word, got)
					}
				}
				if strings.Contains(got, a.never) {
					t.Errorf("lockkeeper %s: %s among\n%s", strings.Join(a.typed, " "), a.never, got)
				}
			}
		})
	}
}

// zshAsks prints what zsh would add, each on a line: compadd is where every completion ends.
const zshAsks = `
zmodload zsh/zpty
zpty inner zsh -f -i
zpty -w inner "PS1= PROMPT_EOL_MARK=; stty -echo; fpath=(${(q)1} \$fpath); autoload -Uz compinit && compinit -u -D"
zpty -w inner 'compadd() {
	if [[ ${@[(i)-[OAD]]} -le $# ]]; then builtin compadd "$@"; return; fi
	local -a offered; builtin compadd -O offered "$@"
	(( $#offered )) && print -rl -- "offer "$^offered
	builtin compadd "$@"
}
done_() { print offers-end; exit }
zle -N done_
bindkey "^I" complete-word "^X" done_
print ready-"now"'
until [[ $line == *ready-now* ]]; do zpty -r inner line || exit 1; done
zpty -wn inner "$2"$'\t\x18'
while zpty -r inner line; do
	line=${line//$'\r'/}
	[[ $line == *offers-end* ]] && exit 0
	[[ $line == *"offer "* ]] && print -r -- "${line#*offer }"
done
exit 1
`
