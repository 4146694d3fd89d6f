package v1alpha1

import (
	"cmp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxLoadBalancerDelay is the longest loadBalancerDelay of a policy.
const MaxLoadBalancerDelay = 10 * time.Minute

// Exclusions say which programs are to leave a node alone while a turn drains and disrupts
// it. A turn without a drain sets nothing: it does not cordon the node, and the mark of the
// cordon is the only record of which keys are lockkeeper's to remove.
//
// +kubebuilder:object:generate=true
type Exclusions struct {
	// ExcludeFromLoadBalancers is whether a turn sets the label
	// node.kubernetes.io/exclude-from-external-load-balancers with its cordon, so that
	// cloud load balancers send the node no new traffic. A turn without a drain sets none.
	//
	// +optional
	// +kubebuilder:default=false
	ExcludeFromLoadBalancers bool `json:"excludeFromLoadBalancers,omitempty"`
	// LoadBalancerDelay is how long a turn waits after its cordon before it evicts the first
	// pod, if it has set that label: 0s to 10m. It is part of the drain's timeout.
	//
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(h|m|s|ms)){1,4}$') && duration(self) >= duration('0s') && duration(self) <= duration('10m')",message="expected a duration of 0s to 10m, such as 30s or 1m30s"
	LoadBalancerDelay metav1.Duration `json:"loadBalancerDelay"`
	// DisableScaleDown is whether a turn sets the annotation
	// cluster-autoscaler.kubernetes.io/scale-down-disabled to true with its cordon, so that
	// the cluster autoscaler does not remove the node. A turn without a drain sets none.
	//
	// +optional
	// +kubebuilder:default=false
	DisableScaleDown bool `json:"disableScaleDown,omitempty"`
	// ExcludeFromRemediation is whether a turn sets the label
	// remediation.medik8s.io/exclude-from-remediation to true with its cordon, so that
	// medik8s does not fence the node while it reboots. A turn without a drain sets none.
	//
	// +optional
	// +kubebuilder:default=false
	ExcludeFromRemediation bool `json:"excludeFromRemediation,omitempty"`
}

// Names returns the names of the exclusions that are on, in the order of [AllExclusions].
func (e *Exclusions) Names() []string {
	var names []string
	for _, x := range []struct {
		on   bool
		name string
	}{{e.ExcludeFromLoadBalancers, ExclusionLoadBalancers}, {e.DisableScaleDown, ExclusionScaleDown}, {e.ExcludeFromRemediation, ExclusionRemediation}} {
		if x.on {
			names = append(names, x.name)
		}
	}
	return names
}

// The names of the exclusions in [AnnotationCordon]. CordonOurs is there if the cordon itself
// is lockkeeper's.
const (
	CordonOurs             = "Cordon"
	ExclusionLoadBalancers = "LoadBalancers"
	ExclusionScaleDown     = "ScaleDown"
	ExclusionRemediation   = "Remediation"
)

// Exclusion is a label or an annotation that a turn sets on its Node for another program.
type Exclusion struct {
	Name       string // in AnnotationCordon
	Field      string // in the policy's drain
	Kind       MarkKind
	Key, Value string
	Means      string
}

var exclusions = []Exclusion{
	{ExclusionLoadBalancers, "excludeFromLoadBalancers", MarkLabel, "node.kubernetes.io/exclude-from-external-load-balancers", "",
		"cloud load balancers do not send traffic to the node"},
	{ExclusionScaleDown, "disableScaleDown", MarkAnnotation, "cluster-autoscaler.kubernetes.io/scale-down-disabled", "true",
		"the cluster autoscaler does not remove the node"},
	{ExclusionRemediation, "excludeFromRemediation", MarkLabel, "remediation.medik8s.io/exclude-from-remediation", "true",
		"medik8s does not remediate the node"},
}

// AllExclusions returns all exclusions. docs/drain.md is rendered from it.
func AllExclusions() []Exclusion { return exclusions }

