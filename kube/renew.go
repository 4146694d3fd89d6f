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
)

const (
	// renewPause is the minimum time between two renewals, whatever happens to the
	// files, because the API server issues a token for each.
	renewPause = 10 * time.Second
	// goneFor is how long the kubeconfig has to be gone before the renewed token is
	// removed, so that a tool can remove the file and write the same content again.
	goneFor = 10 * time.Second
)

// renewAt returns when a credential is to be renewed: when a third of its life is left.
func renewAt(issued, expires time.Time) time.Time {
	return expires.Add(-expires.Sub(issued) / 3)
}

// warnAt returns from when on an admin is to be warned that a credential expires:
// when a quarter of its life is left, at most a week. One that renews itself does not
// get there.
func warnAt(issued, expires time.Time) time.Time {
	return expires.Add(-min(expires.Sub(issued)/4, 7*24*time.Hour))
}

// retryAfter returns how long to wait after a renewal that failed, if that much of
// the credential's life is left.
func retryAfter(left time.Duration) time.Duration {
	return min(max(left/10, 10*time.Second), time.Hour)
}

// Why a renewal failed, where an admin can do something about it.
var (
	// ErrNotAllowed: the manifests were applied with --no-renewal, or never.
	ErrNotAllowed = errors.New("the coordinator may not renew its own token")
	// ErrNotWritable: the renewed token cannot be written.
	ErrNotWritable = errors.New("the renewed token cannot be written")
)

// upkeep is what the loop remembers about the coordinator's credential.
type upkeep struct {
	again  time.Time // no renewal before that, after one that failed
	of     time.Time // when the credential expires that failed
	next   time.Time // no renewal before that either, whatever the credential is by then
	gone   time.Time // since when there is no kubeconfig, zero while there is one
	unused string    // what was last logged about a renewed token that is not used
	warned string    // what the last warning about the expiry was about
}

// maintain renews the coordinator's token if it is time, and warns before it
// expires. It returns how long to wait before the files are read again.
func (c *Credential) maintain(ctx context.Context, now time.Time) (wait time.Duration) {
	s, u := c.State(), &c.upkeep
	if wait = readEvery; s.Problem != "" {
		wait = retryEvery
	}
	if !c.coordinator() {
		return wait
	}
	if !u.of.Equal(s.Expires) { // that was about another one
		u.again, u.of = time.Time{}, s.Expires
		c.setFailed(nil, now)
	}
	if !s.Renews.IsZero() && s.Problem == "" && !now.Before(s.Renews) && now.Before(s.Expires) && !now.Before(u.again) && !now.Before(u.next) {
		u.next = now.Add(renewPause)
		if err := c.Renew(ctx); err == nil {
			c.renewed(now)
		} else if ctx.Err() == nil {
			again := retryAfter(s.Expires.Sub(now))
			u.again = now.Add(again)
			c.setFailed(err, now)
			c.log.Warn("cannot renew the coordinator's credential; the old one is used until it expires",
				"file", c.o.Renewed, "err", err, "expires", stamp(s.Expires), "again_in", again.Round(time.Second))
		}
	}
	c.warn(now)
	c.report()
	c.reading.Lock()
	gone := u.gone // a campaign may read the files at the same time
	c.reading.Unlock()
	for _, at := range []time.Time{c.State().Renews, u.again, u.next, gone.Add(goneFor)} {
		if soon := time.Until(at); soon > 0 {
			wait = min(wait, soon+time.Second/10)
		}
	}
	return wait
}

// setFailed records that a renewal failed; nil: that the last one did not, or that
// there is another credential.
func (c *Credential) setFailed(err error, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.state
	if err == nil {
		s.Failed, s.FailedSince = "", time.Time{}
		return
	}
	s.Failures++
	if s.Failed = err.Error(); s.FailedSince.IsZero() {
		s.FailedSince = now
	}
}

// renewed takes the renewed token into use.
func (c *Credential) renewed(now time.Time) {
	c.setFailed(nil, now)
	c.mu.Lock()
	c.state.Renewals++
	c.mu.Unlock()
	c.read(now)
	tell(c.log, slog.LevelInfo, v1alpha1.MessageCredentialRenewed, "renewed the coordinator's credential",
		"file", c.o.Renewed, "expires", stamp(c.State().Expires))
}

