package credential

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
)

const (
	// askEvery is how often the API server is asked whether it was signed.
	askEvery = time.Second
	// waitAtMost is how long a request that nobody approves is waited for;
	// Kubernetes forgets one after a day.
	waitAtMost = 24 * time.Hour
	// signWithin is after what time an approved request that nobody signs is
	// spoken of.
	signWithin = 20 * time.Second
	// backdate is by how much a signer may let a certificate end sooner than
	// asked for: Kubernetes' own takes off five minutes.
	backdate = 6 * time.Minute
)

// signed has a client certificate signed through the CertificateSigningRequest
// API. It approves the request itself where it may, and says what somebody
// else has to do where it may not. The request goes when it waits no more.
func signed(ctx context.Context, admin *rest.Config, o Options) (*clientcmdapi.AuthInfo, *x509.Certificate, error) {
	key, request, err := newRequest()
	if err != nil {
		return nil, nil, fmt.Errorf("making a certificate request: %w", err)
	}
	client, err := kube.ConnectConfig(admin, "admin", o.Version, 20, 40)
	if err != nil {
		return nil, nil, err
	}
	csrs := client.CertificatesV1().CertificateSigningRequests()
	short := func() (context.Context, context.CancelFunc) { return context.WithTimeout(ctx, kube.Timeout) }
	callCtx, cancel := short()
	csr, err := csrs.Create(callCtx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "lockkeeper-coordinator-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: request, SignerName: certificatesv1.KubeAPIServerClientSignerName,
			ExpirationSeconds: new(int32(seconds(o.Lifetime))),
			Usages:            []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{FieldManager: kube.FieldManager("admin")})
	cancel()
	if err != nil {
		return nil, nil, fmt.Errorf("asking for a certificate: %w", err)
	}
	name := csr.Name
	done := false
	defer func() {
		if !done { // with the key gone nobody could use what would be signed
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), kube.Timeout)
			defer cancel()
			_ = csrs.Delete(ctx, name, metav1.DeleteOptions{}) // who may not leaves it to Kubernetes, which forgets it after a day
		}
	}()

	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue,
		Reason: "LockkeeperKubeconfig", Message: "approved by whoever ran `lockkeeper kubeconfig --csr`",
	})
	callCtx, cancel = short()
	_, err = csrs.UpdateApproval(callCtx, name, csr, metav1.UpdateOptions{FieldManager: kube.FieldManager("admin")})
	cancel()
	switch {
	case apierrors.IsForbidden(err):
		o.tell(fmt.Sprintf("your credential may not approve it; waits for somebody who may: kubectl certificate approve %s", name))
	case err != nil:
		return nil, nil, fmt.Errorf("approving certificate request %s: %w", name, err)
	}
	leaf, text, err := o.await(ctx, name, csrs.Get)
	if err != nil {
		return nil, nil, err
	}
	if public, ok := leaf.PublicKey.(*ecdsa.PublicKey); !ok || !public.Equal(&key.PublicKey) || leaf.Subject.CommonName != v1alpha1.CoordinatorCertificateUser {
		return nil, nil, fmt.Errorf("certificate request %s: what was signed is another key's, or %q's", name, leaf.Subject.CommonName)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encoding the certificate's key: %w", err)
	}
	done = true
	return &clientcmdapi.AuthInfo{
		ClientCertificateData: text, ClientKeyData: pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}),
	}, leaf, nil
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

type getCSR = func(context.Context, string, metav1.GetOptions) (*certificatesv1.CertificateSigningRequest, error)

// await waits until the request is signed, denied or gone, or ctx ends. An API
// server that does not answer is asked again.
func (o *Options) await(ctx context.Context, name string, get getCSR) (*x509.Certificate, []byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, waitAtMost, errors.New("nobody has approved it"))
	defer cancel()
	var approved time.Time
	told := false
	for {
		callCtx, done := context.WithTimeout(ctx, kube.Timeout)
		csr, err := get(callCtx, name, metav1.GetOptions{})
		done()
		switch {
		case ctx.Err() != nil:
		case apierrors.IsNotFound(err):
			return nil, nil, fmt.Errorf("certificate request %s is gone, and was not signed", name)
		case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
			return nil, nil, fmt.Errorf("reading certificate request %s: %w", name, err)
		case err != nil:
		case len(csr.Status.Certificate) > 0:
			block, _ := pem.Decode(csr.Status.Certificate)
			if block == nil {
				return nil, nil, fmt.Errorf("certificate request %s: what was signed is no PEM", name)
			}
			leaf, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, nil, fmt.Errorf("certificate request %s: %w", name, err)
			}
			return leaf, csr.Status.Certificate, nil
		default:
			for _, c := range csr.Status.Conditions {
				switch c.Type {
				case certificatesv1.CertificateDenied, certificatesv1.CertificateFailed:
					return nil, nil, fmt.Errorf("certificate request %s: %s: %s: %s", name, c.Type, c.Reason, c.Message)
				case certificatesv1.CertificateApproved:
					if approved.IsZero() {
						approved = time.Now()
					}
				}
			}
			if !told && !approved.IsZero() && time.Since(approved) > signWithin {
				told = true
				o.tell(fmt.Sprintf("certificate request %s is approved, and nobody signs it: this cluster may have no signer %s; goes on waiting", name, certificatesv1.KubeAPIServerClientSignerName))
			}
		}
		t := time.NewTimer(askEvery)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil, nil, fmt.Errorf("waiting for certificate request %s to be signed: %w; it is withdrawn", name, context.Cause(ctx))
		case <-t.C:
		}
	}
}
