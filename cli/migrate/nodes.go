package migrate

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Change is what `--apply` changes on one Node, in one write.
type Change struct {
	Node            string
	ResourceVersion string
	// Annotations and Labels are the keys that are removed.
	Annotations, Labels []string
	// Taints are the keys of the taints that are removed. Keep are those that stay.
	Taints []string
	Keep   []corev1.Taint
	// Paused is the value of the annotation that pauses the node; "" sets none.
	Paused string
	// Uncordon removes the cordon, because the tool's own record says that it is the tool's.
	Uncordon bool
}

func (c *Change) empty() bool {
	return len(c.Annotations)+len(c.Labels)+len(c.Taints) == 0 && c.Paused == "" && !c.Uncordon
}

// String says what changes, on one line.
func (c *Change) String() string {
	var parts []string
	if c.Paused != "" {
		parts = append(parts, "pause it")
	}
	if c.Uncordon {
		parts = append(parts, "uncordon it")
	}
	for _, list := range []struct {
		what string
		keys []string
	}{{"annotations", c.Annotations}, {"labels", c.Labels}, {"taints", c.Taints}} {
		if len(list.keys) > 0 {
			parts = append(parts, "remove the "+list.what+" "+strings.Join(list.keys, ", "))
		}
	}
	return c.Node + ": " + strings.Join(parts, "; ")
}

// Prefixes of the keys of FLUO, as of pkg/constants/constants.go in
// flatcar/flatcar-linux-update-operator, and of its predecessor, as of the same file in
// coreos/container-linux-update-operator.
var fluoPrefixes = []string{"flatcar-linux-update.v1.flatcar-linux.net/", "container-linux-update.v1.coreos.com/"}

// Keys of kured, as of cmd/kured/main.go and internal/k8soperations/annotations.go in
// kubereboot/kured.
const (
	kuredLock     = "weave.works/kured-node-lock"
	kuredDevLock  = "kured.dev/kured-node-lock" // of versions to come
	kuredPrefix   = "weave.works/kured-"
	kuredDevKeys  = "kured.dev/"
	kuredCordoned = "kured.dev/node-unschedulable-before-drain"
)

var kuredPrefixes = []string{kuredPrefix, kuredDevKeys}

// isOwned reports whether a key on a Node is one of the tools'.
func isOwned(key string) bool {
	return slices.ContainsFunc(slices.Concat(fluoPrefixes, kuredPrefixes), func(p string) bool { return strings.HasPrefix(key, p) })
}

// LockName is the name of FLUO's Lease and ConfigMap, as of pkg/operator/operator.go.
const LockName = "flatcar-linux-update-operator-lock"

// PodSelectors are the labels of the tool's pods in its manifests and charts.
func PodSelectors(tool Tool) []string {
	switch tool {
	case FLUO:
		return []string{"app in (flatcar-linux-update-operator,flatcar-linux-update-agent)", "app.kubernetes.io/name=flatcar-linux-update-operator"}
	case Kured:
		return []string{"name=kured", "app.kubernetes.io/name=kured"}
	}
	return nil
}

// Runs reports whether a pod of this template runs the tool.
func Runs(tool Tool, t *corev1.PodTemplateSpec) bool {
	for _, p := range programs(tool) {
		if c, _ := p.container(t); c != nil {
			return true
		}
	}
	return false
}

func programs(tool Tool) []*program {
	switch tool {
	case FLUO:
		return []*program{&operator, &agent}
	case Kured:
		return []*program{&kured}
	}
	return nil
}

// running adds the signs that the tool's programs run or will run, and what is left of its
// objects.
func running(r *Result, in *Input) {
	for i := range in.Pods {
		p := &in.Pods[i]
		if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			r.Active = append(r.Active, Todo{fmt.Sprintf("pod %s/%s exists", p.Namespace, p.Name), ""})
		}
	}
	for i := range in.Workloads {
		w := &in.Workloads[i]
		if !Runs(r.Tool, &w.Template) {
			continue
		}
		if w.Wanted > 0 {
			r.Active = append(r.Active, Todo{fmt.Sprintf("%s wants %d pods", w, w.Wanted), ""})
		}
		r.Left = append(r.Left, Todo{w.String(), fmt.Sprintf("kubectl -n %s delete %s %s", w.Namespace, strings.ToLower(w.Kind), w.Name)})
	}
}

