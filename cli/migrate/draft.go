package migrate

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
)

// draft is a policy and a host's file while they are made.
type draft struct {
	in       *Input
	spec     v1alpha1.DisruptionPolicySpec
	host     *hostFile
	template *corev1.PodTemplateSpec
	program  *corev1.Container
	notes    []Note
	// failed are the settings that could not be carried on; windows and gates that are made
	// of several settings are left out if one of them failed.
	failed map[string]bool

	kured kuredDraft
	fluo  fluoDraft
}

func newDraft(in *Input, host *hostFile, w *Workload) *draft {
	d := &draft{in: in, spec: v1alpha1.DefaultPolicySpec(), host: host, failed: map[string]bool{}}
	if w != nil {
		d.template = &w.Template
	}
	return d
}

func (d *draft) note(n Note) {
	d.notes = append(d.notes, n)
	if n.Outcome == Decide {
		name, _, _ := strings.Cut(strings.TrimLeft(n.Setting, "-"), "=")
		d.failed[name] = true
	}
}

// windows sets the policy's windows. A window that is shorter than a turn takes by default
// gets a shorter expectedDuration: otherwise no turn would ever begin in it.
func (d *draft) windows(ws []v1alpha1.Window) (note string, err error) {
	if err := checkWindows(ws, d.in.Zones); err != nil {
		return "", err
	}
	d.spec.Rollout.Windows = ws
	for _, w := range ws {
		if w.Duration.Duration < d.spec.Rollout.ExpectedDuration.Duration {
			d.spec.Rollout.ExpectedDuration = metav1.Duration{Duration: 5 * time.Minute}
			note = "; the window is short, so expectedDuration is 5m"
		}
	}
	return note, nil
}

// selectNodes limits the policy to the nodes that a workload's pods may run on.
func (d *draft) selectNodes(t *corev1.PodTemplateSpec) {
	sel := &d.spec.NodeSelector
	if len(t.Spec.NodeSelector) > 0 {
		sel.MatchLabels = t.Spec.NodeSelector
		d.note(selectorNote("nodeSelector", slices.Sorted(maps.Keys(t.Spec.NodeSelector))))
	}
	a := t.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return
	}
	terms := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms) != 1 || len(terms[0].MatchFields) > 0 {
		d.note(Note{"nodeAffinity", Decide, "it has several terms, or fields: a policy selects nodes by one set of labels"})
		return
	}
	for _, e := range terms[0].MatchExpressions {
		if e.Operator == corev1.NodeSelectorOpGt || e.Operator == corev1.NodeSelectorOpLt {
			d.note(Note{"nodeAffinity", Decide, fmt.Sprintf("the operator %s: a policy's selector has In, NotIn, Exists and DoesNotExist", e.Operator)})
			return
		}
	}
	var keys []string
	for _, e := range terms[0].MatchExpressions {
		keys = append(keys, e.Key)
		sel.MatchExpressions = append(sel.MatchExpressions, metav1.LabelSelectorRequirement{
			Key: e.Key, Operator: metav1.LabelSelectorOperator(e.Operator), Values: e.Values,
		})
	}
	d.note(selectorNote("nodeAffinity", keys))
}

// systemTaint begins the keys of the taints that come and go with the state of a node. The pods of a DaemonSet tolerate most of them.
const systemTaint = "node.kubernetes.io/"

// untolerated notes the nodes that the policy selects although the tool's pods do not run there, because of a taint.
func (d *draft) untolerated(t *corev1.PodTemplateSpec) {
	selected, err := metav1.LabelSelectorAsSelector(&d.spec.NodeSelector)
	if err != nil {
		return // the policy has this problem too
	}
	refuses := func(taint corev1.Taint) bool {
		return taint.Effect != corev1.TaintEffectPreferNoSchedule && !strings.HasPrefix(taint.Key, systemTaint) && !isOwned(taint.Key) &&
			!slices.ContainsFunc(t.Spec.Tolerations, func(o corev1.Toleration) bool { return o.ToleratesTaint(logr.Discard(), &taint, true) })
	}
	var names []string
	for i := range d.in.Nodes {
		n := &d.in.Nodes[i]
		runs := slices.ContainsFunc(d.in.Pods, func(p corev1.Pod) bool { return p.Spec.NodeName == n.Name })
		if !runs && selected.Matches(labels.Set(n.Labels)) && slices.ContainsFunc(n.Spec.Taints, refuses) {
			names = append(names, n.Name)
		}
	}
	if len(names) > 0 {
		d.note(Note{"tolerations", Decide, fmt.Sprintf("the tool does not run on %s, because its pods do not tolerate a taint there; "+
			"the policy selects nodes by their labels: have its nodeSelector leave these nodes out, unless lockkeeper is to reboot them", some(names))})
	}
}

// selectorNote is the note of a selector that the policy has. A label of the tool's own goes
// away, and with it the nodes.
func selectorNote(what string, keys []string) Note {
	for _, key := range keys {
		if isOwned(key) {
			return Note{what, Decide, "`migrate --apply` removes the label " + quote(key) + ": select the nodes by another one"}
		}
	}
	return Note{what, Carried, "spec.nodeSelector"}
}

