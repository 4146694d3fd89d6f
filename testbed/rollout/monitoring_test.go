package rollout

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// get queries the API of Prometheus and decodes the data of its answer into v.
func (p *prometheus) get(t *testing.T, path string, v any) error {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.address+"/api/v1/"+path, nil)
	must(t, err)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: v}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return err
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: %s", answer.Status, answer.Error)
	}
	return nil
}

// series returns the result of a query: the labels of each series.
func (p *prometheus) series(t *testing.T, query string) ([]map[string]string, error) {
	t.Helper()
	var data struct {
		Result []struct{ Metric map[string]string }
	}
	err := p.get(t, "query?"+url.Values{"query": {query}}.Encode(), &data)
	var all []map[string]string
	for _, s := range data.Result {
		all = append(all, s.Metric)
	}
	return all, err
}

// returns waits until the query returns a series.
func (p *prometheus) returns(t *testing.T, query string) (found []map[string]string) {
	t.Helper()
	until(t, "a series of "+query, func() (bool, string) {
		var err error
		found, err = p.series(t, query)
		return len(found) > 0, fmt.Sprint(err)
	})
	return found
}

// loopback returns a loopback address that nothing else uses, so that each simulated host can use lockkeeper's own
// port.
func loopback() string {
	return fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), 1+rand.IntN(254), 1+rand.IntN(254))
}

// blockDrains puts a pod on each node, and a budget that allows no eviction.
func blockDrains(t *testing.T, cp *controlplane.ControlPlane, nodes ...string) {
	t.Helper()
	const space = "default"
	client, labels := cp.Client(), map[string]string{"app": "blocked"}
	for _, node := range nodes {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "on-" + node, Labels: labels}, Spec: corev1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: new(int64), Containers: []corev1.Container{{Name: "app", Image: "example.invalid/app"}},
		}}
		until(t, "the pod to be admitted", func() (bool, string) { // the service account appears a moment after the control plane
			made, err := client.CoreV1().Pods(space).Create(t.Context(), pod, metav1.CreateOptions{})
			if err == nil {
				pod = made
			}
			return err == nil, fmt.Sprint(err)
		})
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
		_, err := client.CoreV1().Pods(space).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
		must(t, err)
	}
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "all"}, Spec: policyv1.PodDisruptionBudgetSpec{
		MinAvailable: new(intstr.FromInt(len(nodes))), Selector: &metav1.LabelSelector{MatchLabels: labels},
	}}
	_, err := client.PolicyV1().PodDisruptionBudgets(space).Create(t.Context(), budget, metav1.CreateOptions{})
	must(t, err)
}

var (
	// selector matches a metric with its matchers in a query.
	selector = regexp.MustCompile(`\b([a-z_]+)(\{[^}]*\})`)
	// bare matches a metric of lockkeeper without matchers.
	bare      = regexp.MustCompile(`\b(lockkeeper_[a-z_]+|up)(?:[^a-z_{]|$)`)
	oneOf     = regexp.MustCompile(`([a-z_]+)=~"([^"]*)"`)
	labelList = regexp.MustCompile(`\b(?:by|without|on|ignoring|group_left|group_right) \(([^)]*)\)`)
	labelName = regexp.MustCompile(`\$labels\.(\w+)`)
)

// checkNames checks that everything that an alert names existed in the last minutes: each metric with its label values,
// the labels that it aggregates by, and the labels in its texts.
func (p *prometheus) checkNames(t *testing.T, a alert) {
	t.Helper()
	if m := bare.FindStringSubmatch(a.Expr); m != nil {
		t.Errorf("%s: %s does not name its job", a.Alert, m[1])
	}
	has := map[string]bool{}
	found := selector.FindAllString(a.Expr, -1)
	if len(found) == 0 {
		t.Errorf("%s: no metric in %s", a.Alert, a.Expr)
	}
	for _, s := range found {
		variants := []string{s}
		if m := oneOf.FindStringSubmatch(s); m != nil {
			variants = nil
			for value := range strings.SplitSeq(m[2], "|") {
				variants = append(variants, strings.Replace(s, m[0], m[1]+`="`+value+`"`, 1))
			}
		}
		for _, v := range variants {
			for _, labels := range p.returns(t, "last_over_time("+v+"[10m])") {
				for name := range labels {
					has[name] = true
				}
			}
		}
	}
	var named []string
	for _, m := range labelList.FindAllStringSubmatch(a.Expr, -1) {
		named = append(named, strings.Split(strings.ReplaceAll(m[1], " ", ""), ",")...)
	}
	for _, text := range a.Annotations {
		for _, m := range labelName.FindAllStringSubmatch(text, -1) {
			named = append(named, m[1])
		}
	}
	for _, name := range named {
		if !has[name] {
			t.Errorf("%s uses the label %q; existing labels: %v", a.Alert, name, slices.Sorted(maps.Keys(has)))
		}
	}
}

