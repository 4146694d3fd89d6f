package v1alpha1

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Intent is the payload of [AnnotationPaused] and [AnnotationDetached]: any
// text, taken as the reason, or JSON. The annotation's presence is what
// counts; a payload that does not parse still pauses or detaches.
type Intent struct {
	// Reason is a text for people.
	Reason string `json:"reason,omitempty"`
	// By says who set the intent.
	By string `json:"by,omitempty"`
	// Until is when the coordinator removes the annotation, by the coordinator's own clock. If it is
	// missing, only a user removes the annotation.
	Until *time.Time `json:"until,omitempty"`
	// Force is for `detached` only: the node is released at once, unless a reboot or an apply is
	// committed.
	Force bool `json:"force,omitempty"`
}

// IntentPattern is the only JSON form of an Intent, as an RE2 regular
// expression. The admission policy for the coordinator uses the same expression
// to find out when an intent ends, so both read an end in the same texts only. A
// text that matches has these members and no others, and spells their names
// without an escape, so `"until"` followed by a colon is always a member's name.
// Years begin with 1000: a policy cannot read year 0.
const IntentPattern = `^\s*\{((` + intentMember + `,)*` + intentMember + `|\s*)\}\s*$`

const (
	intentMember = `\s*("(reason|by)"\s*:\s*"([^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"|` +
		`"until"\s*:\s*"[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})"|` +
		`"force"\s*:\s*(true|false))\s*`
)

var (
	intentForm = regexp.MustCompile(IntentPattern)
	intentName = regexp.MustCompile(`"(reason|by|until|force)"\s*:`)
)

// ParseIntent reads the annotation's value. The Intent counts whatever the
// error, which is for a warning.
func ParseIntent(s string) (Intent, error) {
	text := strings.TrimSpace(s)
	if !strings.HasPrefix(text, "{") {
		i := Intent{Reason: text}
		if strings.EqualFold(text, "false") {
			return i, errors.New(`the value "false" does not end it; remove the annotation`)
		}
		return i, nil
	}
	var i Intent
	if len(text) > maxRecord {
		return Intent{}, fmt.Errorf("%d bytes, expected at most %d", len(text), maxRecord)
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&i); err != nil {
		// Half of a payload is worse than none: an Until or a Force that was
		// read before the mistake may not be what was meant.
		return Intent{Reason: clip(text)}, fmt.Errorf("expected text or JSON {reason, by, until, force}: %w", err)
	}
	// The admission policy matches the whole value, and to it only spaces of ASCII are spaces.
	if !intentForm.MatchString(s) {
		return Intent{Reason: clip(text)}, errors.New("expected text or JSON {reason, by, until, force}: " +
			"the names in lower case and without escapes, no null, and nothing before the opening or after the closing brace, not even a no-break space")
	}
	names := map[string]bool{}
	for _, m := range intentName.FindAllStringSubmatch(text, -1) {
		if names[m[1]] {
			return Intent{Reason: clip(text)}, fmt.Errorf("expected text or JSON {reason, by, until, force}, each at most once: %s is there twice", m[1])
		}
		names[m[1]] = true
	}
	return i, nil
}

// Request is the payload of [AnnotationRequest] and [AnnotationRequestNow].
type Request struct {
	// Action is "reboot".
	Action string `json:"action"`
	// Reason is a text for people: one line of at most 256 bytes.
	Reason string `json:"reason,omitempty"`
	// By says who requests the reboot: one line of at most 128 bytes.
	By string `json:"by,omitempty"`
	// Now is true if the request came by `lockkeeper.dev/request-now`. Only records have it. In the
	// annotation it is an error, because the key decides which permission the request needs.
	Now bool `json:"now,omitempty"`
}

// Requests distinguishes one request from another: the [Digest] of each annotation's value, or "" if it is missing or is not a valid
// request.
type Requests struct {
	Waits string `json:"waits,omitempty"` // AnnotationRequest
	Now   string `json:"now,omitempty"`   // AnnotationRequestNow
}

// The limits of a Request's texts, in bytes. A longer text is cut.
const (
	MaxRequestReason = 256
	MaxRequestBy     = 128
)

