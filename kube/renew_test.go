package kube

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
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
	files  Files
	asked  []string
	as     []string // the tokens that were shown
	answer func(w http.ResponseWriter, seconds int64)
	before string // the kubeconfig
}

func newRenewer(t *testing.T, issued, expires time.Time) *renewer {
	t.Helper()
	r := &renewer{t: t, files: Files{
		Kubeconfig: filepath.Join(t.TempDir(), "coordinator.kubeconfig"), Renewed: filepath.Join(t.TempDir(), "lockkeeper", "coordinator-token.json"),
	}}
	r.answer = func(w http.ResponseWriter, seconds int64) {
		r.give(w, token(time.Now(), time.Now().Add(time.Duration(seconds)*time.Second)))
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
		r.as = append(r.as, strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer "))
		w.Header().Set("Content-Type", "application/json")
		r.answer(w, seconds)
	}))
	t.Cleanup(server.Close)
	r.before = strings.Replace(kubeconfigOf(`{token: `+token(issued, expires)+`}`), "https://a", server.URL, 1)
	r.write(r.before)
	return r
}

// token is one of the coordinator's service account.
func token(issued, expires time.Time) string {
	return jwt(fmt.Sprintf(`{%s,"iat":%d,"exp":%d}`, sub, issued.Unix(), expires.Unix()))
}

func (r *renewer) write(text string) { r.put(r.files.Kubeconfig, text) }

