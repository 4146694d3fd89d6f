package credential

import (
	"context"
	"fmt"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
)

// tokenPolicy is the admission policy in the manifests that limits the tokens that the
// coordinator's service account may request.
const tokenPolicy = "lockkeeper-coordinator-token"

// proveRenewal uses the minted token to request another one, as a coordinator does, and
// drops the answer. It returns why the token cannot renew itself and what to do about it,
// or "" if it can.
func proveRenewal(ctx context.Context, admin *rest.Config, o *Options, minted *authenticationv1.TokenRequest) string {
	cfg := rest.AnonymousClientConfig(admin)
	cfg.BearerToken = minted.Status.Token
	client, err := kube.ConnectConfig(cfg, "coordinator", o.Version, 20, 40)
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, kube.Timeout)
		defer cancel()
		// A dry run goes through admission, but still returns a real token.
		_, err = client.CoreV1().ServiceAccounts(o.Namespace).CreateToken(ctx, v1alpha1.CoordinatorServiceAccount, &authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: minted.Spec.ExpirationSeconds},
		}, metav1.CreateOptions{FieldManager: kube.FieldManager("coordinator"), DryRun: []string{metav1.DryRunAll}})
	}
	switch {
	case err == nil:
		return ""
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "'"+tokenPolicy+"'"):
		return fmt.Sprintf("it cannot renew itself: the admission policy %s does not know this API server's audience. "+
			"The token itself is valid. Run this, with the other options that you gave `lockkeeper manifests` before: %s", tokenPolicy, o.applies(minted.Spec.Audiences))
	case apierrors.IsForbidden(err):
		return "it does not renew itself: RBAC does not let the coordinator ask for tokens, as with `lockkeeper manifests --no-renewal`. Put a new token in its place before it expires"
	default:
		return fmt.Sprintf("cannot find out whether it can renew itself: %v", err)
	}
}

// applies returns the command that applies the manifests with these audiences to the caller's cluster.
func (o *Options) applies(audiences []string) string {
	var b strings.Builder
	if o.Namespace != v1alpha1.DefaultLeaseNamespace {
		b.WriteString(" --namespace " + o.Namespace)
	}
	for _, a := range audiences {
		b.WriteString(" --audience '" + a + "'")
	}
	return "lockkeeper manifests" + b.String() + " | kubectl" + o.Kubectl + " apply -f -"
}
