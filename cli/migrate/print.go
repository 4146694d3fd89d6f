package migrate

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
)

// YAML returns the policy for kubectl apply, without the fields that have their defaults.
func (p *Policy) YAML() (string, error) {
	spec, err := object(&p.Object.Spec)
	if err != nil {
		return "", err
	}
	defaults, err := object(new(policy.Defaults()))
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

// oneLine keeps text within its comment. Settings are quoted already.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == '\u2028' || r == '\u2029' {
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

// Text returns the whole report: the policies, the host's file, what became of each setting,
// what is on the Nodes, and the steps.
func (r *Result) Text() (string, error) {
	var b strings.Builder
	section := func(title string) { fmt.Fprintf(&b, "\n== %s ==\n", title) }
	fmt.Fprintf(&b, "From %s to lockkeeper. Nothing was changed.\n", r.Tool)
	if len(r.Policies) == 0 {
		fmt.Fprintf(&b, "No workload of %s was found, so that there are no settings to carry over.\n", r.Tool)
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
		of := slices.DeleteFunc(slices.Clone(r.Notes), func(n Note) bool { return n.Outcome != outcome })
		if len(of) == 0 {
			continue
		}
		section(strings.ToUpper(string(outcome[:1])) + string(outcome[1:]))
		for _, n := range of {
			fmt.Fprintf(&b, "- %s: %s\n", oneLine(n.Setting), oneLine(n.Text))
		}
	}
	list := func(title string, lines []string) {
		if len(lines) == 0 {
			return
		}
		section(title)
		for _, line := range lines[:min(len(lines), maxLines)] {
			fmt.Fprintf(&b, "- %s\n", oneLine(line))
		}
		if more := len(lines) - maxLines; more > 0 {
			fmt.Fprintf(&b, "- and %d more\n", more)
		}
	}
	list(string(r.Tool)+" is active, so that --apply refuses", r.Active)
	list("What --apply changes", r.ChangeLines())
	list("Left to you", r.Left)
	section("Steps")
	for i, step := range r.Steps() {
		fmt.Fprintf(&b, "%d. %s\n", i+1, step)
	}
	return b.String(), nil
}

// maxLines bounds the lines of a list about nodes.
const maxLines = 50

// ChangeLines says what `--apply` changes, one line for each Node.
func (r *Result) ChangeLines() (lines []string) {
	for i := range r.Changes {
		lines = append(lines, r.Changes[i].String())
	}
	return lines
}

// ChangedNodes returns the names of the nodes that `--apply` changes.
func (r *Result) ChangedNodes() (names []string) {
	for i := range r.Changes {
		names = append(names, r.Changes[i].Node)
	}
	return names
}

// Steps returns the steps of the change, in order.
func (r *Result) Steps() []string {
	command := "lockkeeper migrate --from " + string(r.Tool)
	manifests := "Install the cluster's part: lockkeeper manifests | kubectl apply -f -"
	policies := "Read the policies, and apply them: " + command + " -o yaml | kubectl apply -f -"
	hosts := "Install the package on each host, with this host file: " + command + " -o toml. lockkeeper starts to roll nodes as soon as a coordinator leads."
	if r.Tool == Locksmith {
		return []string{
			manifests, policies + " (once; they are the same for all hosts)",
			"On each host: stop locksmith, so that there are never two masters: systemctl mask --now locksmithd",
			hosts,
			"To go back: remove lockkeeper from the host (docs/install.md), then systemctl unmask locksmithd && systemctl start locksmithd",
		}
	}
	stop := map[Tool]string{
		FLUO:  "Wait until no node has reboot-ok=true, and stop FLUO: scale its Deployment to 0, and give its DaemonSet a nodeSelector that no node has, or delete both.",
		Kured: "Wait until no node holds kured's lock, and stop kured: give its DaemonSet a nodeSelector that no node has, or delete it.",
	}[r.Tool]
	return []string{
		"Save this report and the policies while the workloads exist: " + command + " -o yaml >policies.yaml",
		manifests, stop,
		"Carry over paused nodes, and remove what is left on the Nodes: " + command + " --apply",
		policies, hosts,
		"Delete what is listed under \"Left to you\", when you are sure that you will not go back.",
		"To go back: remove lockkeeper (docs/install.md), and start the workloads of the other tool again. It sets its own keys again.",
	}
}
