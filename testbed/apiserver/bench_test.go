package apiserver_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/testbed/apiserver"
)

// BenchmarkPatch measures a patch of a Node with its watch events: each of fifty hosts watches its own Node, and one coordinator all.
func BenchmarkPatch(b *testing.B) {
	s := apiserver.New()
	t := b
	_ = synctest.Wait
	c := connect(t, s, "admin")
	for i := range 50 {
		n := node(fmt.Sprint("n", i))
		n.Status.Conditions = []corev1.NodeCondition{{Type: "Ready", Status: "True"}}
		for j := range 20 {
			n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{fmt.Sprint("image", j)}})
		}
		_, err := c.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{})
		must(t, err)
		go kube.WatchNode(c, n.Name, func() {}).Run(b.Context())
	}
	go kube.WatchNodes(c, func() {}, nil).Run(b.Context())
	for i := 0; b.Loop(); i++ {
		label(t, c, fmt.Sprint("n", i%50), fmt.Sprint(i))
	}
}
