package kube

import (
	"errors"
	"net/http"

	appsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
	authenticationv1 "k8s.io/client-go/kubernetes/typed/authentication/v1"
	certificatesv1 "k8s.io/client-go/kubernetes/typed/certificates/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	eventsv1 "k8s.io/client-go/kubernetes/typed/events/v1"
	policyv1 "k8s.io/client-go/kubernetes/typed/policy/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

// API is the part of client-go's kubernetes.Interface that lockkeeper uses. If it used all of that, the linker would keep
// the clients of every group: help texts are templates, and those may call any method by its name.
type API interface {
	AppsV1() appsv1.AppsV1Interface
	AuthenticationV1() authenticationv1.AuthenticationV1Interface
	CertificatesV1() certificatesv1.CertificatesV1Interface
	CoordinationV1() coordinationv1.CoordinationV1Interface
	CoreV1() corev1.CoreV1Interface
	EventsV1() eventsv1.EventsV1Interface
	PolicyV1() policyv1.PolicyV1Interface
}

// groups is the API over one HTTP client.
type groups struct {
	apps           *appsv1.AppsV1Client
	authentication *authenticationv1.AuthenticationV1Client
	certificates   *certificatesv1.CertificatesV1Client
	coordination   *coordinationv1.CoordinationV1Client
	core           *corev1.CoreV1Client
	events         *eventsv1.EventsV1Client
	policy         *policyv1.PolicyV1Client
}

func (g *groups) AppsV1() appsv1.AppsV1Interface { return g.apps }
func (g *groups) AuthenticationV1() authenticationv1.AuthenticationV1Interface {
	return g.authentication
}
func (g *groups) CertificatesV1() certificatesv1.CertificatesV1Interface { return g.certificates }
func (g *groups) CoordinationV1() coordinationv1.CoordinationV1Interface { return g.coordination }
func (g *groups) CoreV1() corev1.CoreV1Interface                         { return g.core }
func (g *groups) EventsV1() eventsv1.EventsV1Interface                   { return g.events }
func (g *groups) PolicyV1() policyv1.PolicyV1Interface                   { return g.policy }

// newAPI returns clients that share one HTTP client and the limits of cfg.
func newAPI(cfg *rest.Config, client *http.Client) (API, error) {
	cfg = rest.CopyConfig(cfg)
	if cfg.QPS > 0 {
		cfg.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(cfg.QPS, cfg.Burst)
	}
	var errs []error
	g := &groups{
		apps:           connect(appsv1.NewForConfigAndClient, cfg, client, &errs),
		authentication: connect(authenticationv1.NewForConfigAndClient, cfg, client, &errs),
		certificates:   connect(certificatesv1.NewForConfigAndClient, cfg, client, &errs),
		coordination:   connect(coordinationv1.NewForConfigAndClient, cfg, client, &errs),
		core:           connect(corev1.NewForConfigAndClient, cfg, client, &errs),
		events:         connect(eventsv1.NewForConfigAndClient, cfg, client, &errs),
		policy:         connect(policyv1.NewForConfigAndClient, cfg, client, &errs),
	}
	return g, errors.Join(errs...)
}

// connect returns the client of a group, and adds an error to errs.
func connect[T any](newGroup func(*rest.Config, *http.Client) (T, error), cfg *rest.Config, client *http.Client, errs *[]error) T {
	g, err := newGroup(cfg, client)
	if err != nil {
		*errs = append(*errs, err)
	}
	return g
}