// checkRules waits until Prometheus has evaluated every alert of the pack without an error, and checks that none fires.
func (p *prometheus) checkRules(t *testing.T) {
	t.Helper()
	until(t, "the alerts to be evaluated", func() (bool, string) {
		var data struct {
			Groups []struct {
				Rules []struct{ Name, State, Health, LastError string }
			}
		}
		err := p.get(t, "rules", &data)
		var all []string
		for _, g := range data.Groups {
			for _, r := range g.Rules {
				all = append(all, r.Name)
				if r.Health != "ok" {
					return false, fmt.Sprintf("%+v", r)
				}
				if r.State == "firing" {
					t.Errorf("%s fires", r.Name)
				}
			}
		}
		return len(all) == len(alerts(t)), fmt.Sprintf("%v, %v", all, err)
	})
}

// TestPack starts to roll an update through two hosts, which a Prometheus scrapes with the configuration of the
// example. While the drain of the first host is blocked, each query of the dashboard must return a series, and
// everything that the alerts name must exist.
func TestPack(t *testing.T) {
	t.Parallel()
	cp := gatePool.Take(t)
	must(t, cp.ApplyLockkeeper(t.Context()))
	_, err := cp.ApplyPolicy(t.Context(), controlplane.TestPolicy, "rollout: {settle: 1s}")
	must(t, err)

	const discoveredNode = "  - {targets: [any], labels: {__meta_kubernetes_node_name: %s, __meta_kubernetes_node_address_InternalIP: '%s', __meta_kubernetes_node_labelpresent_lockkeeper_dev_wants: '%s'}}\n"
	targets := fmt.Sprintf(discoveredNode, "v6", "fd00::1", "true") + fmt.Sprintf(discoveredNode, "other", "127.0.0.1", "")
	fleet, err := simhost.StartFleet(context.Background(), cp, simhost.FleetOptions{
		Hosts: 2, Coordinators: 2, Prefix: "pack-", Host: simhost.Options{Binary: binary},
		Each: func(_ int, o *simhost.Options) {
			address := loopback()
			targets += fmt.Sprintf(discoveredNode, o.Name, address, "true")
			o.Config = func(c simhost.Config) { c["metrics"] = map[string]any{"listen": address + ":9477"} }
		},
	})
	must(t, err)
	t.Cleanup(func() {
		for _, h := range fleet.Hosts {
			if t.Failed() {
				t.Logf("%s:\n%s", h.Name(), h.LogTail(30))
			}
		}
		if err := fleet.Close(); err != nil {
			t.Error(err)
		}
	})
	config := strings.NewReplacer("scrape_interval: 30s", "scrape_interval: 1s", "scrape_timeout: 10s", "scrape_timeout: 1s").Replace(discovered(t, scrapes, targets))
	prom := newPrometheus(t, "global: {evaluation_interval: 1s}\n"+config)
	must(t, os.WriteFile(filepath.Join(prom.dir, rules), []byte(readFile(t, pack, rules)), 0o600))
	prom.start(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must(t, fleet.WaitIdle(ctx))
	blockDrains(t, cp, "pack-1", "pack-2")
	must(t, fleet.StageUpdate("4.2.0"))

	prom.returns(t, `lockkeeper_host_state{state="draining"} and on (instance) lockkeeper_host_evictions_total{result="too_many_requests"} > 0`)
	for _, a := range alerts(t) {
		prom.checkNames(t, a)
	}
	for _, panel := range panels(t) {
		for _, q := range panel.Targets {
			prom.returns(t, strings.NewReplacer("$__rate_interval", "1m", "$__range", "10m").Replace(q.Expr))
		}
	}
	prom.checkRules(t)
	prom.checkTargets(t)
}

// checkTargets checks the targets that the rules of the example create from the discovered nodes.
func (p *prometheus) checkTargets(t *testing.T) {
	t.Helper()
	var data struct {
		ActiveTargets []struct {
			ScrapeURL string `json:"scrapeUrl"`
			Labels    map[string]string
		}
	}
	must(t, p.get(t, "targets", &data))
	var names []string
	for _, target := range data.ActiveTargets {
		name := target.Labels["instance"]
		names = append(names, name)
		if name == "v6" && target.ScrapeURL != "http://[fd00::1]:9477/metrics" {
			t.Errorf("scrape URL of an IPv6 address: %s", target.ScrapeURL)
		}
	}
	slices.Sort(names)
	if want := []string{"pack-1", "pack-2", "v6"}; !slices.Equal(names, want) {
		t.Errorf("targets %v, want %v", names, want)
	}
}
