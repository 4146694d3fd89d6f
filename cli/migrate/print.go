package migrate

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// YAML returns the policy for kubectl apply, without the fields that have their defaults.
func (p *Policy) YAML() (string, error) {
	spec, err := object(&p.Object.Spec)
	if err != nil {
		return "", err
	}
	defaults, err := object(new(v1alpha1.DefaultPolicySpec()))
	if err != nil {
		return "", err
	}
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": p.Object.APIVersion, "kind": p.Object.Kind,
		"metadata": map[string]any{"name": p.Object.Name}, "spec": without(spec, defaults),
	})
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# From %s.\n", oneLine(p.Source))
	for _, why := range p.PausedBecause {
		fmt.Fprintf(&b, "# PAUSED, decide and remove `paused`: %s\n", oneLine(why))
	}
	b.Write(text)
	return b.String(), nil
}

// oneLine returns text with spaces in place of control characters and of what ends a line.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, s)
}

func object(spec *v1alpha1.DisruptionPolicySpec) (m map[string]any, err error) {
	text, err := json.Marshal(spec)
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	return m, err
}

// without returns m without the fields that are equal in defaults.
func without(m, defaults map[string]any) map[string]any {
	out := map[string]any{}
	for key, value := range m {
		inner, isMap := value.(map[string]any)
		other, otherMap := defaults[key].(map[string]any)
		switch {
		case reflect.DeepEqual(value, defaults[key]):
		case isMap && otherMap:
			out[key] = without(inner, other)
		default:
			out[key] = value
		}
	}
	return out
}

// width is the width of the report in columns. Policies, files and commands are not wrapped.
const width = 80

// item writes text in lines of at most [width] columns. The first line begins with head, the
// others are indented like it. command follows on a line of its own.
func item(b *strings.Builder, head, text, command string) {
	indent := strings.Repeat(" ", len(head))
	line := head
	for i, word := range strings.Fields(oneLine(text)) {
		switch {
		case i == 0:
			line += word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width:
			b.WriteString(line + "\n")
			line = indent + word
		default:
			line += " " + word
		}
	}
	b.WriteString(line + "\n")
	if command != "" {
		b.WriteString(indent + "  " + oneLine(command) + "\n")
	}
}

// Text returns the whole report: the policies, the host's file, what became of each setting,
// what is on the Nodes, and the steps.
func (r *Result) Text() (string, error) {
	var b strings.Builder
	section := func(title string) { fmt.Fprintf(&b, "\n== %s ==\n", title) }
	item(&b, "", fmt.Sprintf("From %s to lockkeeper. Nothing was changed.", r.Tool), "")
	if len(r.Policies) == 0 {
		item(&b, "", fmt.Sprintf("No workload of %s was found, so there are no settings to carry over.", r.Tool), "")
	}
	for i := range r.Policies {
		text, err := r.Policies[i].YAML()
		if err != nil {
			return "", err
		}
		section("DisruptionPolicy " + r.Policies[i].Object.Name)
		b.WriteString(text)
	}
	if r.HostFile != "" {
		section("/etc/lockkeeper/lockkeeper.toml on each host")
		b.WriteString(r.HostFile)
	}
	for _, outcome := range []Outcome{Decide, NotCarried, Carried} {
		list(&b, strings.ToUpper(string(outcome[:1]))+string(outcome[1:]), r.notes(outcome))
	}
	list(&b, string(r.Tool)+" is active: --apply refuses", r.Active)
	var changes []Todo
	for i := range r.Changes {
		changes = append(changes, Todo{r.Changes[i].String(), ""})
	}
	list(&b, "What --apply changes", changes)
	list(&b, "Left to you", r.Left)
	section("Steps")
	for i, step := range r.steps() {
		item(&b, fmt.Sprintf("%d. ", i+1), step.Text, step.Command)
	}
	return b.String(), nil
}

// notes returns the notes with this outcome. Settings with the same text are in one item.
func (r *Result) notes(outcome Outcome) (items []Todo) {
	var texts []string
	settings := map[string][]string{}
	for _, n := range r.Notes {
		if n.Outcome != outcome {
			continue
		}
		if !slices.Contains(texts, n.Text) {
			texts = append(texts, n.Text)
		}
		settings[n.Text] = append(settings[n.Text], n.Setting)
	}
	for _, text := range texts {
		items = append(items, Todo{strings.Join(settings[text], ", ") + ": " + text, ""})
	}
	return items
}

// maxLines bounds the items of a list.
const maxLines = 100

// list writes a section, unless it is empty.
func list(b *strings.Builder, title string, items []Todo) {
	if len(items) == 0 {
		return
	}
	fmt.Fprintf(b, "\n== %s ==\n", title)
	for _, t := range items[:min(len(items), maxLines)] {
		item(b, "- ", t.Text, t.Command)
	}
	if more := len(items) - maxLines; more > 0 {
		fmt.Fprintf(b, "- and %d more\n", more)
	}
}

// ChangedNodes returns the names of the nodes that `--apply` changes.
func (r *Result) ChangedNodes() (names []string) {
	for i := range r.Changes {
		names = append(names, r.Changes[i].Node)
	}
	return names
}

// steps returns the steps of the change, in order.
func (r *Result) steps() []Todo {
	page := "docs/from-" + string(r.Tool) + ".md"
	command := "lockkeeper migrate --from " + string(r.Tool)
	manifests := Todo{"Install the cluster's part:", "lockkeeper manifests | kubectl apply -f -"}
	hosts := Todo{"Install the package on each host (docs/install.md). Copy lockkeeper.toml to /etc/lockkeeper/lockkeeper.toml there, and restart lockkeeper. It begins to roll nodes when a coordinator leads.", ""}
	back := Todo{"To go back, see " + page + ".", ""}
	if r.Tool == Locksmith {
		return []Todo{
			manifests,
			{"Read the policy, and apply it once for all hosts:", command + " -o yaml | kubectl apply -f -"},
			{"On each host, stop locksmith, so that two reboot managers never act at once:", "systemctl mask --now locksmithd"},
			{"On each host, write its file:", "mkdir -p /etc/lockkeeper && " + command + " -o toml >/etc/lockkeeper/lockkeeper.toml"},
			{"Install the package on each host (docs/install.md). lockkeeper begins to roll nodes when a coordinator leads.", ""},
			back,
		}
	}
	stop := Todo{"Wait until no node holds kured's lock. Then stop kured: give its DaemonSet a nodeSelector that matches no node, or delete it.", ""}
	if r.Tool == FLUO {
		stop.Text = "Wait until no node has reboot-ok=true. Then stop FLUO: scale its Deployment to 0 and give its DaemonSet a nodeSelector that matches no node, or delete both."
	}
	return []Todo{
		{"Save the policies and the host's file while the workloads exist, and read them:", command + " -o yaml >policies.yaml && " + command + " -o toml >lockkeeper.toml"},
		manifests, stop,
		{"Carry over paused nodes and remove what is left on the Nodes:", command + " --apply"},
		{"Apply the policies:", "kubectl apply -f policies.yaml"},
		hosts,
		{"When you are sure that you will not go back, delete what is left to you.", ""},
		back,
	}
}
