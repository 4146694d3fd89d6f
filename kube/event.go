package kube

import (
	"context"
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
// that is what Kubernetes lets them create; both APIs show the same Events. at is when
// it happened. The key tells one Event from another: of one that is there already
// nothing is written, and there is no error.
func WriteNodeEvent(ctx context.Context, client *Client, node, uid, key string, at time.Time, d v1alpha1.EventDoc, note string) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	then := metav1.NewTime(at)
	if len(note) > maxNote {
		note = strings.ToValidUTF8(note[:maxNote], "")
	}
	name := fnv.New64a()
	name.Write([]byte(uid + " " + key))
	_, err := client.CoreV1().Events(metav1.NamespaceDefault).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprintf("%s.%016x", node, name.Sum64()), Namespace: metav1.NamespaceDefault},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(uid)},
		Reason:         d.Reason, Message: note, Type: d.Type(), Action: d.Action, Count: 1,
		FirstTimestamp: then, LastTimestamp: then, EventTime: metav1.NewMicroTime(at),
		Source:              corev1.EventSource{Component: "lockkeeper", Host: node},
		ReportingController: hostController, ReportingInstance: node,
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("writing the Event %s: %w", d.Reason, err)
	}
	return nil
}