// Note returns what the request adds to the text of the change c, such as
// " (now, by ada: a memory error)". It is "" without a request, and for a change that is not a
// Request.
func (r *Request) Note(c Change) string {
	if r == nil || c.Source != SourceRequest {
		return ""
	}
	var parts []string
	if r.Now {
		parts = append(parts, "now")
	}
	if r.By != "" {
		parts = append(parts, "by "+r.By)
	}
	note := strings.Join(parts, ", ")
	if r.Reason != "" {
		note = strings.TrimPrefix(note+": "+r.Reason, ": ")
	}
	if note == "" {
		return ""
	}
	return " (" + note + ")"
}

// ParseRequest reads the annotation's value: "reboot", or JSON with the action "reboot",
// a reason and by. Anything else is an error and no request.
func ParseRequest(s string) (*Request, error) {
	text := strings.TrimSpace(s)
	r := &Request{Action: text}
	if strings.HasPrefix(text, "{") {
		if len(s) > maxRecord {
			return nil, fmt.Errorf("%d bytes, expected at most %d", len(s), maxRecord)
		}
		d := json.NewDecoder(strings.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(r); err != nil {
			return nil, fmt.Errorf("expected \"reboot\" or JSON {action, reason, by}: %w", err)
		}
		if d.InputOffset() != int64(len(text)) {
			return nil, errors.New("expected \"reboot\" or JSON {action, reason, by}, and nothing after the closing brace")
		}
		if r.Now {
			return nil, errors.New("expected \"reboot\" or JSON {action, reason, by}; instead of now, use the annotation " + AnnotationRequestNow)
		}
	}
	if r.Action != "reboot" {
		return nil, fmt.Errorf("%q, expected \"reboot\" or JSON {\"action\": \"reboot\", \"reason\": …, \"by\": …}", clip(s))
	}
	r.Reason, r.By = OneLine(r.Reason, MaxRequestReason), OneLine(r.By, MaxRequestBy)
	return r, nil
}

// MarkKind is where on a Node a [Mark] is.
type MarkKind string

// The kinds of marks.
const (
	MarkTaint      MarkKind = "taint"
	MarkLabel      MarkKind = "label"
	MarkAnnotation MarkKind = "annotation"
)

// Mark is something on a Node by which another program says that it works on the node, or
// that the node goes away.
//
// A mark holds only the node that it is on. A kubelet may set any annotation and most labels
// of its own Node, so a mark must not hold another node.
type Mark struct {
	Owner string
	Kind  MarkKind
	Key   string
	// Value is the value that counts. If it is "", Not is the only value that does not count,
	// or Differs is the annotation whose value does not count. If all are "", every value
	// counts. An absent key never does.
	Value, Not, Differs string
	Means               string
	// Deletes: the owner deletes the node, so the node counts as unavailable. Only a taint
	// may say so: a kubelet cannot set one.
	Deletes bool
}

const (
	mco  = "machineconfiguration.openshift.io/"
	nth  = "aws-node-termination-handler/"
	fluo = "flatcar-linux-update.v1.flatcar-linux.net/"
	cluo = "container-linux-update.v1.coreos.com/"
)

// Marks returns the marks of other owners, in the order in which they are checked.
// docs/other-owners.md is rendered from it.
//
// Not in the table is what does not say that a program works on the node now: keys that
// another reboot manager leaves on a node (FLUO's reboot-needed, kured's
// kured-most-recent-reboot-needed), and taints that ask the scheduler to avoid a node that
// may be replaced at some time (DeletionCandidateOfClusterAutoscaler, UpdateInProgress of the
// machine config operator, outdated-revision of Cluster API).
func Marks() []Mark { return marks }

// InMarks reports whether a taint or an annotation with the key is in the table of marks.
func InMarks(kind MarkKind, key string) bool {
	return slices.ContainsFunc(marks, func(m Mark) bool {
		return m.Kind == kind && (m.Key == key || m.Differs == key && key != "")
	})
}

var marks = []Mark{
	{Owner: "cluster-autoscaler", Kind: MarkTaint, Key: "ToBeDeletedByClusterAutoscaler", Means: "it deletes the node", Deletes: true},
	{Owner: "Karpenter", Kind: MarkTaint, Key: "karpenter.sh/disrupted", Means: "it replaces the node", Deletes: true},
	{Owner: "Karpenter", Kind: MarkTaint, Key: "karpenter.sh/disruption", Means: "it replaces the node (Karpenter before 1.0)", Deletes: true},
	{Owner: "medik8s", Kind: MarkTaint, Key: "medik8s.io/drain", Means: "the node maintenance operator drains the node, or has drained it"},
	{Owner: "medik8s", Kind: MarkTaint, Key: "remediation.medik8s.io/self-node-remediation", Means: "self node remediation fences the node"},
	{Owner: "an admin or medik8s", Kind: MarkTaint, Key: "node.kubernetes.io/out-of-service", Means: "the node is shut down, and its pods are moved"},
	{Owner: "machine config operator", Kind: MarkAnnotation, Key: mco + "state", Not: "Done", Means: "it works on the node, or its work failed"},
	{Owner: "machine config operator", Kind: MarkAnnotation, Key: mco + "desiredConfig", Differs: mco + "currentConfig", Means: "it brings the node to another configuration"},
	{Owner: "machine config operator", Kind: MarkAnnotation, Key: mco + "desiredDrain", Differs: mco + "lastAppliedDrain", Means: "it drains or uncordons the node"},
	{Owner: "AWS node termination handler", Kind: MarkTaint, Key: nth + "spot-itn", Means: "AWS interrupts the spot instance", Deletes: true},
	{Owner: "AWS node termination handler", Kind: MarkTaint, Key: nth + "scheduled-maintenance", Means: "AWS has scheduled maintenance of the instance"},
	{Owner: "AWS node termination handler", Kind: MarkTaint, Key: nth + "asg-lifecycle-termination", Means: "the auto scaling group terminates the instance", Deletes: true},
	{Owner: "AWS node termination handler", Kind: MarkTaint, Key: nth + "rebalance-recommendation", Means: "the spot instance is likely to be interrupted"},
	{Owner: "AWS node termination handler", Kind: MarkLabel, Key: nth + "action", Value: "UncordonAfterReboot", Means: "it has cordoned the node for a reboot"},
	{Owner: "GKE", Kind: MarkLabel, Key: "cloud.google.com/active-node-maintenance", Value: "ONGOING", Means: "GKE maintains the node's host"},
	{Owner: "GKE", Kind: MarkTaint, Key: "cloud.google.com/impending-node-termination", Means: "the node is about to be terminated", Deletes: true},
	{Owner: "AKS", Kind: MarkLabel, Key: "kubernetes.azure.com/upgrade-status", Value: "Quarantined", Means: "an upgrade could not drain the node"},
	{Owner: "AKS", Kind: MarkTaint, Key: "remediator.kubernetes.azure.com/unschedulable", Means: "AKS repairs the node"},
	{Owner: "Flatcar Linux Update Operator", Kind: MarkAnnotation, Key: fluo + "reboot-ok", Value: "true", Means: "the node is in its turn there"},
	{Owner: "Flatcar Linux Update Operator", Kind: MarkAnnotation, Key: fluo + "reboot-in-progress", Value: "true", Means: "its agent drains and reboots the node"},
	{Owner: "Flatcar Linux Update Operator", Kind: MarkAnnotation, Key: fluo + "agent-made-unschedulable", Value: "true", Means: "its agent has cordoned the node"},
	{Owner: "Flatcar Linux Update Operator", Kind: MarkLabel, Key: fluo + "before-reboot", Value: "true", Means: "its hooks run before a reboot"},
	{Owner: "Flatcar Linux Update Operator", Kind: MarkLabel, Key: fluo + "after-reboot", Value: "true", Means: "its hooks run after a reboot"},
	{Owner: "Container Linux Update Operator", Kind: MarkAnnotation, Key: cluo + "reboot-ok", Value: "true", Means: "the node is in its turn there"},
	{Owner: "Container Linux Update Operator", Kind: MarkAnnotation, Key: cluo + "reboot-in-progress", Value: "true", Means: "its agent drains and reboots the node"},
	{Owner: "kured", Kind: MarkAnnotation, Key: "kured.dev/kured-reboot-in-progress", Means: "it reboots the node, or waits for its lock"},
	{Owner: "kured", Kind: MarkAnnotation, Key: "weave.works/kured-reboot-in-progress", Means: "it reboots the node, or waits for its lock"},
}

// FinalizerKarpenter is on each Node that Karpenter has made. It keeps a Node that is being
// deleted until Karpenter has terminated its instance.
const FinalizerKarpenter = "karpenter.sh/termination"

// Condition says in Markdown which values of the key count, for the documentation.
func (m *Mark) Condition() string {
	switch {
	case m.Value != "":
		return "`" + m.Value + "`"
	case m.Not != "":
		return "not `" + m.Not + "`"
	case m.Differs != "":
		return "not the value of `" + m.Differs + "`"
	}
	return "any"
}
