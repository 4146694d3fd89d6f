package kube

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Mints is the command that mints a new credential, for people.
const Mints = "`lockkeeper kubeconfig`"

// keeperEvery is how often the keeper looks at the file without a hint.
const keeperEvery = time.Minute

// renewPause is the minimum time between two renewals, whatever happens to the
// files, because the API server issues a token for each.
const renewPause = 10 * time.Second

// goneFor is how long the kubeconfig has to be gone before the renewed token is
// removed, so that a tool can remove the file and write the same content again.
const goneFor = 10 * time.Second

// Health is how the coordinator's credential stands.
type Health struct {
	File    string // the kubeconfig
	Present bool   // it exists
	Problem string // why it cannot be read; "" if it can

	Kind            Kind
	User            string    // "" if the file does not tell
	Issued, Expires time.Time // zero if the file does not tell
	// Foreign is why lockkeeper does not renew it, "" if it does, at Renews.
	Foreign string
	Renews  time.Time

	// Failed is why the last try to renew it failed, "" if none did since
	// FailedSince.
	Failed      string
	FailedSince time.Time
	// Exposed is how other users can read or change the credential, one finding
	// per line, "" if they cannot. See [Files.Exposed].
	Exposed string
	// Renewals and Failures count, in this process.
	Renewals, Failures int
}

// Left is how long the credential is valid, negative if it has expired; ok is
// false where nobody knows.
func (h *Health) Left(now time.Time) (left time.Duration, ok bool) {
	if !h.Present || h.Expires.IsZero() {
		return 0, false
	}
	return h.Expires.Sub(now), true
}

// Warning is what a person has to know and do about the credential, "" for
// nothing: that it has ended, or will soon and is not renewed.
func (h *Health) Warning(now time.Time) string {
	left, ok := h.Left(now)
	switch {
	case !ok || h.Issued.IsZero() && left > 7*24*time.Hour:
		return ""
	case left <= 0:
		return fmt.Sprintf("the coordinator's credential in %s expired at %s; %s mints a new one", h.File, stamp(h.Expires), Mints)
	case now.Before(WarnAt(h.Issued, h.Expires)):
		return ""
	}
	why := h.Foreign
	if why == "" {
		why = h.Failed
	}
	if why == "" {
		return "" // it is about to be renewed
	}
	return fmt.Sprintf("the coordinator's credential in %s expires in %s, and is not renewed: %s; %s mints a new one", h.File, Roughly(left), why, Mints)
}

// Short is the warning in a few words, "" for none.
func (h *Health) Short(now time.Time) string {
	left, _ := h.Left(now)
	switch {
	case h.Warning(now) == "":
		return ""
	case left <= 0:
		return "the coordinator's credential has expired"
	}
	return "the coordinator's credential expires in " + Roughly(left)
}

// Text is how the credential stands in one line.
func (h *Health) Text(now time.Time) string {
	left, ok := h.Left(now)
	switch warning := h.Warning(now); {
	case h.Problem != "":
		return h.Problem
	case !h.Present:
		return "none at " + h.File
	case warning != "":
		return warning
	case !ok:
		return fmt.Sprintf("%s; until when it is valid it does not tell: %s", h.File, h.Foreign)
	case h.Foreign != "":
		return fmt.Sprintf("%s, valid for %s more, not renewed by lockkeeper: %s", h.File, Roughly(left), h.Foreign)
	case h.Failed != "":
		return fmt.Sprintf("%s, valid for %s more; renewing it has failed since %s: %s", h.File, Roughly(left), stamp(h.FailedSince), h.Failed)
	}
	return fmt.Sprintf("%s, valid for %s more; it renews itself at %s", h.File, Roughly(left), stamp(h.Renews))
}

// Roughly is a duration for people: days, hours or minutes, rounded down.
func Roughly(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d >= 2*day:
		return fmt.Sprintf("%d days", d/day)
	case d >= 2*time.Hour:
		return fmt.Sprintf("%d hours", d/time.Hour)
	}
	return fmt.Sprintf("%d minutes", max(d, 0)/time.Minute)
}

// Keeper looks after the coordinator's credential on one host: it renews the
// token before it expires, removes a renewed token that is no longer usable, and
// reports the credential's health. A host has at most one Keeper. Make it with
// [NewKeeper].
type Keeper struct {
	files   Files
	version string
	log     *slog.Logger
	report  func(Health)
	wrap    func(http.RoundTripper) http.RoundTripper
	kick    chan struct{}

	// The loop's own.
	health   Health
	again    time.Time // not before that is renewing tried again
	next     time.Time // no renewal before that either, whatever the credential is by then
	failedOf time.Time // when the credential expires that could not be renewed
	gone     time.Time // since when there is no kubeconfig, zero while there is one
	unused   string    // what was logged last about a renewed token that is not used
	warned   string
	told     Health
}

// NewKeeper makes a Keeper of the files. It calls report after each change, in the
// Keeper's goroutine. wrap goes around its requests. Both may be nil.
func NewKeeper(files Files, version string, log *slog.Logger, report func(Health), wrap func(http.RoundTripper) http.RoundTripper) *Keeper {
	return &Keeper{
		files: files, version: version, log: log, report: report, wrap: wrap,
		kick: make(chan struct{}, 1), health: Health{File: files.Kubeconfig},
	}
}

// Look makes the Keeper read the files at once. It does not block.
func (k *Keeper) Look() {
	select {
	case k.kick <- struct{}{}:
	default:
	}
}