func (r *renewer) put(path, text string) {
	r.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// renewed writes the token as the renewed one of that kubeconfig.
func (r *renewer) renewed(kubeconfig, token string) {
	r.t.Helper()
	r.put(r.files.Renewed, fmt.Sprintf(`{"kubeconfig":"%x","token":%q}`, sha256.Sum256([]byte(kubeconfig)), token))
}

func (r *renewer) isRenewed() bool {
	_, err := os.Stat(r.files.Renewed)
	return err == nil
}

func (r *renewer) renew() (Info, error) { return Renew(r.t.Context(), r.files, "test", nil) }

func (r *renewer) give(w http.ResponseWriter, token string) {
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","spec":{"audiences":["x"]},"status":{"token":%q,"expirationTimestamp":"2026-01-02T03:04:05Z"}}`, token)
}

func (r *renewer) refuse(w http.ResponseWriter, code int, reason string) {
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"message":"by the test","code":%d}`, reason, code)
}

// holds fails unless the kubeconfig has that content, and the directories hold nothing but the kubeconfig and, if there is to be one,
// the renewed token.
func (r *renewer) holds(what, kubeconfig string, renewed bool) {
	r.t.Helper()
	if text, err := os.ReadFile(r.files.Kubeconfig); err != nil || string(text) != kubeconfig {
		r.t.Errorf("%s: the kubeconfig is %q, %v", what, text, err)
	}
	for path, want := range map[string]bool{r.files.Kubeconfig: true, r.files.Renewed: renewed} {
		var names []string
		entries, err := os.ReadDir(filepath.Dir(path))
		if err != nil {
			r.t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		if want && !slices.Equal(names, []string{filepath.Base(path)}) || !want && len(names) > 0 {
			r.t.Errorf("%s: in %s are %v", what, filepath.Dir(path), names)
		}
	}
}

// The renewed token is in a file of its own, for the process alone, and the kubeconfig stays as the administrator wrote it.
func TestRenew(t *testing.T) {
	now := time.Now()
	r := newRenewer(t, now.Add(-50*time.Minute), now.Add(10*time.Minute))
	own, _, err := ReadFile(r.files.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	info, err := r.renew() // into a directory that is not there yet
	if err != nil {
		t.Fatal(err)
	}
	if want := "POST /api/v1/namespaces/lockkeeper/serviceaccounts/lockkeeper-coordinator/token 3600"; len(r.asked) != 1 || r.asked[0] != want || r.as[0] != own.Token {
		t.Errorf("asked %q with %q, want %q", r.asked, r.as, want)
	}
	if left := time.Until(info.Expires); left < 59*time.Minute || left > time.Hour {
		t.Errorf("valid for %v more", left)
	}
	r.holds("renewed", r.before, true)
	is, err := r.files.Read()
	if err != nil || is != info || is.Frame != own.Frame || is.Token == own.Token || is.Foreign != "" || is.Worthless != "" {
		t.Errorf("%+v, %v", is, err)
	}
	for path, want := range map[string]os.FileMode{r.files.Renewed: 0o600, filepath.Dir(r.files.Renewed): 0o700 | os.ModeDir} {
		if stat, err := os.Stat(path); err != nil || stat.Mode() != want {
			t.Errorf("%s: mode %v, %v, want %v", path, stat.Mode(), err, want)
		}
	}

	// The next one is asked for with this one. What a process that was killed left behind is no obstacle, and is not read.
	r.put(filepath.Join(filepath.Dir(r.files.Renewed), ".coordinator-token.json.next"), `{"kubeconfig":`)
	if is, err := r.files.Read(); err != nil || is != info {
		t.Errorf("with half a file beside it: %+v, %v", is, err)
	}
	r.answer = func(w http.ResponseWriter, _ int64) { r.give(w, token(time.Now(), time.Now().Add(2*time.Hour))) }
	next, err := r.renew()
	if err != nil {
		t.Fatal(err)
	}
	if len(r.as) != 2 || r.as[1] != info.Token || next.Token == info.Token || !next.Expires.After(info.Expires) {
		t.Errorf("asked with %q; %+v", r.as, next)
	}
	r.holds("renewed again", r.before, true)

	// What a kubeconfig names is beside the link that leads to it.
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(r.files.Kubeconfig, link); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(link), "ca.crt"), selfSigned(t, "ca", now, now.Add(time.Hour)), 0o600); err != nil {
		t.Fatal(err)
	}
	r.write(strings.Replace(r.before, "{server: ", "{certificate-authority: ca.crt, server: ", 1))
	r.files.Kubeconfig = link
	if _, err := r.renew(); err != nil || len(r.as) != 3 || r.as[2] != own.Token {
		t.Errorf("through a link: asked with %q, %v", r.as, err)
	}
}

// Whatever goes wrong, the old token stays in effect.
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
		"empty":       {func(w http.ResponseWriter, _ int64) { r.give(w, "") }, nil, "expected one of"},
		"nonsense":    {func(w http.ResponseWriter, _ int64) { r.give(w, "a.b.c") }, nil, "expected one of"},
		"shorter":     {func(w http.ResponseWriter, _ int64) { whole(w, 60) }, nil, "expected one of"},
		"another account": {func(w http.ResponseWriter, n int64) {
			r.give(w, jwt(fmt.Sprintf(`{"sub":"system:serviceaccount:lockkeeper:x","iat":1,"exp":%d}`, now.Unix()+n)))
		}, nil, "expected one of"},
	} {
		r.answer = c.answer
		_, err := r.renew()
		if err == nil || !strings.Contains(err.Error(), c.says) || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
		r.holds(name, r.before, false)
	}

	other := "# an admin's\n" + r.before
	r.answer = func(w http.ResponseWriter, n int64) { r.write(other); whole(w, n) }
	if _, err := r.renew(); err != nil {
		t.Errorf("replaced meanwhile: %v", err)
	}
	r.holds("replaced meanwhile", other, true)
	if info, err := r.files.Read(); err != nil || info.Worthless == "" || !strings.Contains(other, info.Token) {
		t.Errorf("replaced meanwhile: %+v, %v", info, err)
	}

	r.answer = whole
	asked := len(r.asked)
	r.write(kubeconfigOf(`{token: opaque}`))
	if _, err := r.renew(); err == nil || !strings.Contains(err.Error(), "none that lockkeeper minted") {
		t.Errorf("foreign: %v", err)
	}
	r.write(r.before)
	// Where nothing can be written nothing is asked for: each token would live for nobody. /proc takes no file of root's either.
	for _, path := range []string{"/proc/self/coordinator-token.json", "/proc/lockkeeper/coordinator-token.json"} {
		files := Files{Kubeconfig: r.files.Kubeconfig, Renewed: path}
		if _, err := Renew(t.Context(), files, "test", nil); !errors.Is(err, ErrNotWritable) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := os.Remove(r.files.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	if _, err := r.renew(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("gone: %v", err)
	}
	if len(r.asked) != asked {
		t.Errorf("asked %q in vain", r.asked[asked:])
	}
}

// Which token is in effect, whatever is in the state directory: it may have been emptied, rolled back, or copied from another host.
func TestRead(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	r := newRenewer(t, now.Add(-50*time.Minute), now.Add(10*time.Minute))
	own := token(now.Add(-50*time.Minute), now.Add(10*time.Minute))
	next := token(now.Add(-time.Minute), now.Add(59*time.Minute))
	digest := fmt.Sprintf("%x", sha256.Sum256([]byte(r.before)))
	for name, c := range map[string]struct {
		place             func()
		want              string // the token
		worthless, unread string
	}{
		"empty": {func() {}, own, "", ""},
		// The same on a host with the same kubeconfig, whichever of them was given the token.
		"renewed":                   {func() { r.renewed(r.before, next) }, next, "", ""},
		"rolled back to an old one": {func() { r.renewed(r.before, token(now.Add(-40*time.Minute), now.Add(20*time.Minute))) }, token(now.Add(-40*time.Minute), now.Add(20*time.Minute)), "", ""},
		"older than the kubeconfig": {func() { r.renewed(r.before, token(now.Add(-55*time.Minute), now.Add(5*time.Minute))) }, own, "does not expire later than the token in " + r.files.Kubeconfig, ""},
		"of another kubeconfig":     {func() { r.renewed("# before\n"+r.before, next) }, own, "belongs to different content of " + r.files.Kubeconfig, ""},
		"of no kubeconfig":          {func() { r.put(r.files.Renewed, fmt.Sprintf(`{"token":%q}`, next)) }, own, "belongs to different content", ""},
		"of another account": {func() {
			r.renewed(r.before, jwt(fmt.Sprintf(`{"sub":"system:serviceaccount:lockkeeper:x","iat":1,"exp":%d}`, now.Unix()+3600)))
		}, own, `is a token of "system:serviceaccount:lockkeeper:x", expected one of "system:serviceaccount:lockkeeper:lockkeeper-coordinator"`, ""},
		"of no account": {func() { r.renewed(r.before, "opaque") }, own, `is a token of ""`, ""},
		"cut off":       {func() { r.put(r.files.Renewed, `{"kubeconfig":"`+digest+`","token":"`+next[:20]) }, own, "is not a renewed token", ""},
		"no bytes":      {func() { r.put(r.files.Renewed, "") }, own, "is not a renewed token", ""},
		"no object":     {func() { r.put(r.files.Renewed, "null") }, own, "is not a renewed token", ""},
		"too long":      {func() { r.put(r.files.Renewed, strings.Repeat("x", MaxFile+1)) }, own, "", "longer than"},
		"a directory":   {func() { r.put(filepath.Join(r.files.Renewed, "x"), "") }, own, "", "is a directory"},
	} {
		if err := os.RemoveAll(filepath.Dir(r.files.Renewed)); err != nil {
			t.Fatal(err)
		}
		c.place()
		info, err := r.files.Read()
		if err != nil || info.Token != c.want || info.Foreign != "" || info.User != "system:serviceaccount:lockkeeper:lockkeeper-coordinator" {
			t.Errorf("%s: %+v, %v", name, info, err)
		}
		if !strings.Contains(info.Worthless, c.worthless) || (info.Worthless == "") != (c.worthless == "") ||
			!strings.Contains(info.Unread, c.unread) || (info.Unread == "") != (c.unread == "") {
			t.Errorf("%s: worthless %q, unread %q, want %q and %q", name, info.Worthless, info.Unread, c.worthless, c.unread)
		}
	}

	// What is worth nothing makes no other credential of it, and without a kubeconfig there is none.
	stamp := func() [sha256.Size]byte {
		t.Helper()
		stamp, err := r.files.Stamp()
		if err != nil {
			t.Fatal(err)
		}
		return stamp
	}
	if err := os.RemoveAll(r.files.Renewed); err != nil {
		t.Fatal(err)
	}
	plain := stamp()
	r.renewed("another", next)
	if stamp() != plain {
		t.Error("a worthless token makes another credential")
	}
	r.renewed(r.before, next)
	if stamp() == plain {
		t.Error("a renewed token makes the same credential")
	}
	r.write("clusters: 5\n")
	if broken := stamp(); broken == plain {
		t.Error("a broken kubeconfig is the same credential")
	}
	r.renewed(r.before, next)
	if err := os.Remove(r.files.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	if _, err := r.files.Stamp(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a kubeconfig: %v", err)
	}
	if _, err := r.files.Read(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a kubeconfig: %v", err)
	}
	r.write(kubeconfigOf(`{client-certificate-data: ` + base64.StdEncoding.EncodeToString(selfSigned(t, "c", now, now.Add(time.Hour))) + `, client-key-data: eA==}`))
	if info, err := r.files.Read(); err != nil || info.Kind != KindCertificate || info.Worthless == "" {
		t.Errorf("a certificate in place of the token: %+v, %v", info, err)
	}
}

// The keeper renews what is due, tells of what is not, and warns when somebody has to do something.
func TestKeeper(t *testing.T) {
	now := time.Now()
	r := newRenewer(t, now.Add(-50*time.Minute), now.Add(10*time.Minute))
	told := make(chan Health, 10)
	start := func() (k *Keeper, stop func()) {
		k = NewKeeper(r.files, "test", slog.New(slog.DiscardHandler), func(h Health) { told <- h }, nil)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { k.Run(ctx) })
		return k, func() { cancel(); running.Wait() }
	}
	_, stop := start()
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
	if text := h.Text(now); !strings.HasPrefix(text, r.files.Kubeconfig+", valid for ") || !strings.Contains(text, "renews itself at") {
		t.Errorf("says %q", text)
	}

	stop()
	r.answer = func(w http.ResponseWriter, _ int64) { r.refuse(w, 403, "Forbidden") }
	r.write("# another\n" + r.before) // with the kubeconfig's own token again
	k, stop := start()
	defer stop()
	h = next()
	warning := h.Warning(now)
	for _, part := range []string{r.files.Kubeconfig, "expires in 9 minutes", "may not renew its own token", "`lockkeeper kubeconfig` mints a new one"} {
		if !strings.Contains(warning, part) {
			t.Errorf("warns %q, without %q", warning, part)
		}
	}
	if h.Renewals != 0 || h.Failures != 1 || h.FailedSince.IsZero() || r.isRenewed() {
		t.Errorf("%+v", h)
	}
	asked := len(r.asked)
	if err := os.Remove(r.files.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	k.Look()
	if h = next(); h.Present || h.Failed != "" || h.Warning(now) != "" || len(r.asked) != asked {
		t.Errorf("gone: %+v, asked %q", h, r.asked[asked:])
	}
	if err := os.WriteFile(r.files.Kubeconfig, []byte("clusters: 5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	k.Look()
	if h = next(); !h.Present || !strings.Contains(h.Text(now), r.files.Kubeconfig) || h.Problem == "" {
		t.Errorf("broken: %+v", h)
	}
}

// The renewed token goes with its kubeconfig: at once when that is another one, and when it has been gone for a while. A tool that
// writes the same content again does not cost it.
func TestKeeperRemovesWhatIsWorthless(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	r := newRenewer(t, now.Add(-20*time.Minute), now.Add(40*time.Minute))
	next := token(now, now.Add(time.Hour))
	k := NewKeeper(r.files, "test", slog.New(slog.DiscardHandler), nil, nil)
	at := func(after time.Duration, what string, want bool) {
		t.Helper()
		k.look(t.Context(), now.Add(after))
		if got := r.isRenewed(); got != want {
			t.Errorf("%s, after %v: the renewed token is there: %t, want %t", what, after, got, want)
		}
	}
	gone := func() {
		t.Helper()
		if err := os.Remove(r.files.Kubeconfig); err != nil {
			t.Fatal(err)
		}
	}
	r.renewed(r.before, next)
	at(0, "in effect", true)
	if !k.health.Expires.Equal(now.Add(time.Hour)) {
		t.Errorf("it expires at %v", k.health.Expires)
	}
	gone()
	at(time.Minute, "gone", true)
	at(time.Minute+goneFor-time.Second, "gone", true)
	r.write(r.before)
	at(2*time.Minute, "back", true)
	r.write(r.before[:len(r.before)/2])
	at(3*time.Minute, "half written", true)
	gone()
	at(4*time.Minute, "gone again", true)
	at(4*time.Minute+goneFor, "gone again", false)

	r.write(r.before)
	r.renewed(r.before, next)
	r.write("# another\n" + r.before)
	at(10*time.Minute, "replaced", false)
	r.write(r.before)
	at(11*time.Minute, "the old content again", false)
	if !k.health.Expires.Equal(now.Add(40 * time.Minute)) {
		t.Errorf("it expires at %v", k.health.Expires)
	}
	if len(r.asked) > 0 {
		t.Errorf("asked %q", r.asked)
	}
}

// The keeper looks again when the time has come, without a hint.
func TestKeeperLooksAgainWhenTheKubeconfigIsGone(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		files := Files{Kubeconfig: filepath.Join(dir, "coordinator.kubeconfig"), Renewed: filepath.Join(dir, "coordinator-token.json")}
		if err := os.WriteFile(files.Renewed, []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		k := NewKeeper(files, "test", slog.New(slog.DiscardHandler), nil, nil)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { k.Run(ctx) })
		defer running.Wait()
		defer stop()
		is := func(after time.Duration, want bool) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if _, err := os.Stat(files.Renewed); (err == nil) != want {
				t.Errorf("after %v more: %v", after, err)
			}
		}
		is(goneFor-time.Second, true)
		is(2*time.Second, false)
	})
}

// After a renewal, whatever came of it, the keeper waits before it asks for another token.
func TestKeeperWaits(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	for name, c := range map[string]struct {
		answer func(r *renewer, w http.ResponseWriter, whole func(http.ResponseWriter, int64), seconds int64)
		wait   time.Duration
		failed bool
	}{
		// A tenth of the ten minutes that are left.
		"refused": {func(r *renewer, w http.ResponseWriter, _ func(http.ResponseWriter, int64), _ int64) {
			r.refuse(w, 403, "Forbidden")
		}, time.Minute, true},
		"replaced by another comment": {func(r *renewer, w http.ResponseWriter, whole func(http.ResponseWriter, int64), n int64) {
			r.write(fmt.Sprintf("# %d\n", len(r.asked)) + r.before)
			whole(w, n)
		}, renewPause, false},
		"replaced by another token": {func(r *renewer, w http.ResponseWriter, whole func(http.ResponseWriter, int64), n int64) {
			was, err := inspect(r.files.Kubeconfig, []byte(r.before))
			if err != nil {
				t.Error(err)
			}
			other := token(now.Add(-50*time.Minute), now.Add(10*time.Minute+time.Duration(len(r.asked))*time.Second))
			r.write(strings.Replace(r.before, was.Token, other, 1))
			whole(w, n)
		}, renewPause, false},
	} {
		r := newRenewer(t, now.Add(-50*time.Minute), now.Add(10*time.Minute))
		whole := r.answer
		r.answer = func(w http.ResponseWriter, seconds int64) { c.answer(r, w, whole, seconds) }
		k := NewKeeper(r.files, "test", slog.New(slog.DiscardHandler), nil, nil)
		for _, step := range []struct {
			at   time.Duration
			want int
		}{{0, 1}, {0, 1}, {c.wait - time.Second, 1}, {c.wait, 2}, {c.wait, 2}} {
			k.look(t.Context(), now.Add(step.at))
			if len(r.asked) != step.want {
				t.Errorf("%s: after %v asked %d times, want %d", name, step.at, len(r.asked), step.want)
			}
			if h := k.health; c.failed && h.Failures != step.want || !c.failed && (h.Renewals != step.want || h.Failures != 0) {
				t.Errorf("%s: after %v %+v", name, step.at, h)
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
