package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// hostController is the host's name in its Events.
const hostController = "lockkeeper.dev/host"

// maxNote bounds an Event's note, in bytes; the API takes 1 KiB.
const maxNote = 1000

// maxEventName bounds an Event's name, in bytes.
const maxEventName = 253

// ErrEventRefused is in the error of an Event that the API server will not accept later either.
var ErrEventRefused = errors.New("the API server does not accept this Event")

// WriteHostEvent writes an Event of the host of that Node, with the host's credential, about its Node
// or one of its pods: Kubernetes lets every kubelet create Events. The Event is of the core
// API, because that is what Kubernetes lets them create; both APIs show the same Events. at is
// when it happened. The key distinguishes the Events about one object: if there is one of that
// key already, nothing is written, and there is no error.
func WriteHostEvent(ctx context.Context, client *Client, node string, about corev1.ObjectReference, key string, at time.Time, d v1alpha1.EventDoc, note string) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	then := metav1.NewTime(at)
	if len(note) > maxNote {
		note = strings.ToValidUTF8(note[:maxNote], "")
	}
	hash := fnv.New64a()
	hash.Write([]byte(string(about.UID) + " " + key))
	suffix := fmt.Sprintf(".%016x", hash.Sum64())
	name := strings.TrimRight(about.Name[:min(len(about.Name), maxEventName-len(suffix))], "-.") + suffix
	namespace := cmp.Or(about.Namespace, metav1.NamespaceDefault)
	_, err := client.CoreV1().Events(namespace).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: name, Namespace: namespace},
		InvolvedObject: about,
		Reason:         d.Reason, Message: note, Type: d.Type(), Action: d.Action, Count: 1,
		FirstTimestamp: then, LastTimestamp: then, EventTime: metav1.NewMicroTime(at),
		Source:              corev1.EventSource{Component: "lockkeeper", Host: node},
		ReportingController: hostController, ReportingInstance: node,
	}, metav1.CreateOptions{})
	switch {
	case err == nil, apierrors.IsAlreadyExists(err):
		return nil
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause), apierrors.IsNotFound(err), apierrors.IsInvalid(err):
		return fmt.Errorf("writing the Event %s: %w: %w", d.Reason, ErrEventRefused, err)
	}
	return fmt.Errorf("writing the Event %s: %w", d.Reason, err)
}
