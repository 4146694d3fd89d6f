package identity

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"testing"

	admissionreview "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// A guard is an admission webhook that refuses what a host writes on its Node.
type guard struct {
	t      *testing.T
	server *httptest.Server
}

const guardName = "identity-guard"

const guardMessage = "this machine is guarded"

// newGuard returns when the API server has been seen to ask the webhook.
func newGuard(t *testing.T, name string) *guard {
	t.Helper()
	g := &guard{t: t}
	g.server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionreview.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &admissionreview.AdmissionResponse{UID: review.Request.UID, Result: &metav1.Status{Message: guardMessage}}
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(g.server.Close)
	url := g.server.URL
	fail, none, seconds := admissionv1.Fail, admissionv1.SideEffectClassNone, int32(10)
	_, err := g.hooks().Create(t.Context(), &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: guardName},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "guard.example.com",
			ClientConfig: admissionv1.WebhookClientConfig{URL: &url, CABundle: pem.EncodeToMemory(&pem.Block{
				Type: "CERTIFICATE", Bytes: g.server.Certificate().Raw})},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Update},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"nodes"}},
			}},
			MatchConditions: []admissionv1.MatchCondition{{Name: "guarded", Expression: `object.metadata.name == "` + name + `"`}},
			FailurePolicy:   &fail, SideEffects: &none, TimeoutSeconds: &seconds, AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(g.lift)
	must(t, cp.WaitRefused(within(t), guardMessage, func(ctx context.Context) error {
		return node(name, label(v1alpha1.LabelWants, `"nothing"`))(ctx, asHost(t, name))
	}))
	return g
}

func (g *guard) hooks() interface {
	Create(context.Context, *admissionv1.ValidatingWebhookConfiguration, metav1.CreateOptions) (*admissionv1.ValidatingWebhookConfiguration, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
} {
	return cp.Client().AdmissionregistrationV1().ValidatingWebhookConfigurations()
}

// away has no one answer where the webhook was.
func (g *guard) away() { g.server.Close() }

// lift takes it away.
func (g *guard) lift() {
	if err := g.hooks().Delete(context.Background(), guardName, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		g.t.Error(err)
	}
}