// Cordon is the value of [AnnotationCordon], the mark: what a turn has set on the Node, which
// lockkeeper undoes in the write that removes the mark.
//
//	<turn>/<time>/<name>,<name>,…
//
// The names are CordonOurs and those of exclusions. Names that are not known here are ignored,
// except that a mark with no other names does not say that the cordon is lockkeeper's: a newer
// version has set only what they stand for. Any other value stands for a cordon of lockkeeper's
// without exclusions.
type Cordon struct {
	Turn string    // the turn's ID, for people
	At   time.Time // of the cordon, by the host's clock
	Set  []string  // without any name, the cordon is set; of names that are not known, only one, if there are no others
}

// Ours reports whether the cordon is lockkeeper's. It is not if the Node was cordoned
// before the turn.
func (c *Cordon) Ours() bool { return len(c.Set) == 0 || c.Has(CordonOurs) }

// Has reports whether the turn has set what the name stands for.
func (c *Cordon) Has(name string) bool { return slices.Contains(c.Set, name) }

// String returns the annotation's value.
func (c *Cordon) String() string {
	return c.Turn + "/" + c.At.UTC().Format(time.RFC3339) + "/" + strings.Join(c.Set, ",")
}

// ParseCordon reads the annotation's value. It never fails.
func ParseCordon(s string) Cordon {
	ours := Cordon{Turn: s}
	parts := strings.Split(s, "/")
	if len(parts) != 3 || ValidateID(parts[0]) != nil {
		return ours
	}
	at, err := time.Parse(time.RFC3339, parts[1])
	if err != nil {
		return ours
	}
	c, unknown := Cordon{Turn: parts[0], At: at}, ""
	for name := range strings.SplitSeq(parts[2], ",") {
		known := name == CordonOurs || slices.ContainsFunc(exclusions, func(x Exclusion) bool { return x.Name == name })
		switch {
		case !known:
			unknown = cmp.Or(unknown, name)
		case !c.Has(name):
			c.Set = append(c.Set, name)
		}
	}
	if len(c.Set) == 0 && unknown != "" {
		c.Set = []string{unknown}
	}
	return c
}

// readCordon decodes the mark, and finds out which exclusions' keys the Node has.
func (k *Keys) readCordon(labels, annotations map[string]string) {
	var value string
	if value, k.Mark = annotations[AnnotationCordon]; k.Mark {
		k.Cordon = ParseCordon(value)
	}
	for i := range exclusions {
		x := &exclusions[i]
		from := labels
		if x.Kind == MarkAnnotation {
			from = annotations
		}
		if v, ok := from[x.Key]; ok {
			if k.Excluded == nil {
				k.Excluded = map[string]string{}
			}
			k.Excluded[x.Name] = v
		}
	}
}

// OwnCordon reports whether the mark says that the cordon is lockkeeper's.
func (k *Keys) OwnCordon() bool { return k.Mark && k.Cordon.Ours() }

// ToSet returns those of the named exclusions whose keys the Node does not have, whatever
// their values: another user or program may have set them.
func (k *Keys) ToSet(names []string) []Exclusion {
	return k.exclusions(func(x *Exclusion) bool {
		_, has := k.Excluded[x.Name]
		return slices.Contains(names, x.Name) && !has
	})
}

// ToUndo returns the exclusions that the mark names and that no one has changed since.
func (k *Keys) ToUndo() []Exclusion {
	return k.exclusions(func(x *Exclusion) bool {
		v, has := k.Excluded[x.Name]
		return k.Mark && k.Cordon.Has(x.Name) && has && v == x.Value
	})
}

func (k *Keys) exclusions(is func(*Exclusion) bool) []Exclusion {
	var all []Exclusion
	for i := range exclusions {
		if is(&exclusions[i]) {
			all = append(all, exclusions[i])
		}
	}
	return all
}
