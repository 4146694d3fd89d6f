package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube/secret"
)

// renewPause is the minimum time between two renewals, whatever happens to the
// files, because the API server issues a token for each.
const renewPause = 10 * time.Second

// renewAt returns when a credential is to be renewed: when a third of its life is left.
func renewAt(issued, expires time.Time) time.Time {
	return expires.Add(-expires.Sub(issued) / 3)
}

// warnAt returns when to begin to warn an admin that a credential expires: when a quarter of
// its life is left, but at most a week. A credential that is renewed never gets there.
func warnAt(issued, expires time.Time) time.Time {
	return expires.Add(-min(expires.Sub(issued)/4, 7*24*time.Hour))
}

// retryAfter returns how long to wait after a renewal that failed, if that much of
// the credential's life is left.
func retryAfter(left time.Duration) time.Duration {
	return min(max(left/10, 10*time.Second), time.Hour)
}

// The errors of a renewal that an admin can fix.
var (
	// ErrNotAllowed means that the manifests were applied with --no-renewal, or not at all.
	ErrNotAllowed = errors.New("the coordinator may not renew its own token")
	// ErrNotWritable means that the renewed token cannot be written.
	ErrNotWritable = errors.New("the renewed token cannot be written")
)

// upkeep is what the Credential remembers about renewing the coordinator's token, and
// about what it has logged.
type upkeep struct {
	again  time.Time // the earliest renewal after a failure
	of     time.Time // when the credential whose renewal failed expires
	next   time.Time // the earliest renewal of any credential
	warned string    // the text of the last warning about the expiry
}

// maintain renews the coordinator's token if it is time, and warns before it expires. It
// returns how long to wait before the next call, unless the files change before that.
func (c *Credential) maintain(ctx context.Context, now time.Time) (wait time.Duration) {
	s, u := c.State(), &c.upkeep
	if !u.of.Equal(s.Expires) { // the failure was with another credential
		u.again, u.of = time.Time{}, s.Expires
		c.setRenewError(nil, now)
	}
	if !s.Renews.IsZero() && s.Error == "" && !now.Before(s.Renews) && now.Before(s.Expires) && !now.Before(u.again) && !now.Before(u.next) {
		u.next = now.Add(renewPause)
		if err := c.Renew(ctx); err == nil {
			c.renewed(now)
		} else if ctx.Err() == nil {
			again := retryAfter(s.Expires.Sub(now))
			u.again = now.Add(again)
			c.setRenewError(err, now)
			c.log.Warn("cannot renew the coordinator's credential; the old one is used until it expires",
				"file", c.o.Renewed, "err", err, "expires", stamp(s.Expires), "again_in", again.Round(time.Second))
		}
	}
	c.warn(now)
	c.report()
	wait = readEvery
	state := c.State()
	for _, at := range []time.Time{state.Renews, warnAt(state.Issued, state.Expires), state.Expires, u.again, u.next} {
		if soon := time.Until(at); soon > 0 {
			wait = min(wait, soon+time.Second/10)
		}
	}
	return wait
}

// setRenewError records that a renewal failed. nil means that the last renewal succeeded, or
// that there is another credential.
func (c *Credential) setRenewError(err error, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.state
	if err == nil {
		s.RenewError, s.RenewErrorSince = "", time.Time{}
		return
	}
	s.Failures++
	if s.RenewError = err.Error(); s.RenewErrorSince.IsZero() {
		s.RenewErrorSince = now
	}
}

// renewed makes the client use the renewed token.
func (c *Credential) renewed(now time.Time) {
	c.setRenewError(nil, now)
	c.mu.Lock()
	c.state.Renewals++
	c.mu.Unlock()
	c.read(now)
	c.logEvent(slog.LevelInfo, v1alpha1.MessageCredentialRenewed, "renewed the coordinator's credential",
		"file", c.o.Renewed, "expires", stamp(c.State().Expires))
}

// warn warns that the credential expires, once a day while nothing else changes.
func (c *Credential) warn(now time.Time) {
	s := c.State()
	key := ""
	if left, known := s.left(now); known && s.Refused.IsZero() && s.Error == "" {
		if text, _ := s.Problem(now); text != "" {
			key = fmt.Sprint(s.Expires, left <= 0, max(int(left/(24*time.Hour)), 0))
			if key != c.upkeep.warned {
				c.logEvent(slog.LevelWarn, v1alpha1.MessageCredentialEnds, text, "file", s.File, "why", text)
			}
		}
	}
	c.upkeep.warned = key
}