// FLUO's annotations and labels. Values are "true" and "false".
func fluoNodes(r *Result, in *Input, checks []string) {
	running(r, in)
	fluoLock(r, in)
	var cordoned []string
	others := map[string][]string{} // nodes by key
	for i := range in.Nodes {
		n := &in.Nodes[i]
		c := Change{Node: n.Name, ResourceVersion: n.ResourceVersion, Annotations: owned(n.Annotations, fluoPrefixes), Labels: owned(n.Labels, fluoPrefixes)}
		made := false
		for _, prefix := range fluoPrefixes {
			for _, key := range []string{"reboot-ok", "reboot-in-progress"} {
				if n.Annotations[prefix+key] == "true" {
					r.Active = append(r.Active, Todo{fmt.Sprintf("node %s: a turn is under way (annotation %s=true)", n.Name, prefix+key), ""})
				}
			}
			for _, key := range []string{"before-reboot", "after-reboot"} {
				if n.Labels[prefix+key] == "true" {
					r.Active = append(r.Active, Todo{fmt.Sprintf("node %s: a turn is under way (label %s=true)", n.Name, prefix+key), ""})
				}
			}
			made = made || n.Annotations[prefix+"agent-made-unschedulable"] == "true"
			if n.Annotations[prefix+"reboot-paused"] == "true" {
				c.Paused = intent(n, in.By, "carried over from "+prefix+"reboot-paused")
			}
		}
		if keys := v1alpha1.ReadKeys(nil, n.Annotations); n.Spec.Unschedulable && !keys.OwnCordon() {
			if c.Uncordon = made && !othersCordon(n); !c.Uncordon {
				cordoned = append(cordoned, n.Name)
			}
		}
		for _, key := range checks {
			if _, ok := n.Annotations[key]; ok && !slices.Contains(c.Annotations, key) {
				others["annotation "+key] = append(others["annotation "+key], n.Name)
			}
		}
		if !c.empty() {
			r.Changes = append(r.Changes, c)
		}
	}
	leave(r, cordoned, others, "FLUO's annotation agent-made-unschedulable=true is missing, or another owner may rely on the cordon")
}

// fluoLock finds holders of FLUO's lock: the Lease, and the ConfigMap of older versions.
func fluoLock(r *Result, in *Input) {
	held := func(where, holder string, renewed time.Time, seconds int) {
		if end := renewed.Add(time.Duration(seconds) * time.Second); holder != "" && end.After(in.Now) {
			r.Active = append(r.Active, Todo{fmt.Sprintf("%s is held by %s until %s", where, quote(holder), end.UTC().Format(time.RFC3339)), ""})
		}
	}
	for i := range in.Leases {
		l := &in.Leases[i]
		where := fmt.Sprintf("Lease %s/%s", l.Namespace, l.Name)
		r.Left = append(r.Left, Todo{where, fmt.Sprintf("kubectl -n %s delete lease %s", l.Namespace, l.Name)})
		if s := &l.Spec; s.HolderIdentity != nil && s.RenewTime != nil && s.LeaseDurationSeconds != nil {
			held(where, *s.HolderIdentity, s.RenewTime.Time, int(*s.LeaseDurationSeconds))
		}
	}
	for i := range in.ConfigMaps {
		m := &in.ConfigMaps[i]
		where := fmt.Sprintf("ConfigMap %s/%s", m.Namespace, m.Name)
		r.Left = append(r.Left, Todo{where, fmt.Sprintf("kubectl -n %s delete configmap %s", m.Namespace, m.Name)})
		// client-go's LeaderElectionRecord, which resourcelock keeps in this annotation.
		value := m.Annotations["control-plane.alpha.kubernetes.io/leader"]
		var record struct {
			HolderIdentity       string
			LeaseDurationSeconds int
			RenewTime            time.Time
		}
		if len(value) <= maxArgument && json.Unmarshal([]byte(value), &record) == nil {
			held(where, record.HolderIdentity, record.RenewTime, record.LeaseDurationSeconds)
		}
	}
}

// lockEntry is one holder of kured's lock, as of internal/daemonsetlock/daemonsetlock.go in
// kubereboot/kured.
type lockEntry struct {
	NodeID   string `json:"nodeID"`
	Metadata struct {
		// Unschedulable is whether the node was cordoned before kured cordoned it.
		Unschedulable *bool `json:"unschedulable"`
	} `json:"metadata"`
	Created time.Time     `json:"created"`
	TTL     time.Duration `json:"TTL"`
}

func (l *lockEntry) held(now time.Time) bool { return l.TTL <= 0 || now.Sub(l.Created) < l.TTL }

// parseLock returns the holders in kured's lock, which has one unless concurrency is set.
func parseLock(value string) ([]lockEntry, error) {
	if len(value) > 4*maxArgument {
		return nil, fmt.Errorf("it has %d bytes", len(value))
	}
	var lock struct {
		lockEntry
		Locks []lockEntry `json:"locks"`
	}
	if err := json.Unmarshal([]byte(value), &lock); err != nil {
		return nil, err
	}
	if lock.NodeID != "" {
		return append(lock.Locks, lock.lockEntry), nil
	}
	return lock.Locks, nil
}

// manualLock returns the holder of a lock that is not a node: kured's documentation has
// users set the lock by hand to stop reboots. It is "" if there is none.
func manualLock(value string, in *Input) string {
	entries, _ := parseLock(value)
	for _, e := range entries {
		if e.held(in.Now) && !slices.ContainsFunc(in.Nodes, func(n corev1.Node) bool { return n.Name == e.NodeID }) {
			return e.NodeID
		}
	}
	return ""
}

