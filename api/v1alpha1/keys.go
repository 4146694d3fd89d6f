package v1alpha1

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Prefix begins every label and annotation key of lockkeeper's own.
const Prefix = "lockkeeper.dev/"

// HookPrefix begins the annotation keys by which hooks confirm a stage. See
// [HookAnnotation].
const HookPrefix = "hook.lockkeeper.dev/"

// Hosts may run a version that is newer than the cluster's admission policies. So a label or
// annotation that a later version adds for hosts begins with LaterHostPrefix, and one for the
// coordinator with LaterCoordinatorPrefix: policies that do not know the key know whose it is.
const (
	LaterHostPrefix        = Prefix + "host-"
	LaterCoordinatorPrefix = Prefix + "coordinator-"
)

// Labels on a Node: what people and DaemonSets select on.
const (
	// LabelState says where in its turn a node is; see [State]. Only the
	// coordinator writes it. Absent: the node is not managed.
	LabelState = Prefix + "state"

	// LabelWants is the strongest action in the host's plan; see [Wants].
	// Only the host writes it, and only after it has read every source of
	// changes in its present boot.
	LabelWants = Prefix + "wants"

	// LabelHeld is the [Reason] why a node that wants something, or is in a
	// turn, does not move. Only the coordinator writes it. Absent: nothing
	// holds the node. On a node that lockkeeper does not manage any more it is
	// ReasonDetached or ReasonUnmanaged, and stays until the node is back.
	LabelHeld = Prefix + "held"

	// LabelManaged is an admin's decision: "true", "false", or absent to follow
	// managed_by_default in the host's file. If it becomes "false" during a
	// turn, the turn is backed out if nothing is committed, and finishes
	// otherwise. Then the coordinator releases the node; see [ReleasedKeys].
	LabelManaged = Prefix + "managed"

	// LabelOS, LabelOSVersion and LabelGroup are information from the host's
	// os-release and update.conf, cut by [LabelValue]. No decision reads
	// them.
	LabelOS        = Prefix + "os"
	LabelOSVersion = Prefix + "os-version"
	LabelGroup     = Prefix + "group"
)

// Annotations on a Node: what is unique to it, or an intent with a payload.
const (
	// AnnotationHost is the host's description of itself, a [Host] as JSON,
	// in the same write as LabelWants.
	AnnotationHost = Prefix + "host"

	// AnnotationAck is the host's last report in a turn; see [Ack].
	AnnotationAck = Prefix + "ack"

	// AnnotationTurn is the ID of the node's present turn, plain, so that a
	// hook's shell script can read it. Only the coordinator writes it.
	AnnotationTurn = Prefix + "turn"

	// AnnotationGrant is the coordinator's record of the present turn, a
	// [Grant] as JSON.
	AnnotationGrant = Prefix + "grant"

	// AnnotationLast is how the last turn ended, a [Last] as JSON. Only the
	// coordinator writes it.
	AnnotationLast = Prefix + "last"

	// AnnotationRuns is since when the node has run its OS version, a [Runs] as
	// JSON. Only the coordinator writes it, and only to nodes of policies for which
	// others wait; see [RolloutSpec.After].
	AnnotationRuns = Prefix + "runs"

	// AnnotationExpired is the time at which the coordinator last removed a
	// pause or a detach whose Until had passed, in RFC 3339 with nanoseconds.
	// The write that removes such an intent has to set it to another value. The
	// API server then records its own time for this annotation in managedFields,
	// and the admission policy compares Until with that time.
	// Only the coordinator writes it.
	AnnotationExpired = Prefix + "expired"

	// AnnotationCordon is the mark, a [Cordon]: what a turn has set on this Node, the
	// cordon and the exclusions. Only what it names does lockkeeper undo. The host
	// writes it in the same write as spec.unschedulable. Whatever turn it names, the
	// mark is lockkeeper's.
	AnnotationCordon = Prefix + "cordon"

	// AnnotationPaused is an admin's intent: freeze this node where it is,
	// undo nothing. Any value counts, "false" and "" too. See [Intent].
	AnnotationPaused = Prefix + "paused"

	// AnnotationDetached is an admin's intent: hand the node to another
	// owner. See [Intent].
	AnnotationDetached = Prefix + "detached"

	// AnnotationRequest is an admin's change: "reboot", or JSON with a reason.
	// See [Request]. The coordinator removes it in the write that ends the
	// turn that carried it out.
	AnnotationRequest = Prefix + "request"

	// AnnotationRequestNow is an AnnotationRequest that does not wait for the
	// policy's windows, gates and settle time. It has the same values,
	// and a key of its own so that it needs a permission of its own.
	AnnotationRequestNow = Prefix + "request-now"

	// AnnotationRetry clears a turn, so that neither its failure nor the
	// node's number of turns holds the next one. Its value is that turn's ID, as
	// found in AnnotationLast or AnnotationTurn.
	AnnotationRetry = Prefix + "retry"

	// AnnotationStop on the Lease is the emergency stop: while it is there,
	// whatever its value, nothing is promoted and no host commits. It is the
	// same key as AnnotationPaused.
	AnnotationStop = AnnotationPaused
)