// containerZone returns the zone of the local time in the program's container. The images
// have no zone of their own, so that it is UTC unless the pod sets one.
func (d *draft) containerZone() (string, error) {
	for _, e := range slices.Backward(d.program.Env) {
		switch {
		case e.Name != "TZ":
		case e.ValueFrom != nil:
			return "", fmt.Errorf("its local time is that of the variable TZ, whose value is not in the object")
		case e.Value != "":
			return e.Value, nil
		}
	}
	for _, m := range d.program.VolumeMounts {
		if m.MountPath == "/etc" || strings.HasPrefix(m.MountPath, "/etc/localtime") || strings.HasPrefix(m.MountPath, "/usr/share/zoneinfo") {
			return "", fmt.Errorf("its local time is that of the file mounted at %s, which was not read", quote(m.MountPath))
		}
	}
	return "UTC", nil
}

// policy completes the policy. One that has problems which no note names is paused too.
func (d *draft) policy(name, source string) Policy {
	p := Policy{Source: source}
	for _, n := range d.notes {
		if n.Outcome == Decide {
			p.PausedBecause = append(p.PausedBecause, n.Setting+": "+n.Text)
		}
	}
	p.Object = v1alpha1.DisruptionPolicy{Spec: d.spec}
	p.Object.APIVersion, p.Object.Kind = v1alpha1.GroupVersion.String(), "DisruptionPolicy"
	p.Object.Name = name
	if problems := policy.Compile(&p.Object, d.in.Zones).Problems; len(problems) > 0 {
		// A value that the checks above did not find. It may be anywhere, so all goes.
		because := "lockkeeper does not accept " + refused(problems[0])
		d.notes = append(d.notes, Note{source, Decide, because})
		p.PausedBecause, p.Object.Spec = append(p.PausedBecause, because), v1alpha1.DefaultPolicySpec()
	}
	p.Object.Spec.Paused = len(p.PausedBecause) > 0
	return p
}

// hostFile is what a host's file says.
type hostFile struct {
	paused        []string // why the host is paused
	sentinels     []string
	namespaces    []string // of the tool's pods, other than kube-system
	prometheusURL string
	notify        bool
	windows       []v1alpha1.Window
}

// maxHostList bounds the lists in a host's file.
const maxHostList = 16

// text returns the file as TOML, or "" if it says nothing.
func (h *hostFile) text() string {
	var b strings.Builder
	if len(h.paused) > 0 {
		fmt.Fprintf(&b, "paused = %s\n", quoteTOML("migrate: decide about "+clip(strings.Join(h.paused, ", "))))
	}
	if len(h.sentinels)+len(h.namespaces) > 0 {
		b.WriteString("\n[sources]\n")
	}
	if len(h.sentinels) > 0 {
		fmt.Fprintf(&b, "sentinels = %s\n", listTOML(h.sentinels))
	}
	if len(h.namespaces) > 0 {
		fmt.Fprintf(&b, "# The host commits nothing while a pod of the other tool is on its node.\nmanager_namespaces = %s\n", listTOML(h.namespaces))
	}
	if h.prometheusURL != "" {
		fmt.Fprintf(&b, "\n# On hosts that may become the coordinator. A host must be able to reach the server:\n"+
			"# the name of a Service usually resolves in pods only.\n[coordinator]\nprometheus_url = %s\n", quoteTOML(h.prometheusURL))
	}
	if h.notify {
		b.WriteString("\n# On hosts that may become the coordinator. Put [notify] into a drop-in of mode 0600 and set\n" +
			"# its url: it is a secret, so that it is not printed here.\n# [notify]\n# url = \"https://…\"\n")
	}
	for _, w := range h.windows {
		b.WriteString("\n[[window]]\n")
		if len(w.Days) > 0 {
			fmt.Fprintf(&b, "days = %s\n", listTOML(w.Days))
		}
		fmt.Fprintf(&b, "start = %s\nduration = %s\ntime_zone = %s\n", quoteTOML(w.Start), quoteTOML(v1alpha1.ShortDuration(w.Duration.Duration)), quoteTOML(w.TimeZone))
	}
	return strings.TrimPrefix(b.String(), "\n")
}

// addNamespace adds the namespace of a workload of the tool. kube-system always counts.
func (h *hostFile) addNamespace(w *Workload) {
	if w.Namespace != metav1.NamespaceSystem && !slices.Contains(h.namespaces, w.Namespace) && len(h.namespaces) < maxHostList {
		h.namespaces = append(h.namespaces, w.Namespace)
	}
}

func listTOML[T ~string](values []T) string {
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = quoteTOML(string(v))
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// quoteTOML returns text as a basic string of TOML, on one line.
func quoteTOML(s string) string {
	s = oneLine(strings.ToValidUTF8(s, "?"))
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}
