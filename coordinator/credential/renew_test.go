package credential

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/client-go/kubernetes/scheme"
)

func TestWhen(t *testing.T) {
	at := func(text string) time.Time {
		t.Helper()
		v, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, c := range []struct{ issued, expires, renew, warn string }{
		{"2026-01-01T00:00:00Z", "2026-01-01T00:10:00Z", "2026-01-01T00:06:40Z", "2026-01-01T00:07:30Z"},
		{"2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z", "2026-01-01T00:40:00Z", "2026-01-01T00:45:00Z"},
		{"2026-01-01T00:00:00Z", "2026-01-25T00:00:00Z", "2026-01-17T00:00:00Z", "2026-01-19T00:00:00Z"},
		{"2026-01-01T00:00:00Z", "2026-04-01T00:00:00Z", "2026-03-02T00:00:00Z", "2026-03-25T00:00:00Z"},
		{"2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z", "2026-09-01T08:00:00Z", "2026-12-25T00:00:00Z"},
	} {
		issued, expires := at(c.issued), at(c.expires)
		if renew, warn := RenewAt(issued, expires), WarnAt(issued, expires); !renew.Equal(at(c.renew)) || !warn.Equal(at(c.warn)) {
			t.Errorf("%s to %s: renewed at %s, warned of at %s, want %s and %s", c.issued, c.expires, stamp(renew), stamp(warn), c.renew, c.warn)
		}
	}
	for left, want := range map[time.Duration]time.Duration{
		30 * 24 * time.Hour: time.Hour, 10 * time.Hour: time.Hour, time.Hour: 6 * time.Minute,
		3 * time.Minute: 18 * time.Second, time.Minute: 10 * time.Second, 0: 10 * time.Second,
	} {
		if got := retryAfter(left); got != want {
			t.Errorf("with %v left the next try is after %v, want %v", left, got, want)
		}
	}
}

// renewer is an API server that gives tokens, and a kubeconfig for it with a token of that life.
type renewer struct {
	t      *testing.T
	path   string
	asked  []string
	answer func(w http.ResponseWriter, seconds int64)
	before string
}

func newRenewer(t *testing.T, issued, expires time.Time) *renewer {
	t.Helper()
	r := &renewer{t: t, path: filepath.Join(t.TempDir(), "coordinator.kubeconfig")}
	r.answer = func(w http.ResponseWriter, seconds int64) {
		r.give(w, jwt(fmt.Sprintf(`{%s,"iat":%d,"exp":%d}`, sub, time.Now().Unix(), time.Now().Unix()+seconds)))
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		text, err := io.ReadAll(req.Body)
		if err != nil {
			t.Error(err)
		}
		body := &authenticationv1.TokenRequest{}
		if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(text, nil, body); err != nil {
			t.Error(err)
		}
		seconds := *body.Spec.ExpirationSeconds
		r.asked = append(r.asked, fmt.Sprintf("%s %s %d", req.Method, req.URL.Path, seconds))
		w.Header().Set("Content-Type", "application/json")
		r.answer(w, seconds)
	}))
	t.Cleanup(server.Close)
	text := strings.Replace(kubeconfigOf(`{token: `+jwt(fmt.Sprintf(`{%s,"iat":%d,"exp":%d}`, sub, issued.Unix(), expires.Unix()))+`}`),
		"https://a", server.URL, 1)
	r.before = text
	r.write(text)
	return r
}

func (r *renewer) write(text string) {
	r.t.Helper()
	if err := os.WriteFile(r.path, []byte(text), 0o640); err != nil {
		r.t.Fatal(err)
	}
}

func (r *renewer) give(w http.ResponseWriter, token string) {
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","spec":{"audiences":["x"]},"status":{"token":%q,"expirationTimestamp":"2026-01-02T03:04:05Z"}}`, token)
}