// expose records how other users can read or change the credential, and logs a
// warning for each finding once.
func (c *Credential) expose(secrets []string) {
	found := secret.Exposed(append([]string{c.o.Paths[0], c.o.Renewed}, secrets...)...)
	c.mu.Lock()
	before := strings.Split(c.state.Exposed, "\n")
	c.state.Exposed = strings.Join(found, "\n")
	c.mu.Unlock()
	for _, finding := range found {
		if !slices.Contains(before, finding) {
			c.logEvent(slog.LevelWarn, v1alpha1.MessageCredentialExposed, "other users can read or change the coordinator's credential: "+finding, "why", finding)
		}
	}
}

// tidy removes a renewed token that will never be used again because its kubeconfig has
// been replaced, or has been gone, for a while. It removes nothing while the kubeconfig
// cannot be read, and nothing at once: a half-written kubeconfig may look like a whole one
// with different content.
func (c *Credential) tidy(k *kubeconfig, err error, now time.Time) {
	why, never := k.notUsed, k.never
	switch _, absent := errors.AsType[AbsentError](err); {
	case absent:
		why, never = err.Error(), true
	case err != nil:
		why, never = "", false
	}
	switch {
	case !never:
		c.useless = time.Time{}
	case c.useless.IsZero():
		c.useless = now
	}
	if never && now.Before(c.useless.Add(lasting)) {
		return
	}
	if never {
		switch err := os.Remove(c.o.Renewed); {
		case err == nil:
			c.log.Info("removed the coordinator's renewed token, which will not be used again: "+why, "file", c.o.Renewed)
			why = ""
		case errors.Is(err, fs.ErrNotExist):
			why = ""
		default:
			why = fmt.Sprintf("%s, and it cannot be removed: %v", why, err)
		}
	}
	if why != "" && why != c.notUsed {
		c.log.Warn("the coordinator's renewed token is not used; the token in its kubeconfig is used instead: "+why, "file", c.o.Renewed)
	}
	c.notUsed = why
}

// Renew uses the token in effect to ask the API server for another token of the same
// service account, valid for as long as that one was. It writes the new token to
// Options.Renewed, whole or not at all, with mode 0600; it takes effect when the
// files are read next. The new token belongs to the kubeconfig's content at the
// beginning of the call, so it never takes effect if another process replaces the
// kubeconfig meanwhile. Run calls Renew when it is time. Only a token without
// State.NotRenewed is renewed.
//
// After an error the files are as they were. Renew does not ask the API server if it
// cannot write the file.
func (c *Credential) Renew(ctx context.Context) error {
	if _, err := c.Client(); err != nil {
		return err
	}
	c.mu.Lock()
	client, k := c.client, c.last // of the same server
	c.mu.Unlock()
	if client == nil || k == nil { // the kubeconfig has been removed since
		return AbsentError(c.o.Absent)
	}
	if k.claims.notRenewed != "" {
		return errors.New(k.claims.notRenewed)
	}
	// systemd makes the state directory, but only when it runs the service.
	if err := os.MkdirAll(filepath.Dir(c.o.Renewed), 0o700); err != nil {
		return fmt.Errorf("%w: %w", ErrNotWritable, err)
	}
	file, err := secret.Create(c.o.Renewed)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotWritable, err)
	}
	defer file.Discard()
	token, err := requestToken(ctx, client, &k.claims)
	if err != nil {
		return err
	}
	next := inspectToken(token)
	if next.notRenewed != "" || next.user != k.claims.user || !next.expires.After(k.claims.expires) {
		return fmt.Errorf("the API server gave a token of %q until %s, expected one of %q until later than %s",
			next.user, stamp(next.expires), k.claims.user, stamp(k.claims.expires))
	}
	text, err := json.Marshal(renewedToken{Kubeconfig: k.hash, Token: token})
	if err == nil {
		err = file.Commit(text)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotWritable, err)
	}
	return nil
}

func requestToken(ctx context.Context, client *Client, i *claims) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	life := min(i.life(), v1alpha1.MaxTokenLifetime)
	r, err := client.CoreV1().ServiceAccounts(i.namespace).CreateToken(ctx, v1alpha1.CoordinatorServiceAccount, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(life / time.Second))},
	}, metav1.CreateOptions{FieldManager: FieldManager(v1alpha1.IdentityCoordinator)})
	if apierrors.IsForbidden(err) {
		return "", fmt.Errorf("%w: %w", ErrNotAllowed, err)
	}
	if err != nil {
		return "", fmt.Errorf("asking for another token: %w", err)
	}
	return r.Status.Token, nil
}