// Run looks after the files until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	for ctx.Err() == nil {
		k.look(ctx, time.Now())
		k.tell(time.Now())
		next := keeperEvery
		if soon := time.Until(k.health.Renews); !k.health.Renews.IsZero() && soon > 0 {
			next = min(next, soon+time.Second/10)
		}
		for _, at := range []time.Time{k.again, k.next, k.gone.Add(goneFor)} {
			if soon := time.Until(at); soon > 0 {
				next = min(next, soon+time.Second/10)
			}
		}
		t := time.NewTimer(next)
		select {
		case <-ctx.Done():
		case <-t.C:
		case <-k.kick:
		}
		t.Stop()
	}
}

// look reads the files, and renews the token if it is time.
func (k *Keeper) look(ctx context.Context, now time.Time) {
	info, err := k.files.Read()
	k.tidy(&info, err, now)
	if err == nil && k.due(&info, now) {
		k.next = now.Add(renewPause)
		renewed, failed := Renew(ctx, k.files, k.version, k.wrap)
		switch {
		case ctx.Err() != nil && failed != nil:
			return
		case failed != nil:
			k.failed(failed, &info, now)
		default:
			k.health.Renewals++
			tell(k.log, slog.LevelInfo, v1alpha1.MessageCredentialRenewed, "renewed the coordinator's credential",
				"file", k.files.Renewed, "expires", stamp(renewed.Expires))
			info, err = k.files.Read() // somebody may have replaced the kubeconfig meanwhile
		}
	}
	k.take(info, err)
	k.expose(k.files.Exposed())
}

// expose records how other users can read or change the credential, and logs a
// warning for each finding once.
func (k *Keeper) expose(found []string) {
	before := strings.Split(k.health.Exposed, "\n")
	for _, finding := range found {
		if !slices.Contains(before, finding) {
			tell(k.log, slog.LevelWarn, v1alpha1.MessageCredentialExposed, "other users can read or change the coordinator's credential: "+finding, "why", finding)
		}
	}
	k.health.Exposed = strings.Join(found, "\n")
}

// tidy removes a renewed token that is no longer usable because its kubeconfig is
// gone or has changed. It removes nothing while it cannot read the kubeconfig,
// which may be half written.
func (k *Keeper) tidy(info *Info, err error, now time.Time) {
	why := info.Worthless
	switch {
	case !errors.Is(err, fs.ErrNotExist):
		k.gone = time.Time{}
	case k.gone.IsZero():
		k.gone = now
	case !now.Before(k.gone.Add(goneFor)):
		why = "there is no " + k.files.Kubeconfig
	}
	unused := info.Unread
	if why != "" {
		removed, err := k.files.forget()
		if removed {
			k.log.Info("removed the coordinator's renewed token, which is no longer usable: "+why, "file", k.files.Renewed)
		}
		if err != nil {
			unused = fmt.Sprintf("%s, and it cannot be removed: %v", why, err)
		}
	}
	if unused != "" && unused != k.unused {
		k.log.Warn("the coordinator's renewed token is not used; the token in its kubeconfig is used instead: "+unused, "file", k.files.Renewed)
	}
	k.unused = unused
}

// due reports whether the token is to be renewed now. One that has expired
// cannot ask for another.
func (k *Keeper) due(info *Info, now time.Time) bool {
	return info.Foreign == "" && !now.Before(RenewAt(info.Issued, info.Expires)) && now.Before(info.Expires) && !now.Before(k.again) && !now.Before(k.next)
}

func (k *Keeper) failed(err error, info *Info, now time.Time) {
	h := &k.health
	h.Failures++
	if h.FailedSince.IsZero() {
		h.FailedSince = now
	}
	h.Failed, k.failedOf = err.Error(), info.Expires
	wait := retryAfter(info.Expires.Sub(now))
	k.again = now.Add(wait)
	k.log.Warn("cannot renew the coordinator's credential; the old one goes on until it expires",
		"file", k.files.Renewed, "err", err, "expires", stamp(info.Expires), "again_in", wait.Round(time.Second))
}

// take makes the health of what the file is.
func (k *Keeper) take(info Info, err error) {
	h := &k.health
	h.Present, h.Problem = !errors.Is(err, fs.ErrNotExist), ""
	if err != nil {
		if h.Present {
			h.Problem = err.Error()
		}
		info = Info{}
	}
	if !k.failedOf.Equal(info.Expires) { // that was another one
		h.Failed, h.FailedSince, k.again, k.failedOf = "", time.Time{}, time.Time{}, info.Expires
	}
	h.Kind, h.User, h.Issued, h.Expires, h.Foreign, h.Renews = info.Kind, info.User, info.Issued, info.Expires, info.Foreign, time.Time{}
	if h.Present && err == nil && info.Foreign == "" {
		h.Renews = RenewAt(info.Issued, info.Expires)
	}
}

// tell reports, and warns in the journal: once a day while it says the same.
func (k *Keeper) tell(now time.Time) {
	changed := k.told != k.health
	k.told = k.health
	warning := k.health.Warning(now)
	key := ""
	if warning != "" {
		left, _ := k.health.Left(now)
		key = fmt.Sprint(k.health.Expires, left <= 0, int(left/(24*time.Hour)))
		if left <= 0 {
			key = fmt.Sprint(k.health.Expires, "expired")
		}
	}
	if key != k.warned && key != "" {
		tell(k.log, slog.LevelWarn, v1alpha1.MessageCredentialEnds, warning, "file", k.files.Kubeconfig, "why", warning)
	}
	if (changed || key != k.warned) && k.report != nil {
		k.report(k.health)
	}
	k.warned = key
}

// tell logs an event of a published kind; systemd.LogEvent does the same.
func tell(log *slog.Logger, level slog.Level, id v1alpha1.MessageID, text string, attrs ...any) {
	log.Log(context.Background(), level, text, append([]any{"message_id", string(id)}, attrs...)...)
}
