package simulate

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// MaxFile bounds a file, in bytes. A policy is bounded by what the API server accepts.
const MaxFile = 16 << 20

// File is a file of YAML documents.
type File struct {
	Name string // for errors
	Text []byte
}

// Read reads a fleet and its policies from YAML documents. One document is the fleet; each other one is a
// DisruptionPolicy or a List of them, as `kubectl get dp -o yaml` prints it. Missing fields of a policy get the
// defaults of the API server. An invalid policy is not an error: it holds its nodes.
func Read(files ...File) (*Fleet, error) {
	var fleet *Fleet
	var policies []policy.Policy
	for _, file := range files {
		docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(file.Text)))
		for {
			doc, err := docs.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("%s: reading YAML: %w", file.Name, err)
			}
			f, more, err := readDocument(doc)
			switch {
			case err != nil:
				return nil, fmt.Errorf("%s: %w", file.Name, err)
			case f != nil && fleet != nil:
				return nil, fmt.Errorf("%s: a second fleet, expected one: the other documents are of kind DisruptionPolicy or List", file.Name)
			case f != nil:
				fleet = f
			}
			policies = append(policies, more...)
		}
	}
	if fleet == nil {
		return nil, errors.New("no fleet, expected a document with start and nodes")
	}
	fleet.Policies = policy.NewSet(policies...)
	return fleet, fleet.check()
}

func readDocument(doc []byte) (*Fleet, []policy.Policy, error) {
	var meta struct {
		Kind  string            `json:"kind"`
		Items []json.RawMessage `json:"items"`
	}
	if err := yaml.Unmarshal(doc, &meta); err != nil {
		return nil, nil, fmt.Errorf("reading YAML: %w", err)
	}
	switch meta.Kind {
	case "":
		if len(bytes.TrimSpace(stripComments(doc))) == 0 {
			return nil, nil, nil
		}
		fleet := &Fleet{}
		if err := yaml.UnmarshalStrict(doc, fleet); err != nil {
			return nil, nil, fmt.Errorf("the fleet: %w", err)
		}
		return fleet, nil, nil
	case "DisruptionPolicy":
		p, err := readPolicy(doc)
		return nil, []policy.Policy{p}, err
	case "List", "DisruptionPolicyList":
		var all []policy.Policy
		for _, item := range meta.Items {
			p, err := readPolicy(item)
			if err != nil {
				return nil, nil, err
			}
			all = append(all, p)
		}
		return nil, all, nil
	}
	return nil, nil, fmt.Errorf("kind %q, expected a fleet (without kind), DisruptionPolicy or List", meta.Kind)
}

// stripComments removes the comments from a document. An empty result means that the document contained nothing else.
func stripComments(doc []byte) []byte {
	var rest []byte
	for line := range bytes.Lines(doc) {
		if l := bytes.TrimSpace(line); !bytes.HasPrefix(l, []byte("#")) && !bytes.Equal(l, []byte("---")) {
			rest = append(rest, l...)
		}
	}
	return rest
}

// readPolicy parses a DisruptionPolicy and sets the defaults of the API server.
func readPolicy(doc []byte) (policy.Policy, error) {
	type spec v1alpha1.DisruptionPolicySpec // whose decoding refuses unknown fields
	read := struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              spec                            `json:"spec"`
		Status            v1alpha1.DisruptionPolicyStatus `json:"status"`
	}{Spec: spec(v1alpha1.DefaultPolicySpec())}
	if err := yaml.UnmarshalStrict(doc, &read); err != nil {
		return policy.Policy{}, fmt.Errorf("policy %s: %w", read.Name, err)
	}
	obj := &v1alpha1.DisruptionPolicy{TypeMeta: read.TypeMeta, ObjectMeta: read.ObjectMeta, Spec: v1alpha1.DisruptionPolicySpec(read.Spec)}
	if obj.APIVersion != v1alpha1.GroupVersion.String() || obj.Kind != "DisruptionPolicy" || obj.Name == "" {
		return policy.Policy{}, fmt.Errorf("%s %s %q, expected a DisruptionPolicy of %s with metadata.name", obj.APIVersion, obj.Kind, obj.Name, v1alpha1.GroupVersion)
	}
	// Set the defaults within lists, which v1alpha1.DefaultPolicySpec does not contain.
	hooks := &obj.Spec.Hooks
	for _, list := range [][]v1alpha1.HookSpec{hooks.BeforeDrain, hooks.BeforeReboot} {
		for i := range list {
			defaultHook(&list[i].Timeout, &list[i].OnTimeout, v1alpha1.OnTimeoutAbort)
		}
	}
	for i := range hooks.BeforeUncordon {
		defaultHook(&hooks.BeforeUncordon[i].Timeout, &hooks.BeforeUncordon[i].OnTimeout, v1alpha1.OnTimeoutWait)
	}
	return policy.Compile(obj, time.LoadLocation), nil
}

func defaultHook(timeout *metav1.Duration, on *v1alpha1.OnTimeout, otherwise v1alpha1.OnTimeout) {
	if timeout.Duration == 0 {
		timeout.Duration = 30 * time.Minute
	}
	if *on == "" {
		*on = otherwise
	}
}

