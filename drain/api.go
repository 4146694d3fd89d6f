package drain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

const (
	// evictTimeout bounds one eviction. The server itself retries conflicts on
	// a budget for up to 10 s, and webhooks may take 30 s.
	evictTimeout = time.Minute
	// listPage is how many pods one LIST returns: more than a node holds.
	listPage = 500
	// maxMessage bounds a Blocker's message, in bytes.
	maxMessage = 400
)

// listWatch lists and watches the pods of one node for the reflector.
type listWatch struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported makes the reflector begin with a LIST: it
// works alike on every server we are written for, while a streamed list costs
// those that do not know it two more requests.
func (listWatch) IsWatchListSemanticsUnSupported() bool { return true }

func (d *Drainer) selector() string {
	return fields.OneTermEqualSelector("spec.nodeName", d.node).String()
}

// watch keeps v up to date until ctx ends. The reflector resumes a watch that
// ended and lists anew after one that broke, with growing delay.
func (d *Drainer) watch(ctx context.Context, v *view) {
	logger := logr.FromSlogHandler(endQuietly{d.logger.Handler(), ctx})
	pods := d.client.CoreV1().Pods(metav1.NamespaceAll)
	lw := listWatch{&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			// The reflector would begin with "0", anything an API server's cache
			// happens to hold. An old and empty list would end the drain.
			if o.ResourceVersion == "0" {
				o.ResourceVersion = ""
			}
			o.FieldSelector = d.selector()
			list, err := pods.List(ctx, o)
			v.heard(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = d.selector()
			w, err := pods.Watch(ctx, o)
			v.heard(err)
			return w, err
		},
	}}
	cache.NewReflectorWithOptions(lw, &corev1.Pod{}, v, cache.ReflectorOptions{
		Name:   "drain",
		Logger: &logger,
		// As the API server's own choice: half an hour to an hour, not five minutes.
		MinWatchTimeout: 30 * time.Minute,
	}).RunWithContext(klog.NewContext(ctx, logger))
}

// endQuietly holds back what the reflector says when its context ends in the
// middle of a watch, which is how every drain ends: an error, "Failed to
// watch". Everything else, and the same words at any other time, goes through.
type endQuietly struct {
	slog.Handler
	ctx context.Context
}

func (h endQuietly) Handle(ctx context.Context, r slog.Record) error {
	if h.ctx.Err() != nil {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

func (h endQuietly) WithAttrs(attrs []slog.Attr) slog.Handler {
	return endQuietly{h.Handler.WithAttrs(attrs), h.ctx}
}

func (h endQuietly) WithGroup(name string) slog.Handler {
	return endQuietly{h.Handler.WithGroup(name), h.ctx}
}

// eachPod lists the node's pods from the quorum.
func (d *Drainer) eachPod(ctx context.Context, f func(*corev1.Pod)) error {
	o := metav1.ListOptions{FieldSelector: d.selector(), Limit: listPage}
	for {
		list, err := d.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, o)
		if err != nil {
			return err
		}
		for i := range list.Items {
			if p := &list.Items[i]; p.Spec.NodeName == d.node {
				f(p)
			}
		}
		if o.Continue = list.Continue; o.Continue == "" {
			return nil
		}
	}
}

// apiEvictor sends evictions to the API server.
type apiEvictor struct {
	client kubernetes.Interface
	force  bool
}

func (a apiEvictor) evict(ctx context.Context, p Pod) answer {
	ctx, cancel := context.WithTimeout(ctx, evictTimeout)
	defer cancel()
	if a.force {
		// With the pod's own grace period: what a budget forbids is forced, a
		// process still gets the time that it asks for.
		return answerOf(a.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
			Preconditions: metav1.NewUIDPreconditions(string(p.UID)),
		}))
	}
	// Not EvictV1: client-go repeats a request by itself, up to ten times, when
	// the answer has a Retry-After (a budget that is being worked on says 10 s).
	// That would hold one of few places for minutes and hide the blocker.
	err := a.client.CoreV1().RESTClient().Post().
		MaxRetries(0).
		AbsPath("/api/v1").
		Namespace(p.Namespace).
		Resource("pods").
		Name(p.Name).
		SubResource("eviction").
		Body(&policyv1.Eviction{
			ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
			// Without the UID a later pod of the same name would be hit.
			DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID))},
		}).
		Do(ctx).
		Error()
	return answerOf(err)
}

// answerOf reads the API server's answer to an eviction.
func answerOf(err error) answer {
	if err == nil {
		return answer{kind: accepted}
	}
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || status.Status().Code == 0 {
		return answer{kind: later, reason: Unreachable, message: tidy(err.Error())}
	}
	s := status.Status()
	a := answer{kind: later, reason: ServerError, message: wordsOf(s)}
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		a.retryAfter = time.Duration(seconds) * time.Second
	}
	switch {
	case s.Code == http.StatusNotFound, s.Code == http.StatusConflict:
		a.kind, a.reason = gone, Refused
	case (s.Code == http.StatusTooManyRequests || s.Code == http.StatusForbidden) &&
		apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause):
		// 403 says that the budget's own status is invalid: a negative number of allowed disruptions, or too many
		// evictions that its controller has not confirmed. Since Kubernetes 1.37 it names the budget as a cause.
		a.reason, a.budget = PodDisruptionBudget, budgetOf(s)
	case s.Code == http.StatusTooManyRequests:
		a.reason = TooManyRequests
	case s.Code == http.StatusInternalServerError:
		a.kind = refused
	case s.Code < http.StatusInternalServerError:
		a.kind, a.reason = refused, Refused
	}
	return a
}

// wordsOf is what the server said. The causes name the budget and its
// figures, which the message does not.
func wordsOf(s metav1.Status) string {
	var causes []string
	if s.Details != nil {
		for _, c := range s.Details.Causes {
			if c.Type == policyv1.DisruptionBudgetCause && c.Message != "" {
				causes = append(causes, c.Message)
			}
		}
	}
	if len(causes) > 0 {
		return tidy(strings.Join(causes, "; "))
	}
	if s.Message == "" {
		return fmt.Sprintf("the API server answered %d", s.Code)
	}
	return tidy(s.Message)
}

// budgetName finds the budget's name in a cause of the API server's; see
// pkg/registry/core/pod/storage/eviction.go in Kubernetes.
var budgetName = regexp.MustCompile(`^The disruption budget (\S{1,253}) `)

// budgetOf returns the name of the first budget that a refusal names, or "".
func budgetOf(s metav1.Status) string {
	if s.Details == nil {
		return ""
	}
	for _, c := range s.Details.Causes {
		if m := budgetName.FindStringSubmatch(c.Message); m != nil && c.Type == policyv1.DisruptionBudgetCause {
			return tidy(m[1])
		}
	}
	return ""
}

// tidy makes foreign words one printable line of at most maxMessage bytes.
func tidy(s string) string {
	s = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(s, "?"), func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}), " ")
	if len(s) <= maxMessage {
		return s
	}
	const more = "…"
	cut := maxMessage - len(more)
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + more
}
