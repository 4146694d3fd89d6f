package object

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// hostController is the host's name in its Events.
const hostController = "lockkeeper.dev/host"

// maxNote bounds an Event's note, in bytes; the API takes 1 KiB.
const maxNote = 1000

// WriteNodeEvent writes an Event about a host's own Node, with the host's credential:
// Kubernetes lets every kubelet create Events. The Event is of the core API, because
// that is what Kubernetes lets them create; both APIs show the same Events.
func WriteNodeEvent(ctx context.Context, client *Client, node, uid string, d v1alpha1.EventDoc, note string) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	now := metav1.NewTime(time.Now())
	if len(note) > maxNote {
		note = strings.ToValidUTF8(note[:maxNote], "")
	}
	_, err := client.CoreV1().Events(metav1.NamespaceDefault).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: node + ".", Namespace: metav1.NamespaceDefault},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(uid)},
		Reason:         d.Reason, Message: note, Type: d.Type(), Action: d.Action, Count: 1,
		FirstTimestamp: now, LastTimestamp: now, EventTime: metav1.NewMicroTime(now.Time),
		Source:              corev1.EventSource{Component: "lockkeeper", Host: node},
		ReportingController: hostController, ReportingInstance: node,
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("writing the Event %s: %w", d.Reason, err)
	}
	return nil
}
