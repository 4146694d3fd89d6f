package drain

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/kube"
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

// selector selects the pods of the node.
func (d *Drainer) selector() string {
	return fields.OneTermEqualSelector("spec.nodeName", d.Node).String()
}

// eachPod lists the node's pods from the quorum.
func (d *Drainer) eachPod(ctx context.Context, f func(*corev1.Pod)) error {
	o := metav1.ListOptions{FieldSelector: d.selector(), Limit: listPage}
	for {
		list, err := d.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, o)
		if err == nil {
			err = kube.VerifyList(list)
		}
		if err != nil {
			return err
		}
		for i := range list.Items {
			if p := &list.Items[i]; p.Spec.NodeName == d.Node {
				f(p)
			}
		}
		if o.Continue = list.Continue; o.Continue == "" {
			return nil
		}
	}
}

// apiEvictor sends evictions to the API server. With force, it deletes what the API server refuses to evict.
type apiEvictor struct {
	client  Client
	force   bool
	deleted func(p Pod, refusal string) // called for each deletion that the API server accepted; may be nil
}

func (a apiEvictor) evict(ctx context.Context, f facts) answer {
	ctx, cancel := context.WithTimeout(kube.Once(ctx), evictTimeout)
	defer cancel()
	// Without the UID it could hit a later pod of the same name.
	options := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(f.UID))}
	if f.grace == 0 {
		// With a grace period of 0 the API server forgets the pod at once, although its containers still run and
		// write. kubectl's deletions use 1 s as well.
		options.GracePeriodSeconds = new(int64(1))
	}
	evicted := answerOf(a.postEviction(ctx, f.Pod, options))
	if !a.force || !evicted.refusal() {
		return evicted
	}
	deleted := answerOf(a.deletePod(ctx, f.Pod, options))
	if deleted.kind == accepted {
		deleted.overruled = evicted.message
		if a.deleted != nil {
			a.deleted(f.Pod, evicted.message)
		}
	}
	return deleted
}

// refusal reports whether the API server refused to evict this pod, now or altogether. An API server that is busy or
// away has refused nothing.
func (a answer) refusal() bool {
	return a.kind == refused || a.kind == later && a.reason != TooManyRequests && a.reason != Unreachable
}

// postEviction sends one eviction.
func (a apiEvictor) postEviction(ctx context.Context, p Pod, options metav1.DeleteOptions) error {
	return once(a.client.CoreV1().RESTClient().Post(), p).
		SubResource("eviction").
		Body(&policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
			DeleteOptions: &options,
		}).
		Do(ctx).
		Error()
}

// deletePod sends one deletion. If it fails, the next one follows an eviction that is refused again.
func (a apiEvictor) deletePod(ctx context.Context, p Pod, options metav1.DeleteOptions) error {
	return once(a.client.CoreV1().RESTClient().Delete(), p).Body(&options).Do(ctx).Error()
}

// once makes r a request about a pod that is sent only once. Its context is one of [kube.Once]. The typed methods, such as EvictV1, repeat a request by
// themselves, up to ten times, if the answer has a Retry-After (10 s while the budget's controller works on it). That
// would block one of few evictions under way for minutes, and hide the blocker.
func once(r *rest.Request, p Pod) *rest.Request {
	return r.MaxRetries(0).AbsPath("/api/v1").Namespace(p.Namespace).Resource("pods").Name(p.Name)
}

// answerOf reads the API server's answer to an eviction.
func answerOf(err error) answer {
	if err == nil {
		return answer{kind: accepted}
	}
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || status.Status().Code == 0 {
		return answer{kind: later, reason: Unreachable, message: tidy(err.Error(), maxMessage)}
	}
	s := status.Status()
	a := answer{kind: later, reason: ServerError, message: messageOf(s)}
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		a.retryAfter = time.Duration(seconds) * time.Second
	}
	switch {
	case webhookDenial.MatchString(s.Message):
		a.kind, a.reason = refused, Refused // with any status: KubeVirt's webhook answers 429
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
		if a.kind = refused; strings.Contains(a.message, severalBudgets) {
			a.reason = PodDisruptionBudget
		}
	case s.Code == http.StatusBadGateway, s.Code == http.StatusServiceUnavailable:
		a.reason = Unreachable // a 504 is not: the API server gives it after conflicts on the budget
	case s.Code < http.StatusInternalServerError:
		a.kind, a.reason = refused, Refused
	}
	return a
}

// webhookDenial finds the answer of an admission webhook that refuses, whose code the webhook chooses; see
// pkg/admission/plugin/webhook/errors in Kubernetes' apiserver.
var webhookDenial = regexp.MustCompile(`^admission webhook "[^"]+" denied the request`)

// messageOf returns the server's message. The causes name the budget and its figures, which the
// status's own message does not.
func messageOf(s metav1.Status) string {
	var causes []string
	if s.Details != nil {
		for _, c := range s.Details.Causes {
			if c.Type == policyv1.DisruptionBudgetCause && c.Message != "" {
				causes = append(causes, c.Message)
			}
		}
	}
	if len(causes) > 0 {
		return tidy(strings.Join(causes, "; "), maxMessage)
	}
	if s.Message == "" {
		return fmt.Sprintf("the API server answered %d", s.Code)
	}
	return tidy(s.Message, maxMessage)
}

// budgetName finds the budget's name in a cause of the API server's; see
// pkg/registry/core/pod/storage/eviction.go in Kubernetes.
var budgetName = regexp.MustCompile(`^The disruption budget (\S+) `)

// budgetOf returns the name of the first budget that a refusal names, or "".
func budgetOf(s metav1.Status) string {
	if s.Details == nil {
		return ""
	}
	for _, c := range s.Details.Causes {
		if m := budgetName.FindStringSubmatch(c.Message); m != nil && c.Type == policyv1.DisruptionBudgetCause {
			return tidy(m[1], maxMessage)
		}
	}
	return ""
}

// tidy returns a foreign text as one printable line of at most limit bytes.
func tidy(s string, limit int) string {
	s = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(s, "?"), func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}), " ")
	if len(s) <= limit {
		return s
	}
	const more = "…"
	cut := limit - len(more)
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + more
}
