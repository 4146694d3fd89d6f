package manifests

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// deleteOrder has the kinds of the manifests in the order in which they are deleted. Without its
// Lease, lockkeeper begins nothing more. The rights go before the admission policies that bound
// them. The namespace goes last, when everything in it is gone.
var deleteOrder = strings.Fields(`Lease ClusterRoleBinding RoleBinding ClusterRole Role ServiceAccount
	ValidatingAdmissionPolicyBinding ValidatingAdmissionPolicy CustomResourceDefinition Namespace`)

// deleteIntro begins what [Delete] returns.
const deleteIntro = `# Everything that "lockkeeper manifests" applies to a cluster, for: kubectl delete --ignore-not-found -f -
#
# 1. First run "lockkeeper leave --all", and remove the package from every host. Afterwards nothing removes lockkeeper's keys from
#    the Nodes, or undoes its cordons.
# 2. WARNING: this deletes the two CustomResourceDefinitions, and with them all DisruptionPolicies and HostUpdates. To keep a copy
#    of your policies: kubectl get disruptionpolicies -o yaml > policies.yaml
# 3. WARNING: this deletes the namespace {{.Namespace}}, and with it everything in it. If it has objects that are not
#    lockkeeper's, remove the last document of this file first.
#
# The order is the one in which to delete them. Nothing else is left to delete: Events and the CertificateSigningRequests of
# "lockkeeper kubeconfig --csr" expire. The coordinator's kubeconfigs are worthless from then on; delete these files on the hosts.
# The label lockkeeper.dev/managed=false stays on Nodes until you remove it:
#   kubectl label nodes -l lockkeeper.dev/managed lockkeeper.dev/managed-
`

// Delete returns what `kubectl delete -f -` takes to remove everything that [Render] returns for
// the same options, the same bytes for the same options. Deleting it also deletes all objects of
// lockkeeper's own kinds, and everything in the namespace.
func Delete(o Options) ([]byte, error) {
	text, err := Render(o)
	if err != nil {
		return nil, err
	}
	if o, err = o.named(); err != nil {
		return nil, err
	}
	var all []metav1.PartialObjectMetadata
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4<<10)
	for {
		var obj metav1.PartialObjectMetadata
		if err := decoder.Decode(&obj); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("reading the manifests: %w", err)
		}
		if !slices.Contains(deleteOrder, obj.Kind) {
			return nil, fmt.Errorf("reading the manifests: it is not known when to delete a %s", obj.Kind)
		}
		all = append(all, obj)
	}
	slices.SortStableFunc(all, func(a, b metav1.PartialObjectMetadata) int {
		return slices.Index(deleteOrder, a.Kind) - slices.Index(deleteOrder, b.Kind)
	})
	var b strings.Builder
	b.WriteString(strings.ReplaceAll(deleteIntro, "{{.Namespace}}", o.Namespace))
	for i, obj := range all {
		if i > 0 {
			b.WriteString("---\n")
		}
		fmt.Fprintf(&b, "apiVersion: %s\nkind: %s\nmetadata:\n  name: %q\n", obj.APIVersion, obj.Kind, obj.Name)
		if obj.Namespace != "" {
			fmt.Fprintf(&b, "  namespace: %q\n", obj.Namespace)
		}
	}
	return []byte(b.String()), nil
}
