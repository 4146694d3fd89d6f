// Package manifests has what an administrator applies to a cluster before
// lockkeeper can run there: the kinds of its objects, the namespace, the Lease,
// and the rights of the two identities; and the policy that all nodes begin
// with. `lockkeeper manifests` prints it, and the test bed's control planes are
// set up with it, so that what is tested is what is shipped.
//
// It is text for people as much as for kubectl: each grant says why it is
// there. The package knows names and keys, but no client and no cluster.
package manifests

import (
	"cmp"
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

//go:embed crds.yaml
var crdsYAML string

//go:embed policy.yaml
var policyYAML string

//go:embed access.yaml
var accessYAML string

//go:embed admission.yaml
var admissionYAML string

//go:embed lease.yaml
var leaseYAML string

// Options are what can be chosen. "" is the default name of each.
type Options struct {
	// Namespace is where the Lease and the coordinator's service account are;
	// a DNS label of at most 63 bytes. The host's files name it at
	// lease.namespace.
	Namespace string
	// Lease is the Lease's name, a DNS subdomain of at most 253 bytes; the
	// host's files name it at lease.name.
	Lease string
	// WithoutLease leaves out the Lease, for tools that do not apply Leases, and for those that
	// would create it again after a user has deleted it, which is a stop. `lockkeeper init` creates it.
	WithoutLease bool
	// NoRenewal leaves out the coordinator's permission to renew its own token.
	NoRenewal bool
	// Audiences are those that the coordinator may ask for in its own token: the
	// API server's, which the token has if the request names none. Empty: all that
	// name Kubernetes' own service, https://kubernetes.default.svc, with or without
	// the cluster's domain.
	Audiences []string
}

// The labels of all objects. They say which objects belong together, and never change between
// versions of lockkeeper. There is no app.kubernetes.io/version, so that an upgrade changes only
// what has changed; and no app.kubernetes.io/managed-by and no app.kubernetes.io/instance, which
// the tool that applies the objects sets.
const (
	labelName      = "app.kubernetes.io/name"
	labelPartOf    = "app.kubernetes.io/part-of"
	labelComponent = "app.kubernetes.io/component"
	product        = "lockkeeper"
)

// labelsOf returns the labels of an object of a component, in YAML.
func labelsOf(component string) string {
	return fmt.Sprintf("{%s: %s, %s: %s, %s: %s}", labelName, product, labelPartOf, product, labelComponent, component)
}

// PolicySelector selects the admission policies and their bindings by label,
// as kubectl's -l takes it. Without the bindings no policy is in force.
const PolicySelector = labelName + "=" + product

// MaxKeys is how many labels, and how many annotations, a Node may have. On a
// Node with more, the coordinator may not write, and mistyped keys pass. The
// admission policies for both read all keys. This takes the API server about
// 20 ms at this bound, and grows with its square. A Node usually has about thirty.
const MaxKeys = 2000

// MaxManagers is how many entries the managedFields of a Node may have. On a Node with more, the
// coordinator may not write. Its policy compares each entry with all others: 600 take the API
// server's whole limit for an expression, and seconds. A Node usually has about ten.
const MaxManagers = 100

// coordinatorManager is the field manager under which the coordinator writes
// Nodes.
const coordinatorManager = "lockkeeper-coordinator"

// maxAudience is the longest audience that is accepted, in bytes.
const maxAudience = 256

// intro begins the manifests, and introWithoutLease those without the Lease.
const (
	intro = `# What lockkeeper needs in a cluster. Nothing of it runs: the kinds of its objects, a namespace, a Lease, and two identities' rights.
# Apply it again after every upgrade of lockkeeper: kubectl apply leaves the Lease's holder, an emergency stop and all policies alone.
# But it creates a Lease that is missing. If a user deleted the Lease to stop the cluster, that ends the stop.
#
`
	introWithoutLease = `# What lockkeeper needs in a cluster, except the Lease. Nothing of it runs: the kinds of its objects, a namespace, and two identities'
# rights. Create the Lease once, with your own credential: lockkeeper init
# Write this file again with each version of lockkeeper.
#
`
)

// renewal is the rule that NoRenewal leaves out. Its Role stays, with none:
// kubectl apply takes back what is not in a Role any more, and deletes no Role.
const (
	renewal = `
- apiGroups: [""]
  resources: [serviceaccounts/token]
  resourceNames: [{{.ServiceAccount}}] # its own, no other
  verbs:
  - create # renewing its token before it ends; so can a thief's copy: "lockkeeper manifests --no-renewal" leaves this out`
	noRenewal = ` []`
)

// Policy returns [v1alpha1.DefaultPolicyName] as a YAML document for `kubectl
// apply -f -`, the same bytes each time. It is no part of the manifests: kubectl
// finds the kind of each document before it applies the first, so that the first
// apply of kind and policy together fails; and a user who deletes the policy,
// so that nodes without another are held, does not get it back with an upgrade.
func Policy() []byte { return []byte(policyYAML) }

// Render returns the manifests as YAML documents for `kubectl apply -f -`, the
// same bytes for the same options. The error names the option that is no
// object's name.
func Render(o Options) ([]byte, error) {
	o, err := o.named()
	if err != nil {
		return nil, err
	}
	for _, a := range o.Audiences {
		if a == "" || len(a) > maxAudience || strings.ContainsFunc(a, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("\"'\\{}", r) }) {
			return nil, fmt.Errorf("audience %q: expected 1 to %d printable ASCII characters, no space, quote, backslash or brace", a, maxAudience)
		}
	}
	// Not text/template: with it in the program the linker drops no method of
	// any type, which costs each idle host 10 MiB.
	rule := renewal
	if o.NoRenewal {
		rule = noRenewal
	}
	text, begin := strings.ReplaceAll(accessYAML+admissionYAML, "{{.Renewal}}", rule), introWithoutLease
	if !o.WithoutLease {
		text, begin = text+"---\n"+leaseYAML, intro
	}
	text = strings.NewReplacer(values(o)...).Replace(text)
	if _, left, ok := strings.Cut(text, "{{"); ok {
		return nil, fmt.Errorf("rendering the manifests: unknown value {{%.30s", left)
	}
	return []byte(begin + crdsYAML + "---\n" + text), nil
}