// kuredNodes finds kured's keys. found has what kured's flags name, by workload.
func kuredNodes(r *Result, in *Input, found map[string]*kuredDraft) {
	running(r, in)
	before := kuredLocks(r, in, found)
	var cordoned []string
	others := map[string][]string{}
	for i := range in.Nodes {
		n := &in.Nodes[i]
		c := Change{Node: n.Name, ResourceVersion: n.ResourceVersion, Annotations: owned(n.Annotations, kuredPrefixes), Labels: owned(n.Labels, kuredPrefixes)}
		for _, t := range n.Spec.Taints {
			if isOwned(t.Key) && t.Effect == corev1.TaintEffectPreferNoSchedule {
				c.Taints = append(c.Taints, t.Key)
			} else {
				c.Keep = append(c.Keep, t)
			}
		}
		addNamed(others, found, n, c.Keep)
		cordonedBefore, recorded := before[n.Name]
		if value, ok := n.Annotations[kuredCordoned]; ok {
			cordonedBefore, recorded = value != "false", true
		}
		if keys := v1alpha1.ReadKeys(nil, n.Annotations); n.Spec.Unschedulable && !keys.OwnCordon() {
			if c.Uncordon = recorded && !cordonedBefore && !othersCordon(n); !c.Uncordon {
				cordoned = append(cordoned, n.Name)
			}
		}
		if !c.empty() {
			r.Changes = append(r.Changes, c)
		}
	}
	leave(r, cordoned, others, "no record of kured's says that the cordon is kured's, or another owner may rely on it")
}

// kuredLocks adds the holders of kured's locks to what is active. It returns, for the nodes
// of locks that have expired, whether they were cordoned before kured cordoned them.
func kuredLocks(r *Result, in *Input, found map[string]*kuredDraft) (before map[string]bool) {
	before = map[string]bool{}
	for i := range in.Workloads {
		w := &in.Workloads[i]
		k := found[w.String()]
		for _, key := range slices.Sorted(maps.Keys(w.Annotations)) {
			value := w.Annotations[key]
			if key != kuredLock && key != kuredDevLock && (k == nil || key != k.lock) {
				continue
			}
			entries, err := parseLock(value)
			if err != nil {
				r.Active = append(r.Active, Todo{fmt.Sprintf("%s: the lock %s is not JSON that lockkeeper knows", w, quote(key)), ""})
			}
			for _, e := range entries {
				switch {
				case e.held(in.Now):
					r.Active = append(r.Active, Todo{
						fmt.Sprintf("%s: %s holds the lock since %s; if its turn is over, remove the lock:", w, quote(e.NodeID), e.Created.UTC().Format(time.RFC3339)),
						fmt.Sprintf("kubectl -n %s annotate %s %s %s-", w.Namespace, strings.ToLower(w.Kind), w.Name, key),
					})
				case e.Metadata.Unschedulable != nil:
					before[e.NodeID] = *e.Metadata.Unschedulable
				}
			}
		}
	}
	return before
}

// addNamed adds the taints and labels of the node that kured's flags name and that do not
// have kured's prefixes. A flag could name any key, so they are not removed.
func addNamed(others map[string][]string, found map[string]*kuredDraft, n *corev1.Node, taints []corev1.Taint) {
	add := func(what string) {
		if !slices.Contains(others[what], n.Name) {
			others[what] = append(others[what], n.Name)
		}
	}
	for _, k := range found {
		for _, t := range taints {
			if t.Key == k.taint && t.Effect == corev1.TaintEffectPreferNoSchedule {
				add("taint " + t.Key + ":PreferNoSchedule")
			}
		}
		for _, label := range k.labels {
			if _, ok := n.Labels[label]; ok {
				add("label " + label)
			}
		}
	}
}

// leave notes what stays on Nodes.
func leave(r *Result, cordoned []string, others map[string][]string, why string) {
	if len(cordoned) > 0 {
		r.Left = append(r.Left, Todo{fmt.Sprintf("the cordon of %s: %s", some(cordoned), why), "kubectl uncordon NODE"})
	}
	for _, what := range slices.Sorted(maps.Keys(others)) {
		kind, key, _ := strings.Cut(what, " ")
		command := "kubectl " + map[string]string{"annotation": "annotate", "label": "label", "taint": "taint"}[kind] + " node NODE " + key + "-"
		r.Left = append(r.Left, Todo{fmt.Sprintf("the %s %s of %s: a flag names it, and others may use it", kind, quote(key), some(others[what])), command})
	}
}

// some lists the first few of names.
func some(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// owned returns the keys of m that begin with one of the prefixes, sorted.
func owned(m map[string]string, prefixes []string) (keys []string) {
	for key := range m {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(key, p) }) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// intent returns the value that pauses the node, and "" if it is paused already.
func intent(n *corev1.Node, by, reason string) string {
	if _, paused := n.Annotations[v1alpha1.AnnotationPaused]; paused {
		return ""
	}
	b, err := json.Marshal(v1alpha1.Intent{Reason: reason, By: by})
	if err != nil {
		return reason // two strings can always be encoded
	}
	return string(b)
}

// othersCordon reports whether another owner may rely on the cordon of a node, even if the tool made it.
func othersCordon(n *corev1.Node) bool {
	if _, detached := n.Annotations[v1alpha1.AnnotationDetached]; detached {
		return true
	}
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return v1alpha1.InMarks(v1alpha1.MarkTaint, t.Key) })
}
