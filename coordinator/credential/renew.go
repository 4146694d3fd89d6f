package credential

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/object"
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
	// ErrNotWritable: the new kubeconfig cannot be put in the old one's place.
	ErrNotWritable = errors.New("the kubeconfig cannot be replaced where it is")
	// ErrReplaced: somebody else has put another file in its place meanwhile.
	ErrReplaced = errors.New("somebody else has replaced the kubeconfig meanwhile")
)

// Renew asks the API server for another token of the same service account,
// with the one that is in the kubeconfig, valid for as long as that one was,
// and puts it in its place: whole or not at all, under the same mode and
// owner, or for the process alone where it may not keep the owner, which log is
// told. It returns what the file is now. Only a credential without a Foreign is
// renewed. wrap, nil for nothing, goes around each request.
//
// Of a link the file that it leads to is replaced; what the kubeconfig names
// relatively is beside the link, as for every other reader.
//
// Whatever goes wrong, the file stays as it was. Nothing is asked of the API
// server if the file cannot be replaced.
func Renew(ctx context.Context, file, version string, log *slog.Logger, wrap func(http.RoundTripper) http.RoundTripper) (Info, error) {
	path, err := filepath.EvalSymlinks(file)
	if err != nil {
		return Info{}, err
	}
	info, text, err := ReadFile(file)
	if err != nil {
		return Info{}, err
	}
	if info.Foreign != "" {
		return Info{}, errors.New(info.Foreign)
	}
	r, err := replace(path)
	if err != nil {
		return Info{}, err
	}
	defer r.drop()
	token, err := another(ctx, file, version, &info, wrap)
	if err != nil {
		return Info{}, err
	}
	next, err := withToken(text, token)
	if err != nil {
		return Info{}, err
	}
	now, err := inspect(file, next)
	switch {
	case err != nil:
		return Info{}, err
	case now.Foreign != "" || now.User != info.User || !now.Expires.After(info.Expires):
		return Info{}, fmt.Errorf("the API server gave a token of %q until %s, expected one of %q until later than %s",
			now.User, stamp(now.Expires), info.User, stamp(info.Expires))
	}
	if err := r.commit(text, next); err != nil {
		return now, err
	}
	if r.narrowed != "" {
		log.Warn("the renewed kubeconfig is for this service alone to read: "+r.narrowed, "file", path)
	}
	return now, nil
}

// another asks for a token as the bearer of the one in the file.
func another(ctx context.Context, file, version string, info *Info, wrap func(http.RoundTripper) http.RoundTripper) (string, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return "", err
	}
	if wrap != nil {
		cfg.Wrap(wrap)
	}
	client, err := object.ConnectConfig(cfg, "coordinator", version, 1, 1)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, object.Timeout)
	defer cancel()
	life := min(info.Life(), MaxLifetime)
	r, err := client.CoreV1().ServiceAccounts(info.Namespace).CreateToken(ctx, v1alpha1.CoordinatorServiceAccount, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(seconds(life))},
	}, metav1.CreateOptions{FieldManager: object.FieldManager("coordinator")})
	if apierrors.IsForbidden(err) {
		return "", fmt.Errorf("%w: %w", ErrNotAllowed, err)
	}
	if err != nil {
		return "", fmt.Errorf("asking for another token: %w", err)
	}
	return r.Status.Token, nil
}

// withToken is the kubeconfig with another token.
func withToken(text []byte, token string) ([]byte, error) {
	config, err := clientcmd.Load(text)
	if err != nil {
		return nil, err
	}
	user, err := bearer(config)
	if err != nil {
		return nil, err
	}
	user.Token = token
	body, err := clientcmd.Write(*config)
	if err != nil {
		return nil, err
	}
	claims, err := claimsOf(token)
	if err != nil {
		return nil, fmt.Errorf("the API server gave %w", err)
	}
	return append(head(claims.Subject, unix(claims.Expires)), body...), nil
}

// replacement is a file that is to take another one's place.
type replacement struct {
	path string
	file *os.File
	// narrowed is why fewer may read it than the old one, "" if as many.
	narrowed string
}

// replace makes a file beside path, with its mode and owner and nothing in it.
// One that an earlier try left behind, killed in the middle, goes: the name is
// always the same, and one process renews.
func replace(path string) (r *replacement, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w: %w", ErrNotWritable, err)
		}
	}()
	was, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	name := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".next")
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	r = &replacement{path: path, file: f}
	if err := r.own(was); err != nil {
		r.drop()
		return nil, err
	}
	return r, nil
}

// own gives it the owner, group and mode of the old one. Its group is not always
// the process's: a setgid folder gives its own. Without CAP_CHOWN, as under the
// shipped unit, owner and group cannot always be kept; then it is for its owner
// alone, so that nobody reads the secret who could not read it before.
func (r *replacement) own(was fs.FileInfo) error {
	is, err := r.file.Stat()
	if err != nil {
		return err
	}
	mode := was.Mode().Perm()
	before, ok1 := was.Sys().(*syscall.Stat_t)
	now, ok2 := is.Sys().(*syscall.Stat_t)
	if !ok1 || !ok2 {
		return errors.New("the system does not tell whose file it is")
	}
	if before.Uid != now.Uid || before.Gid != now.Gid {
		switch err := r.file.Chown(int(before.Uid), int(before.Gid)); {
		case errors.Is(err, fs.ErrPermission):
			mode &= 0o600
			r.narrowed = fmt.Sprintf("owner and group %d:%d cannot be kept, it is %d:%d's with mode %04o now", before.Uid, before.Gid, now.Uid, now.Gid, mode)
		case err != nil:
			return err
		}
	}
	return r.file.Chmod(mode)
}

// drop removes it, unless it has taken the other one's place.
func (r *replacement) drop() {
	if r.file != nil {
		r.file.Close()
		os.Remove(r.file.Name())
		r.file = nil
	}
}

// commit fills it and puts it in its place, which still has to hold was.
func (r *replacement) commit(was, text []byte) error {
	_, err := r.file.Write(text)
	if err == nil {
		err = r.file.Sync()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotWritable, err)
	}
	switch now, err := readSome(r.path); {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrReplaced, err)
	case !bytes.Equal(now, was):
		return ErrReplaced
	}
	if err := os.Rename(r.file.Name(), r.path); err != nil {
		return fmt.Errorf("%w: %w", ErrNotWritable, err)
	}
	r.file.Close()
	r.file = nil
	// The name is on the disk once its folder is. Not on every file system can
	// that be asked for; after a crash there is the old one then, or the new.
	if dir, err := os.Open(filepath.Dir(r.path)); err == nil {
		_ = dir.Sync()
		dir.Close()
	}
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