func (r *renewer) refuse(w http.ResponseWriter, code int, reason string) {
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"message":"by the test","code":%d}`, reason, code)
}

// unchanged fails unless the file is as it was and alone in its folder.
func (r *renewer) unchanged(what, want string) {
	r.t.Helper()
	if text, err := os.ReadFile(r.path); err != nil || string(text) != want {
		r.t.Errorf("%s: the file is %q, %v", what, text, err)
	}
	r.alone(what)
}

func (r *renewer) alone(what string) {
	r.t.Helper()
	if entries, err := os.ReadDir(filepath.Dir(r.path)); err != nil || len(entries) != 1 {
		r.t.Errorf("%s: in the folder are %v, %v", what, entries, err)
	}
}

func TestRenew(t *testing.T) {
	now := time.Now()
	r := newRenewer(t, now.Add(-50*time.Minute), now.Add(10*time.Minute))
	// What a try that was killed left behind is no obstacle.
	if err := os.WriteFile(filepath.Join(filepath.Dir(r.path), ".coordinator.kubeconfig.next"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(r.path, 0o640); err != nil {
		t.Fatal(err)
	}
	info, err := Renew(t.Context(), r.path, "test", slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := "POST /api/v1/namespaces/lockkeeper/serviceaccounts/lockkeeper-coordinator/token 3600"; len(r.asked) != 1 || r.asked[0] != want {
		t.Errorf("asked %q, want %q", r.asked, want)
	}
	if left := time.Until(info.Expires); left < 59*time.Minute || left > time.Hour {
		t.Errorf("valid for %v more", left)
	}
	r.alone("renewed")
	was, err := inspect(r.path, []byte(r.before))
	if err != nil {
		t.Fatal(err)
	}
	is, text, err := ReadFile(r.path)
	if err != nil || is.Frame != was.Frame || is.Token == was.Token || is.Token != info.Token || is.Foreign != "" {
		t.Errorf("%+v, %v", is, err)
	}
	if !strings.Contains(string(text), "\n# Valid until "+stamp(info.Expires)+".\n") {
		t.Errorf("it says of itself:\n%s", text)
	}
	stat, err := os.Stat(r.path)
	if err != nil || stat.Mode() != 0o640 {
		t.Errorf("mode %v, %v", stat.Mode(), err)
	}
	// Through a link the file that it leads to is replaced; what it names is beside the link.
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(r.path, link); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(link), "ca.crt"), selfSigned(t, "ca", now, now.Add(time.Hour)), 0o600); err != nil {
		t.Fatal(err)
	}
	r.write(strings.Replace(r.before, "{server: ", "{certificate-authority: ca.crt, server: ", 1))
	if _, err := Renew(t.Context(), link, "test", slog.New(slog.DiscardHandler), nil); err != nil {
		t.Fatal(err)
	}
	if stat, err := os.Lstat(link); err != nil || stat.Mode().Type() != os.ModeSymlink {
		t.Errorf("the link is %v, %v", stat.Mode(), err)
	}
	if now, _, err := ReadFile(r.path); err != nil || now.Token == was.Token {
		t.Errorf("behind the link nothing changed (%v)", err)
	}
}

// Whatever goes wrong, the old one stays.
func TestRenewSaysWhatIsWrong(t *testing.T) {
	now := time.Now()
	r := newRenewer(t, now.Add(-50*time.Minute), now.Add(10*time.Minute))
	whole := r.answer
	for name, c := range map[string]struct {
		answer func(w http.ResponseWriter, seconds int64)
		is     error
		says   string
	}{
		"not allowed": {func(w http.ResponseWriter, _ int64) { r.refuse(w, 403, "Forbidden") }, ErrNotAllowed, "may not renew its own token"},
		"refused":     {func(w http.ResponseWriter, _ int64) { r.refuse(w, 401, "Unauthorized") }, nil, "asking for another token: "},
		"empty":       {func(w http.ResponseWriter, _ int64) { r.give(w, "") }, nil, "not a token"},
		"nonsense":    {func(w http.ResponseWriter, _ int64) { r.give(w, "a.b.c") }, nil, "not a token"},
		"shorter":     {func(w http.ResponseWriter, _ int64) { whole(w, 60) }, nil, "expected one of"},
		"somebody else": {func(w http.ResponseWriter, n int64) {
			r.give(w, jwt(fmt.Sprintf(`{"sub":"system:serviceaccount:lockkeeper:x","iat":1,"exp":%d}`, now.Unix()+n)))
		}, nil, "expected one of"},
	} {
		r.answer = c.answer
		_, err := Renew(t.Context(), r.path, "test", slog.New(slog.DiscardHandler), nil)
		if err == nil || !strings.Contains(err.Error(), c.says) || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
		r.unchanged(name, r.before)
	}

	other := "# an admin's\n" + r.before
	r.answer = func(w http.ResponseWriter, n int64) { r.write(other); whole(w, n) }
	if _, err := Renew(t.Context(), r.path, "test", slog.New(slog.DiscardHandler), nil); !errors.Is(err, ErrReplaced) {
		t.Errorf("replaced meanwhile: %v", err)
	}
	r.unchanged("replaced meanwhile", other)

	r.answer = whole
	asked := len(r.asked)
	r.write(kubeconfigOf(`{token: opaque}`))
	if _, err := Renew(t.Context(), r.path, "test", slog.New(slog.DiscardHandler), nil); err == nil || !strings.Contains(err.Error(), "none that lockkeeper minted") {
		t.Errorf("foreign: %v", err)
	}
	if err := os.Remove(r.path); err != nil {
		t.Fatal(err)
	}
	if _, err := Renew(t.Context(), r.path, "test", slog.New(slog.DiscardHandler), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("gone: %v", err)
	}
	// Where nothing can be written nothing is asked for: each token would live for nobody. /proc takes no file of root's either.
	if _, err := replace("/proc/self/status"); !errors.Is(err, ErrNotWritable) {
		t.Errorf("not writable: %v", err)
	}
	if len(r.asked) != asked {
		t.Errorf("asked %q in vain", r.asked[asked:])
	}
}

// The keeper renews what is due, tells of what is not, and warns when somebody has to do something.
func TestKeeper(t *testing.T) {
	now := time.Now()
	r := newRenewer(t, now.Add(-50*time.Minute), now.Add(10*time.Minute))
	told := make(chan Health, 10)
	k := NewKeeper(r.path, "test", slog.New(slog.DiscardHandler), func(h Health) { told <- h }, nil)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); k.Run(ctx) }()
	next := func() Health {
		t.Helper()
		select {
		case h := <-told:
			return h
		case <-time.After(time.Minute):
			t.Fatal("the keeper says nothing")
		}
		return Health{}
	}
	h := next()
	if h.Renewals != 1 || h.Failures != 0 || time.Until(h.Renews) < 35*time.Minute || h.Warning(now) != "" {
		t.Errorf("%+v", h)
	}
	if text := h.Text(now); !strings.HasPrefix(text, r.path+", valid for ") || !strings.Contains(text, "renews itself at") {
		t.Errorf("says %q", text)
	}

	r.answer = func(w http.ResponseWriter, _ int64) { r.refuse(w, 403, "Forbidden") }
	r.write(r.before)
	k.Look()
	h = next()
	warning := h.Warning(now)
	for _, part := range []string{r.path, "expires in 9 minutes", "may not renew its own token", "`lockkeeper kubeconfig` mints a new one"} {
		if !strings.Contains(warning, part) {
			t.Errorf("warns %q, without %q", warning, part)
		}
	}
	if h.Renewals != 1 || h.Failures != 1 || h.FailedSince.IsZero() {
		t.Errorf("%+v", h)
	}
	asked := len(r.asked)
	if err := os.Remove(r.path); err != nil {
		t.Fatal(err)
	}
	k.Look()
	if h = next(); h.Present || h.Failed != "" || h.Warning(now) != "" || len(r.asked) != asked {
		t.Errorf("gone: %+v, asked %q", h, r.asked[asked:])
	}
	if err := os.WriteFile(r.path, []byte("clusters: 5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	k.Look()
	if h = next(); !h.Present || !strings.Contains(h.Text(now), r.path) || h.Problem == "" {
		t.Errorf("broken: %+v", h)
	}
	stop()
	<-done
}

// After a renewal that failed, or that somebody else came between, the keeper waits before it asks for another token.
func TestKeeperWaits(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	for name, c := range map[string]struct {
		answer func(r *renewer, w http.ResponseWriter, whole func(http.ResponseWriter, int64), seconds int64)
		wait   time.Duration
		failed int
	}{
		// A tenth of the ten minutes that are left.
		"refused": {func(r *renewer, w http.ResponseWriter, _ func(http.ResponseWriter, int64), _ int64) {
			r.refuse(w, 403, "Forbidden")
		}, time.Minute, 1},
		"replaced by another comment": {func(r *renewer, w http.ResponseWriter, whole func(http.ResponseWriter, int64), n int64) {
			r.write(fmt.Sprintf("# %d\n", len(r.asked)) + r.before)
			whole(w, n)
		}, 10 * time.Second, 0},
		"replaced by another token": {func(r *renewer, w http.ResponseWriter, whole func(http.ResponseWriter, int64), n int64) {
			was, err := inspect(r.path, []byte(r.before))
			if err != nil {
				t.Error(err)
			}
			other := jwt(fmt.Sprintf(`{%s,"iat":%d,"exp":%d}`, sub, now.Unix()-3000, now.Unix()+600+int64(len(r.asked))))
			r.write(strings.Replace(r.before, was.Token, other, 1))
			whole(w, n)
		}, 10 * time.Second, 0},
	} {
		r := newRenewer(t, now.Add(-50*time.Minute), now.Add(10*time.Minute))
		whole := r.answer
		r.answer = func(w http.ResponseWriter, seconds int64) { c.answer(r, w, whole, seconds) }
		k := NewKeeper(r.path, "test", slog.New(slog.DiscardHandler), nil, nil)
		for _, step := range []struct {
			at   time.Duration
			want int
		}{{0, 1}, {0, 1}, {c.wait - time.Second, 1}, {c.wait, 2}, {c.wait, 2}} {
			k.look(t.Context(), now.Add(step.at))
			if len(r.asked) != step.want {
				t.Errorf("%s: after %v asked %d times, want %d", name, step.at, len(r.asked), step.want)
			}
			if k.health.Failures != c.failed*step.want || k.health.Renewals != 0 {
				t.Errorf("%s: after %v %+v", name, step.at, k.health)
			}
		}
	}
}

func TestWarning(t *testing.T) {
	issued := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	expires := issued.Add(90 * 24 * time.Hour)
	h := Health{File: "/f", Present: true, Issued: issued, Expires: expires, Foreign: "it is a certificate"}
	for left, want := range map[time.Duration]string{
		8 * 24 * time.Hour:         "",
		7 * 24 * time.Hour:         "the coordinator's credential in /f expires in 7 days, and is not renewed: it is a certificate; `lockkeeper kubeconfig` mints a new one",
		40*time.Hour + time.Minute: "the coordinator's credential in /f expires in 40 hours, and is not renewed: it is a certificate; `lockkeeper kubeconfig` mints a new one",
		100 * time.Minute:          "the coordinator's credential in /f expires in 100 minutes, and is not renewed: it is a certificate; `lockkeeper kubeconfig` mints a new one",
		0:                          "the coordinator's credential in /f expired at 2026-04-01T00:00:00Z; `lockkeeper kubeconfig` mints a new one",
		-48 * time.Hour:            "the coordinator's credential in /f expired at 2026-04-01T00:00:00Z; `lockkeeper kubeconfig` mints a new one",
	} {
		if got := h.Warning(expires.Add(-left)); got != want {
			t.Errorf("%v left: %q, want %q", left, got, want)
		}
		if short := h.Short(expires.Add(-left)); (short == "") != (want == "") {
			t.Errorf("%v left: in short %q", left, short)
		}
	}
	h.Foreign = ""
	if got := h.Warning(expires.Add(-time.Hour)); got != "" {
		t.Errorf("warns of one that is about to be renewed: %q", got)
	}
}
