package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// RenewAt is when a credential that was issued and expires then is to be
// renewed: when a third of its life is left.
func RenewAt(issued, expires time.Time) time.Time {
	return expires.Add(-expires.Sub(issued) / 3)
}

// WarnAt is from when on a person is to be warned of its end: when a quarter
// of its life is left, at most a week. Nothing that renews itself comes here.
func WarnAt(issued, expires time.Time) time.Time {
	return expires.Add(-min(expires.Sub(issued)/4, 7*24*time.Hour))
}

// retryAfter is how long to wait after a renewal that failed, with so much of
// the credential's life left.
func retryAfter(left time.Duration) time.Duration {
	return min(max(left/10, 10*time.Second), time.Hour)
}

// Why a renewal failed, where somebody can do something about it.
var (
	// ErrNotAllowed: the manifests were applied with --no-renewal, or never.
	ErrNotAllowed = errors.New("the coordinator may not renew its own token")
	// ErrNotWritable: the renewed token cannot be written.
	ErrNotWritable = errors.New("the renewed token cannot be written")
)

// Renew uses the token in effect to ask the API server for another token of the
// same service account, valid for as long as that one was. It writes the new token
// to f.Renewed, whole or not at all, with mode 0600, and returns the credential
// that is then in effect. The new token belongs to the kubeconfig's content at the
// beginning of the call, so it is not in effect if another process replaces the
// kubeconfig meanwhile. Renew only renews a credential without a Foreign. wrap may
// be nil; it goes around each request.
//
// After an error the files are as they were. Renew does not ask the API server if
// it cannot write the file.
func Renew(ctx context.Context, f Files, version string, wrap func(http.RoundTripper) http.RoundTripper) (Info, error) {
	info, kubeconfig, err := f.read()
	if err != nil {
		return Info{}, err
	}
	if info.Foreign != "" {
		return Info{}, errors.New(info.Foreign)
	}
	// systemd makes the state directory, but only when it runs the service.
	if err := os.MkdirAll(filepath.Dir(f.Renewed), 0o700); err != nil {
		return Info{}, fmt.Errorf("%w: %w", ErrNotWritable, err)
	}
	file, err := createFile(f.Renewed)
	if err != nil {
		return Info{}, fmt.Errorf("%w: %w", ErrNotWritable, err)
	}
	defer file.drop()
	token, err := another(ctx, f.Kubeconfig, version, &info, wrap)
	if err != nil {
		return Info{}, err
	}
	next := Info{Kind: KindToken, Token: token}
	next.token()
	if next.Foreign != "" || next.User != info.User || !next.Expires.After(info.Expires) {
		return Info{}, fmt.Errorf("the API server gave a token of %q until %s, expected one of %q until later than %s",
			next.User, stamp(next.Expires), info.User, stamp(info.Expires))
	}
	text, err := json.Marshal(renewed{Kubeconfig: digest(kubeconfig), Token: token})
	if err == nil {
		err = file.commit(text)
	}
	if err != nil {
		return Info{}, fmt.Errorf("%w: %w", ErrNotWritable, err)
	}
	info.Token, info.Issued, info.Expires = next.Token, next.Issued, next.Expires
	return info, nil
}

// another uses the token in effect to ask for another token.
func another(ctx context.Context, file, version string, info *Info, wrap func(http.RoundTripper) http.RoundTripper) (string, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return "", err
	}
	cfg.BearerToken = info.Token
	if wrap != nil {
		cfg.Wrap(wrap)
	}
	client, err := ConnectConfig(cfg, "coordinator", version, 1, 1)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	life := min(info.Life(), v1alpha1.MaxTokenLifetime)
	r, err := client.CoreV1().ServiceAccounts(info.Namespace).CreateToken(ctx, v1alpha1.CoordinatorServiceAccount, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(life / time.Second))},
	}, metav1.CreateOptions{FieldManager: FieldManager("coordinator")})
	if apierrors.IsForbidden(err) {
		return "", fmt.Errorf("%w: %w", ErrNotAllowed, err)
	}
	if err != nil {
		return "", fmt.Errorf("asking for another token: %w", err)
	}
	return r.Status.Token, nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