// named returns the options with the names that are not chosen. The error is about one that is no
// object's name.
func (o Options) named() (Options, error) {
	o.Namespace = cmp.Or(o.Namespace, v1alpha1.DefaultLeaseNamespace)
	o.Lease = cmp.Or(o.Lease, v1alpha1.DefaultLeaseName)
	if errs := validation.IsDNS1123Label(o.Namespace); len(errs) > 0 {
		return o, fmt.Errorf("namespace %q: %s", o.Namespace, strings.Join(errs, "; "))
	}
	if errs := validation.IsDNS1123Subdomain(o.Lease); len(errs) > 0 {
		return o, fmt.Errorf("lease %q: %s", o.Lease, strings.Join(errs, "; "))
	}
	return o, nil
}

// Lease returns the Lease of the manifests, with the names in the options. It has no holder.
func Lease(o Options) (*coordinationv1.Lease, error) {
	o, err := o.named()
	if err != nil {
		return nil, err
	}
	l := &coordinationv1.Lease{}
	if err := yaml.UnmarshalStrict([]byte(strings.NewReplacer(values(o)...).Replace(leaseYAML)), l); err != nil {
		return nil, fmt.Errorf("rendering the Lease: %w", err)
	}
	return l, nil
}

// values are what the texts name, in pairs. Which keys are whose is the api's
// to say.
func values(o Options) []string {
	hostLabels, hostAnnotations := v1alpha1.HostKeys()
	coordinatorLabels, coordinatorAnnotations := v1alpha1.CoordinatorKeys()
	adminLabels, adminAnnotations := v1alpha1.AdminKeys()
	releasedLabels, releasedAnnotations := v1alpha1.ReleasedKeys()
	user := v1alpha1.CoordinatorUser(o.Namespace)
	return []string{
		"{{.LabelsOfHost}}", labelsOf("host"),
		"{{.LabelsOfCoordinator}}", labelsOf("coordinator"),
		"{{.LabelsOfUsers}}", labelsOf("users"),
		"{{.LabelsOfAdmission}}", labelsOf("admission"),

		"{{.Namespace}}", o.Namespace,
		"{{.Lease}}", o.Lease,
		"{{.ServiceAccount}}", v1alpha1.CoordinatorServiceAccount,
		"{{.CoordinatorGroup}}", v1alpha1.CoordinatorGroup,
		"{{.CoordinatorManager}}", coordinatorManager,
		"{{.IsCoordinator}}", fmt.Sprintf(`request.userInfo.username == "%s" || "%s" in request.userInfo.?groups.orValue([])`, user, v1alpha1.CoordinatorGroup),

		"{{.Prefix}}", v1alpha1.Prefix,
		"{{.HookPrefix}}", v1alpha1.HookPrefix,
		"{{.LaterHost}}", v1alpha1.LaterHostPrefix,
		"{{.LaterCoordinator}}", v1alpha1.LaterCoordinatorPrefix,
		"{{.Labels}}", list(slices.Concat(hostLabels, coordinatorLabels, adminLabels)),
		"{{.Annotations}}", list(slices.Concat(hostAnnotations, coordinatorAnnotations, adminAnnotations)),
		"{{.HostLabels}}", list(hostLabels),
		"{{.HostAnnotations}}", list(hostAnnotations),
		"{{.CoordinatorLabels}}", list(coordinatorLabels),
		"{{.CoordinatorAnnotations}}", list(coordinatorAnnotations),
		"{{.AdminLabels}}", list(adminLabels),
		"{{.AdminAnnotations}}", list(adminAnnotations),
		"{{.ReleasedLabels}}", list(releasedLabels),
		"{{.ReleasedAnnotations}}", list(releasedAnnotations),

		"{{.State}}", v1alpha1.LabelState,
		"{{.Managed}}", v1alpha1.LabelManaged,
		"{{.Host}}", v1alpha1.AnnotationHost,
		"{{.Cordon}}", v1alpha1.AnnotationCordon,
		"{{.Paused}}", v1alpha1.AnnotationPaused,
		"{{.Detached}}", v1alpha1.AnnotationDetached,
		"{{.Request}}", v1alpha1.AnnotationRequest,
		"{{.RequestNow}}", v1alpha1.AnnotationRequestNow,
		"{{.Retry}}", v1alpha1.AnnotationRetry,
		"{{.Expired}}", v1alpha1.AnnotationExpired,
		"{{.Grant}}", v1alpha1.AnnotationGrant,
		// The hooks in the JSON of a grant. A host cannot forge one: in the text of
		// its changes, each quote has a backslash.
		"{{.HookNames}}", `r'[{]"name":"[A-Za-z0-9_.-]+","timeout"'`,

		"{{.IntentPattern}}", v1alpha1.IntentPattern,
		"{{.MaxKeys}}", strconv.Itoa(MaxKeys),
		"{{.MaxManagers}}", strconv.Itoa(MaxManagers),
		"{{.MaxTokenSeconds}}", strconv.Itoa(int(v1alpha1.MaxTokenLifetime / time.Second)),
		"{{.MaxTokenDays}}", strconv.Itoa(int(v1alpha1.MaxTokenLifetime / (24 * time.Hour))),
		"{{.IsAudience}}", isAudience(o.Audiences),
	}
}

// isAudience returns a CEL expression for whether the coordinator may ask for the
// audience a.
func isAudience(audiences []string) string {
	if len(audiences) > 0 {
		return "a in [" + list(audiences) + "]"
	}
	return fmt.Sprintf(`a == "%[1]s" || a.startsWith("%[1]s.")`, "https://kubernetes.default.svc")
}

// list is the inside of a list of strings in CEL.
func list(keys []string) string { return `"` + strings.Join(keys, `", "`) + `"` }
