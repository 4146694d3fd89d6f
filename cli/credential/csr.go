package credential

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	certificatesclient "k8s.io/client-go/kubernetes/typed/certificates/v1"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
)

const (
	// askEvery is how often the API server is asked whether the request was signed.
	askEvery = time.Second
	// waitAtMost is how long a request waits for its approval. Kubernetes deletes one
	// after a day.
	waitAtMost = 24 * time.Hour
	// signWithin is how long after its approval a request is usually signed. After that
	// Mint reports what may be wrong.
	signWithin = 20 * time.Second
	// backdate is how much earlier than requested a certificate may expire without counting
	// as shortened: Kubernetes' own signer takes off five minutes.
	backdate = 6 * time.Minute
)

// signer requests one client certificate through the CertificateSigningRequest API.
type signer struct {
	Options
	csrs certificatesclient.CertificateSigningRequestInterface
	name string // of the request
}

// signed returns a client certificate that was signed through the
// CertificateSigningRequest API. It approves the request itself if the admin's credential
// may do that, and otherwise says how another admin can. A request that was not signed is
// deleted.
func signed(ctx context.Context, admin *rest.Config, o Options) (*clientcmdapi.AuthInfo, *x509.Certificate, error) {
	key, request, err := newRequest()
	if err != nil {
		return nil, nil, fmt.Errorf("making a certificate request: %w", err)
	}
	client, err := kube.ConnectConfig(admin, "admin", o.Version, 20, 40)
	if err != nil {
		return nil, nil, err
	}
	s := &signer{Options: o, csrs: client.CertificatesV1().CertificateSigningRequests()}
	csr, err := s.create(ctx, request)
	if err != nil {
		return nil, nil, fmt.Errorf("requesting a certificate: %w", err)
	}
	s.name = csr.Name
	leaf, text, err := s.obtain(ctx, csr, key)
	if err != nil {
		// Without the key, a certificate that is signed later is of no use.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), kube.Timeout)
		defer cancel()
		_ = s.csrs.Delete(ctx, s.name, metav1.DeleteOptions{}) // if this fails, Kubernetes deletes the request after a day
		return nil, nil, err
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encoding the certificate's key: %w", err)
	}
	return &clientcmdapi.AuthInfo{
		ClientCertificateData: text, ClientKeyData: pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}),
	}, leaf, nil
}

func (s *signer) create(ctx context.Context, request []byte) (*certificatesv1.CertificateSigningRequest, error) {
	return s.csrs.Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "lockkeeper-coordinator-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: request, SignerName: certificatesv1.KubeAPIServerClientSignerName,
			ExpirationSeconds: new(int32(seconds(s.Lifetime))),
			Usages:            []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{FieldManager: kube.FieldManager("admin")})
}

// obtain has the request approved, waits until it is signed, and checks what was signed.
func (s *signer) obtain(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, key *ecdsa.PrivateKey) (*x509.Certificate, []byte, error) {
	switch err := s.approve(ctx, csr); {
	case apierrors.IsForbidden(err):
		s.tell("your credential may not approve the request; waiting for an admin who runs: kubectl certificate approve " + s.name)
	case err != nil:
		return nil, nil, fmt.Errorf("approving certificate request %s: %w", s.name, err)
	}
	text, err := s.await(ctx)
	if err != nil {
		return nil, nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, nil, fmt.Errorf("certificate request %s: the signed certificate is not PEM", s.name)
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate request %s: %w", s.name, err)
	}
	if public, ok := leaf.PublicKey.(*ecdsa.PublicKey); !ok || !public.Equal(&key.PublicKey) || leaf.Subject.CommonName != v1alpha1.CoordinatorCertificateUser {
		return nil, nil, fmt.Errorf("certificate request %s: the certificate is for another key, or for %q", s.name, leaf.Subject.CommonName)
	}
	return leaf, text, nil
}

func (s *signer) approve(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) error {
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue,
		Reason: "LockkeeperKubeconfig", Message: "approved by the user who ran `lockkeeper kubeconfig --csr`",
	})
	_, err := s.csrs.UpdateApproval(ctx, s.name, csr, metav1.UpdateOptions{FieldManager: kube.FieldManager("admin")})
	return err
}

func newRequest() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{
		CommonName: v1alpha1.CoordinatorCertificateUser, Organization: []string{v1alpha1.CoordinatorGroup},
	}}, key)
	return key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), err
}

// await waits until the request is signed, denied or gone, or ctx ends, and returns the
// certificate as it was signed. It asks again if the API server does not answer.
func (s *signer) await(ctx context.Context) (text []byte, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, waitAtMost, fmt.Errorf("it was not approved within %v", waitAtMost))
	defer cancel()
	var approved time.Time
	reported := false
	err = wait.PollUntilContextCancel(ctx, askEvery, true, func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, kube.Timeout)
		defer cancel()
		csr, err := s.csrs.Get(ctx, s.name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return false, fmt.Errorf("certificate request %s is gone, and was not signed", s.name)
		case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
			return false, fmt.Errorf("reading certificate request %s: %w", s.name, err)
		case err != nil:
			return false, nil
		case len(csr.Status.Certificate) > 0:
			text = csr.Status.Certificate
			return true, nil
		}
		for _, c := range csr.Status.Conditions {
			switch {
			case c.Type == certificatesv1.CertificateDenied, c.Type == certificatesv1.CertificateFailed:
				return false, fmt.Errorf("certificate request %s: %s: %s: %s", s.name, c.Type, c.Reason, c.Message)
			case c.Type == certificatesv1.CertificateApproved && approved.IsZero():
				approved = time.Now()
			}
		}
		if !reported && !approved.IsZero() && time.Since(approved) > signWithin {
			reported = true
			s.tell(fmt.Sprintf("certificate request %s is approved but not signed: this cluster may have no signer %s; still waiting", s.name, certificatesv1.KubeAPIServerClientSignerName))
		}
		return false, nil
	})
	if ctx.Err() != nil && text == nil {
		return nil, fmt.Errorf("waiting for certificate request %s to be signed: %w; the request is deleted", s.name, context.Cause(ctx))
	}
	return text, err
}
