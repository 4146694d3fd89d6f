package controlplane

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// AgedCoordinatorToken returns a token of lockkeeper's coordinator with these times of issue and expiry. It is signed with the API server's
// own key, because the API server issues no token for less than ten minutes and none that is already old. Tests of the renewal start with
// it. lockkeeper's objects must have been applied.
func (cp *ControlPlane) AgedCoordinatorToken(ctx context.Context, issued, expires time.Time) (string, error) {
	account, err := cp.Client().CoreV1().ServiceAccounts(LockkeeperNamespace).Get(ctx, v1alpha1.CoordinatorServiceAccount, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("reading the coordinator's service account: %w", err)
	}
	const issuer = "https://kubernetes.default.svc" // equals the API server's flag --service-account-issuer
	return cp.sign(map[string]any{
		"iss": issuer, "aud": []string{issuer}, "sub": CoordinatorUser,
		"iat": issued.Unix(), "nbf": issued.Unix(), "exp": expires.Unix(),
		"kubernetes.io": map[string]any{
			"namespace": LockkeeperNamespace, "serviceaccount": map[string]any{"name": account.Name, "uid": account.UID},
		},
	})
}

// WithToken returns the same kubeconfig with another token.
func WithToken(kubeconfig []byte, token string) ([]byte, error) {
	config, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading a kubeconfig: %w", err)
	}
	for _, user := range config.AuthInfos {
		user.Token = token
	}
	return clientcmd.Write(*config)
}

// sign creates a JSON Web Token (RFC 7519), signed with ES256.
func (cp *ControlPlane) sign(claims map[string]any) (string, error) {
	text, err := os.ReadFile(cp.dir.Join("pki", "sa.key"))
	if err != nil {
		return "", fmt.Errorf("reading the key for service accounts: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return "", fmt.Errorf("the key for service accounts is not PEM")
	}
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		return "", fmt.Errorf("parsing the key for service accounts: %w", err)
	}
	body, err := json.Marshal(claims)
	if err != nil {
		return "", fmt.Errorf("encoding a token: %w", err)
	}
	enc := base64.RawURLEncoding.EncodeToString
	signed := enc([]byte(`{"alg":"ES256","typ":"JWT"}`)) + "." + enc(body)
	sum := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, key, sum[:])
	if err != nil {
		return "", fmt.Errorf("signing a token: %w", err)
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return signed + "." + enc(signature), nil
}