// warn warns that the credential expires, once a day while nothing else changes.
func (c *Credential) warn(now time.Time) {
	s := c.State()
	key, warning := "", s.Warning(now)
	if left, _ := s.Left(now); warning != "" {
		key = fmt.Sprint(s.Expires, left <= 0, max(int(left/(24*time.Hour)), 0))
	}
	if key != c.upkeep.warned && key != "" {
		tell(c.log, slog.LevelWarn, v1alpha1.MessageCredentialEnds, warning, "file", s.File, "why", warning)
	}
	c.upkeep.warned = key
}

// expose records how other users can read or change the credential, and logs a
// warning for each finding once.
func (c *Credential) expose() {
	found := Exposed(c.o.Paths[0], c.o.Renewed)
	c.mu.Lock()
	before := strings.Split(c.state.Exposed, "\n")
	c.state.Exposed = strings.Join(found, "\n")
	c.mu.Unlock()
	for _, finding := range found {
		if !slices.Contains(before, finding) {
			tell(c.log, slog.LevelWarn, v1alpha1.MessageCredentialExposed, "other users can read or change the coordinator's credential: "+finding, "why", finding)
		}
	}
}

// tidy removes a renewed token that is no longer usable because its kubeconfig is
// gone or has changed. It removes nothing while it cannot read the kubeconfig, which
// may be half written.
func (c *Credential) tidy(k *kubeconfig, err error, now time.Time) {
	u := &c.upkeep
	why, unused := "", ""
	if k != nil {
		why, unused = k.info.worthless, k.info.unread
	}
	_, absent := errors.AsType[AbsentError](err)
	switch {
	case !absent:
		u.gone = time.Time{}
	case u.gone.IsZero():
		u.gone = now
	case !now.Before(u.gone.Add(goneFor)):
		why = err.Error()
	}
	if why != "" {
		switch err := os.Remove(c.o.Renewed); {
		case err == nil:
			c.log.Info("removed the coordinator's renewed token, which is no longer usable: "+why, "file", c.o.Renewed)
		case !errors.Is(err, fs.ErrNotExist):
			unused = fmt.Sprintf("%s, and it cannot be removed: %v", why, err)
		}
	}
	if unused != "" && unused != u.unused {
		c.log.Warn("the coordinator's renewed token is not used; the token in its kubeconfig is used instead: "+unused, "file", c.o.Renewed)
	}
	u.unused = unused
}

// Renew uses the token in effect to ask the API server for another token of the same
// service account, valid for as long as that one was. It writes the new token to
// Options.Renewed, whole or not at all, with mode 0600; it takes effect when the
// files are read next. The new token belongs to the kubeconfig's content at the
// beginning of the call, so it never takes effect if another process replaces the
// kubeconfig meanwhile. Run calls Renew when it is time. Only a token without
// State.Foreign is renewed.
//
// After an error the files are as they were. Renew does not ask the API server if it
// cannot write the file.
func (c *Credential) Renew(ctx context.Context) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	c.mu.Lock()
	k := c.last
	c.mu.Unlock()
	if k == nil {
		return AbsentError(c.o.Absent)
	}
	if k.info.foreign != "" {
		return errors.New(k.info.foreign)
	}
	// systemd makes the state directory, but only when it runs the service.
	if err := os.MkdirAll(filepath.Dir(c.o.Renewed), 0o700); err != nil {
		return fmt.Errorf("%w: %w", ErrNotWritable, err)
	}
	file, err := createFile(c.o.Renewed)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotWritable, err)
	}
	defer file.drop()
	token, err := requestToken(ctx, client, &k.info)
	if err != nil {
		return err
	}
	next := inspectToken(token)
	if next.foreign != "" || next.user != k.info.user || !next.expires.After(k.info.expires) {
		return fmt.Errorf("the API server gave a token of %q until %s, expected one of %q until later than %s",
			next.user, stamp(next.expires), k.info.user, stamp(k.info.expires))
	}
	text, err := json.Marshal(renewedToken{Kubeconfig: k.bytes, Token: token})
	if err == nil {
		err = file.commit(text)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotWritable, err)
	}
	return nil
}

func requestToken(ctx context.Context, client *Client, i *info) (string, error) {
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

// tell logs an event of a published kind; systemd.LogEvent does the same, and knows what
// its attributes are.
func tell(log *slog.Logger, level slog.Level, id v1alpha1.MessageID, text string, attrs ...any) {
	log.Log(context.Background(), level, text, append([]any{"message_id", string(id)}, attrs...)...)
}