// check rejects a fleet that cannot be simulated, and sets defaults.
func (f *Fleet) check() error {
	count := 0
	names := map[string]bool{}
	for i := range f.Nodes {
		g := &f.Nodes[i]
		if count += g.Count; names[g.Name] {
			return fmt.Errorf("nodes: two groups have the name %s", g.Name)
		}
		names[g.Name] = true
		if err := f.checkGroup(g); err != nil {
			return fmt.Errorf("nodes: %s: %w", g.Name, err)
		}
	}
	if f.Limit.Duration == 0 {
		f.Limit.Duration = 30 * 24 * time.Hour
	}
	if f.Resolution.Duration == 0 {
		f.Resolution.Duration = resolution(count)
	}
	switch {
	case f.Start.IsZero():
		return errors.New("start: missing, expected a date such as 2026-03-28T20:00:00Z")
	case count < 1 || count > maxNodes:
		return fmt.Errorf("nodes: %d in all, expected 1 to %d", count, maxNodes)
	case f.Limit.Duration < 0 || f.Limit.Duration > longest:
		return fmt.Errorf("limit: %v, expected up to %v", f.Limit.Duration, longest)
	case f.Resolution.Duration < time.Second || f.Resolution.Duration > time.Hour:
		return fmt.Errorf("resolution: %v, expected 1s to 1h", f.Resolution.Duration)
	case f.RetryAfter.Duration < 0:
		return fmt.Errorf("retryAfter: %v, expected 0s or more", f.RetryAfter.Duration)
	}
	for _, g := range f.Gates {
		p := f.Policies.Named(g.Policy)
		if p == nil || !slices.ContainsFunc(p.Gates, func(x v1alpha1.Gate) bool { return x.Name == g.Gate }) {
			return fmt.Errorf("gates: no policy %s has a gate %s", g.Policy, g.Gate)
		}
	}
	return nil
}

// resolution limits the number of decisions, because each reads all nodes.
func resolution(nodes int) time.Duration {
	switch {
	case nodes <= 1_000:
		return time.Second
	case nodes <= 3_000:
		return 15 * time.Second
	}
	return time.Minute
}

func (f *Fleet) checkGroup(g *Group) error {
	switch {
	case len(validation.IsDNS1123Subdomain(g.Name)) > 0:
		return errors.New("expected a name such as worker, which its Nodes' names begin with")
	case g.Count < 1 || g.Count > maxNodes:
		return fmt.Errorf("count: %d, expected 1 to %d", g.Count, maxNodes)
	case !g.Takes.Drain.said(), !g.Takes.Reboot.said():
		return errors.New("takes: expected drain and reboot")
	case len(g.Changes) > maxChanges:
		return fmt.Errorf("changes: %d, expected at most %d", len(g.Changes), maxChanges)
	}
	if !g.Takes.Apply.said() {
		g.Takes.Apply = Spread{parts: []part{{share: 1, from: defaultApply, to: defaultApply}}, text: defaultApply.String()}
	}
	for i, c := range g.Changes {
		said := 0
		for _, is := range []bool{c.OS != "", c.File != "", c.Unit != "", c.Sentinel != "", c.Request, c.FleetLock} {
			if is {
				said++
			}
		}
		if said != 1 || c.Within.Duration < 0 || c.Within.Duration > longest {
			return fmt.Errorf("changes[%d]: expected one of os, file, unit, sentinel, request and fleetLock, and within of 0s or more", i)
		}
	}
	// There is no sensible default for the time of a hook.
	for _, p := range f.Policies {
		for _, hook := range hooksOf(&p.Terms) {
			if _, said := g.Takes.Hooks[hook]; !said && f.selects(&p, g) {
				return fmt.Errorf("takes.hooks: nothing of %s, which policy %s waits for; expected for how long, or never", hook, p.Name)
			}
		}
	}
	return nil
}

// defaultApply is the default time for all reloads and restarts of a plan.
const defaultApply = 10 * time.Second

func hooksOf(t *v1alpha1.Terms) []string {
	var names []string
	for _, list := range [][]v1alpha1.Hook{t.BeforeDrain, t.BeforeReboot, t.BeforeUncordon} {
		for _, h := range list {
			names = append(names, h.Name)
		}
	}
	return names
}

// selects reports whether the policy decides about a node of the group.
func (f *Fleet) selects(p *policy.Policy, g *Group) bool {
	for i := range max(1, len(g.Zones)) {
		if m := f.Policies.For(g.labels(i)); m.Policy != nil && m.Policy.Name == p.Name {
			return true
		}
	}
	return false
}

// labels returns the labels of the group's node i.
func (g *Group) labels(i int) map[string]string {
	l := maps.Clone(g.Labels)
	if l == nil {
		l = map[string]string{}
	}
	l[corev1.LabelHostname] = g.node(i)
	if zone := g.zone(i); zone != "" {
		l[corev1.LabelTopologyZone] = zone
	}
	if g.ControlPlane {
		l[turn.LabelControlPlane] = ""
	}
	return l
}

func (g *Group) zone(i int) string {
	if len(g.Zones) == 0 {
		return ""
	}
	return g.Zones[i%len(g.Zones)]
}

// node returns the name of the group's node i: for example web-01 in a group of twenty.
func (g *Group) node(i int) string {
	return fmt.Sprintf("%s-%0*d", g.Name, len(fmt.Sprint(g.Count)), i+1)
}
