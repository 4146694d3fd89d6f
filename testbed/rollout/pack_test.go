package rollout

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const (
	pack    = "../../packaging/monitoring"
	manual  = "../../docs/monitoring.md"
	rules   = "lockkeeper.rules.yaml"
	scrapes = "scrape.yaml"
)

func readFile(t *testing.T, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// parse decodes YAML or JSON into the value that v points to.
func parse(t *testing.T, text string, v any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(text), v); err != nil {
		t.Fatal(err)
	}
}

// promtool runs promtool in a directory. If it fails, the test fails with its output.
func promtool(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "promtool", args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s (it needs Debian's package prometheus): %v\n%s", strings.Join(args, " "), err, out)
	}
}

// alert is one alerting rule.
type alert struct {
	Alert, Expr         string
	Labels, Annotations map[string]string
}

func alerts(t *testing.T) (all []alert) {
	t.Helper()
	var file struct{ Groups []struct{ Rules []alert } }
	parse(t, readFile(t, pack, rules), &file)
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) == 0 {
		t.Fatal("no alerts")
	}
	return all
}

// TestAlerts runs the unit tests of the alerts. Those tests must show for each alert that it fires and that it stays
// silent. Each alert has a severity and an action, and a section in the manual.
func TestAlerts(t *testing.T) {
	t.Parallel()
	promtool(t, pack, "check", "rules", rules)
	promtool(t, pack, "test", "rules", "lockkeeper.rules.test.yaml")

	fires, silent := map[string]bool{}, map[string]bool{}
	var file struct {
		Tests []struct {
			AlertRuleTest []struct {
				Alertname string           `json:"alertname"`
				ExpAlerts []map[string]any `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		}
	}
	parse(t, readFile(t, pack, "lockkeeper.rules.test.yaml"), &file)
	for _, test := range file.Tests {
		for _, c := range test.AlertRuleTest {
			fires[c.Alertname] = fires[c.Alertname] || len(c.ExpAlerts) > 0
			silent[c.Alertname] = silent[c.Alertname] || len(c.ExpAlerts) == 0
		}
	}
	var sections []string
	for _, m := range regexp.MustCompile(`(?m)^### (Lockkeeper\w+)$`).FindAllStringSubmatch(readFile(t, manual), -1) {
		sections = append(sections, m[1])
	}
	var names []string
	for _, a := range alerts(t) {
		names = append(names, a.Alert)
		if !fires[a.Alert] || !silent[a.Alert] {
			t.Errorf("%s: a test where it fires: %t, a test where it stays silent: %t", a.Alert, fires[a.Alert], silent[a.Alert])
		}
		if severity := a.Labels["severity"]; severity != "critical" && severity != "warning" {
			t.Errorf("%s: severity %q", a.Alert, severity)
		}
		if want := "docs/monitoring.md#" + strings.ToLower(a.Alert); a.Annotations["runbook"] != want {
			t.Errorf("%s: runbook %q, want %q", a.Alert, a.Annotations["runbook"], want)
		}
		for _, name := range []string{"summary", "description"} {
			if a.Annotations[name] == "" {
				t.Errorf("%s: no %s", a.Alert, name)
			}
		}
	}
	if !slices.Equal(names, sections) {
		t.Errorf("alerts %v\nsections in the manual %v", names, sections)
	}
}

// discovery matches the part of an example that discovers hosts through the API server. Debian's Prometheus is built
// without that discovery.
var discovery = regexp.MustCompile(`(?m)^  kubernetes_sd_configs:\n(?:  (?:-| ) .*\n)+`)

// discovered returns the example with targets, in the form of static_configs, in place of the discovery.
func discovered(t *testing.T, example, targets string) string {
	t.Helper()
	text := readFile(t, pack, example)
	if found := discovery.FindAllString(text, -1); len(found) != 1 || !strings.Contains(found[0], "\n  - role: node") {
		t.Fatalf("%s: expected one node discovery, got %q", example, found)
	}
	return discovery.ReplaceAllLiteralString(text, "  static_configs:\n"+targets)
}

// TestScrapeExamples checks that promtool accepts the examples.
func TestScrapeExamples(t *testing.T) {
	t.Parallel()
	for _, example := range []string{scrapes, "scrape-proxy.yaml"} {
		dir := t.TempDir()
		config := strings.NewReplacer(
			"/etc/prometheus/lockkeeper-proxy-ca.crt", filepath.Join(dir, rules), // promtool requires these files
			"/var/run/secrets/kubernetes.io/serviceaccount/token", filepath.Join(dir, rules),
		).Replace(discovered(t, example, "  - targets: [node-1]\n"))
		for name, text := range map[string]string{"prometheus.yml": config, rules: readFile(t, pack, rules)} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		promtool(t, dir, "check", "config", "prometheus.yml")
	}
}
