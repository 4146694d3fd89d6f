// Package fullnode fills Nodes up to what an API server stores, each with something else, for tests of what has to work whatever is
// on a Node.
package fullnode

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxSize is how large a Node is filled, in bytes as it is stored. etcd takes requests of 1.5 MiB; the rest is for what a test still
// writes and for what the API server adds to it.
const MaxSize = 3<<19 - 16<<10

// maxAnnotations is how many bytes of keys and values annotations are filled with. The API server's bound leaves 4 KiB for what a
// test writes before and after.
const maxAnnotations = validation.TotalAnnotationSizeLimitB - 4<<10

// A Shape is a way in which a Node can be full.
type Shape struct {
	Name string
	Fill func(*corev1.Node)
}

// Shapes are as many labels, annotations, both, images in the status, and entries of managedFields as a Node can have. For each of
// the prefixes, a name and a slash, there are as many labels and as many annotations with it as a Node can have.
func Shapes(prefixes map[string]string) []Shape {
	all := []Shape{
		{"annotations", func(n *corev1.Node) { annotate(n, "") }},
		{"labels", func(n *corev1.Node) { label(n, "") }},
		{"both", func(n *corev1.Node) { annotate(n, ""); label(n, "") }},
		{"status", func(n *corev1.Node) {
			fill(n, func(i int) {
				n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{fmt.Sprintf("registry.example/image-%d", i)}})
			})
		}},
		{"managers", func(n *corev1.Node) {
			// Not more of them: without any policy, an API server takes 10 ms for each of them in each write.
			for i := range 4 {
				n.ManagedFields = append(n.ManagedFields, metav1.ManagedFieldsEntry{
					Manager: fmt.Sprintf("m%d", i), Operation: metav1.ManagedFieldsOperationApply, APIVersion: "v1", FieldsType: "FieldsV1",
					FieldsV1: metav1.NewFieldsV1(fields(MaxSize/4 - 200)),
				})
			}
		}},
	}
	for name, prefix := range prefixes {
		all = append(all,
			Shape{name + "-annotations", func(n *corev1.Node) { annotate(n, prefix) }},
			Shape{name + "-labels", func(n *corev1.Node) { label(n, prefix) }})
	}
	return all
}

// annotate adds annotations with the shortest keys and no values.
func annotate(n *corev1.Node, prefix string) {
	if n.Annotations == nil {
		n.Annotations = map[string]string{}
	}
	size := 0
	for k, v := range n.Annotations {
		size += len(k) + len(v)
	}
	for i := 0; ; i++ {
		key := prefix + short(i)
		if size += len(key); size > maxAnnotations {
			return
		}
		n.Annotations[key] = ""
	}
}

// fields is a set of fields of so many bytes.
func fields(size int) string {
	text := []byte(`{"f:metadata":{"f:annotations":{"f:a":{}`)
	for i := 0; len(text) < size-40; i++ {
		text = fmt.Appendf(text, `,"f:example.com/%d":{}`, i)
	}
	return string(text) + "}}}"
}

func label(n *corev1.Node, prefix string) {
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	fill(n, func(i int) { n.Labels[prefix+short(i)] = "" })
}

// fill adds to a Node until it has its size.
func fill(n *corev1.Node, add func(i int)) {
	for i := 0; n.Size() < MaxSize-100<<10; {
		for range 1000 {
			add(i)
			i++
		}
	}
}

const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

// short is another name for each number, the short ones first.
func short(i int) string {
	var name strings.Builder
	name.WriteString(string(alphabet[i%len(alphabet)]))
	for i /= len(alphabet); i > 0; i /= len(alphabet) {
		i--
		name.WriteString(string(alphabet[i%len(alphabet)]))
	}
	return name.String()
}