// The Lease that coordinators are elected by, unless configured otherwise.
const (
	DefaultLeaseNamespace = "lockkeeper"
	DefaultLeaseName      = "lockkeeper"
)

// CoordinatorServiceAccount is the coordinator's identity: a service account in
// the Lease's namespace, made by the manifests.
const CoordinatorServiceAccount = "lockkeeper-coordinator"

// CoordinatorUser is the name under which the API server knows the coordinator
// whose service account is in namespace.
func CoordinatorUser(namespace string) string {
	return "system:serviceaccount:" + namespace + ":" + CoordinatorServiceAccount
}

// CoordinatorGroup is the other form of the coordinator's identity: a user whose client
// certificate puts it into this group. The manifests
// bind it like the service account. CoordinatorCertificateUser is the user that
// `lockkeeper kubeconfig --csr` has such a certificate made out to.
const (
	CoordinatorGroup           = "lockkeeper:coordinators"
	CoordinatorCertificateUser = "lockkeeper:coordinator"
)

// MaxTokenLifetime is the longest lifetime that the coordinator's service
// account may ask for when it renews its token. The admission policy of the
// manifests refuses a longer one.
const MaxTokenLifetime = 365 * 24 * time.Hour

// HookAnnotation returns the annotation by which the hook called name
// confirms the stage that a node is in. Its value has to be the turn's ID.
// The coordinator removes it when the stage is entered and when it is left,
// so that a confirmation counts once.
func HookAnnotation(name string) string { return HookPrefix + name }

// HookName returns the hook's name from an annotation key, and whether the
// key is a hook's.
func HookName(key string) (string, bool) { return strings.CutPrefix(key, HookPrefix) }

// ValidateHookName returns what is wrong with a hook's name, or nil. A name is
// the part of an annotation key after the slash: at most 63 of
// [A-Za-z0-9_.-], beginning and ending with a letter or digit.
func ValidateHookName(name string) error {
	if errs := validation.IsQualifiedName(HookAnnotation(name)); len(errs) > 0 {
		return fmt.Errorf("hook name %q: %s", clip(name), strings.Join(errs, "; "))
	}
	return nil
}

// HostKeys are the keys that only a host sets, and only on its own Node.
func HostKeys() (labels, annotations []string) {
	return []string{LabelWants, LabelOS, LabelOSVersion, LabelGroup},
		[]string{AnnotationHost, AnnotationAck, AnnotationCordon}
}

// ReleasedKeys are the keys of a host that the coordinator removes together with
// its own keys when it releases a node that is detached or not managed: all of
// HostKeys except the information labels, which stay, and the mark, which is
// removed only if the node was detached with force.
func ReleasedKeys() (labels, annotations []string) {
	return []string{LabelWants}, []string{AnnotationHost, AnnotationAck}
}

// CoordinatorKeys are the keys that only the coordinator writes.
func CoordinatorKeys() (labels, annotations []string) {
	return []string{LabelState, LabelHeld},
		[]string{AnnotationTurn, AnnotationGrant, AnnotationLast, AnnotationRuns, AnnotationExpired}
}

// AdminKeys are the intents of admins. A host never writes them; the coordinator
// only removes them.
func AdminKeys() (labels, annotations []string) {
	return []string{LabelManaged},
		[]string{AnnotationPaused, AnnotationDetached, AnnotationRequest, AnnotationRequestNow, AnnotationRetry}
}

// LabelValue turns any text into the value of a label: each character that a label
// cannot hold becomes "-", the result is cut to 63 bytes and begins and ends
// with a letter or digit. It may be empty.
func LabelValue(text string) string {
	out := []byte(text)
	for i, c := range out {
		if !alphanumeric(c) && c != '-' && c != '_' && c != '.' {
			out[i] = '-'
		}
	}
	out = out[:min(len(out), validation.LabelValueMaxLength)]
	for len(out) > 0 && !alphanumeric(out[0]) {
		out = out[1:]
	}
	for len(out) > 0 && !alphanumeric(out[len(out)-1]) {
		out = out[:len(out)-1]
	}
	return string(out)
}

func alphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// Keys are lockkeeper's labels and annotations on one Node, decoded. Hosts, coordinators
// and `lockkeeper status` all use it, so they all treat an invalid value in the same way:
// as if it were absent, with a [Problem] that says so.
type Keys struct {
	State   State
	Wants   Wants
	Held    Reason
	Managed *bool // nil: absent

	Host   *Host
	Ack    Ack
	Turn   string
	Grant  *Grant // nil: absent or unreadable
	Last   *Last
	Runs   *Runs
	Mark   bool   // AnnotationCordon is present
	Cordon Cordon // what it says
	// Excluded are the values of the exclusions' keys on the Node, by the names of the
	// exclusions, no matter who has set them.
	Excluded map[string]string
	Paused   *Intent
	// Detached and Request are nil when absent. A payload that does not parse still
	// detaches, but is no request. With both annotations of a request, Request is
	// that of AnnotationRequestNow; Requests has both.
	Detached *Intent
	Request  *Request
	Requests Requests
	Retry    string
	// Hooks are the confirmations found: hook's name to turn's ID.
	Hooks map[string]string
	// Info is the host's information labels, LabelOS and so on, as they are.
	Info map[string]string
	// RawHost is AnnotationHost as it is, to see whether it was written again.
	RawHost string
	// Problems are the values that could not be read.
	Problems []Problem
}

// Problem is one key whose value could not be read.
type Problem struct {
	Key string
	Err error
}

// String names the key and what was wrong with its value.
func (p Problem) String() string { return fmt.Sprintf("%s: %v", p.Key, p.Err) }

// ReadKeys decodes a Node's labels and annotations. It never fails: it leaves out what
// cannot be read and lists it in Problems, in a stable order.
func ReadKeys(labels, annotations map[string]string) Keys {
	k := Keys{
		State:   State(labels[LabelState]),
		Held:    Reason(labels[LabelHeld]),
		Turn:    annotations[AnnotationTurn],
		Retry:   annotations[AnnotationRetry],
		RawHost: annotations[AnnotationHost],
	}
	k.readLabels(labels)
	read(&k, annotations, AnnotationHost, &k.Host, ParseHost)
	read(&k, annotations, AnnotationAck, &k.Ack, ParseAck)
	read(&k, annotations, AnnotationGrant, &k.Grant, ParseGrant)
	read(&k, annotations, AnnotationLast, &k.Last, ParseLast)
	read(&k, annotations, AnnotationRuns, &k.Runs, ParseRuns)
	k.readCordon(labels, annotations)
	read(&k, annotations, AnnotationPaused, &k.Paused, parsePresent(ParseIntent))
	read(&k, annotations, AnnotationDetached, &k.Detached, parsePresent(ParseIntent))
	if read(&k, annotations, AnnotationRequest, &k.Request, ParseRequest); k.Request != nil {
		k.Requests.Waits = Digest(annotations[AnnotationRequest])
	}
	var now *Request
	if read(&k, annotations, AnnotationRequestNow, &now, ParseRequest); now != nil {
		now.Now, k.Request = true, now
		k.Requests.Now = Digest(annotations[AnnotationRequestNow])
	}
	for key, value := range annotations {
		if name, ok := HookName(key); ok {
			if k.Hooks == nil {
				k.Hooks = map[string]string{}
			}
			k.Hooks[name] = value
		}
	}
	return k
}

// read parses an annotation, if it is there, into a field of k.
func read[T any](k *Keys, annotations map[string]string, key string, field *T, parse func(string) (T, error)) {
	if value, ok := annotations[key]; ok {
		var err error
		*field, err = parse(value)
		k.problem(key, err)
	}
}

// parsePresent makes a parser return a pointer, which is not nil even if the value is invalid.
func parsePresent[T any](parse func(string) (T, error)) func(string) (*T, error) {
	return func(s string) (*T, error) {
		v, err := parse(s)
		return &v, err
	}
}

func (k *Keys) problem(key string, err error) {
	if err != nil {
		k.Problems = append(k.Problems, Problem{key, err})
	}
}

func (k *Keys) readLabels(labels map[string]string) {
	if !k.State.Known() {
		k.problem(LabelState, fmt.Errorf("%q is not a state", clip(string(k.State))))
	}
	if w, ok := labels[LabelWants]; ok {
		if k.Wants = Wants(w); !k.Wants.Known() {
			k.problem(LabelWants, fmt.Errorf("%q, expected nothing, apply, drain or reboot", clip(w)))
			k.Wants = ""
		}
	}
	if m, ok := labels[LabelManaged]; ok {
		// Every value but "true" counts as false: a user who typed "False" or "no" did
		// not ask for a reboot.
		k.Managed = new(m == "true")
		if m != "true" && m != "false" {
			k.problem(LabelManaged, fmt.Errorf("%q, expected true or false; taken as false", clip(m)))
		}
	}
	for _, key := range []string{LabelOS, LabelOSVersion, LabelGroup} {
		if v, ok := labels[key]; ok {
			if k.Info == nil {
				k.Info = map[string]string{}
			}
			k.Info[key] = v
		}
	}
}
