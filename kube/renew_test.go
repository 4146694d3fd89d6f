package kube

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/pem"
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
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"lockkeeper.dev/lockkeeper/api/v1alpha1"
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
		if renew, warn := renewAt(issued, expires), warnAt(issued, expires); !renew.Equal(at(c.renew)) || !warn.Equal(at(c.warn)) {
			t.Errorf("%s to %s: renewal at %s, warning at %s, expected %s and %s", c.issued, c.expires, stamp(renew), stamp(warn), c.renew, c.warn)
		}
	}
	for left, want := range map[time.Duration]time.Duration{
		30 * 24 * time.Hour: time.Hour, 10 * time.Hour: time.Hour, time.Hour: 6 * time.Minute,
		3 * time.Minute: 18 * time.Second, time.Minute: 10 * time.Second, 0: 10 * time.Second,
	} {
		if got := retryAfter(left); got != want {
			t.Errorf("with %v left the next try is after %v, expected %v", left, got, want)
		}
	}
}

// renewer is an API server that issues tokens, with a kubeconfig for it that contains a token with this lifetime.
type renewer struct {
	t      *testing.T
	files  struct{ Kubeconfig, Renewed string }
	asked  []string
	as     []string // the tokens of the requests
	answer func(w http.ResponseWriter, seconds int64)
	before string // the kubeconfig
	ca     string // CA of the server, in base64
}

func newRenewer(t *testing.T, issued, expires time.Time) *renewer {
	t.Helper()
	r := &renewer{t: t}
	r.files.Kubeconfig = filepath.Join(t.TempDir(), "coordinator.kubeconfig")
	r.files.Renewed = filepath.Join(t.TempDir(), "lockkeeper", "coordinator-token.json")
	r.answer = func(w http.ResponseWriter, seconds int64) {
		r.give(w, token(time.Now(), time.Now().Add(time.Duration(seconds)*time.Second)))
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
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
	r.ca = caOf(server)
	r.before = strings.Replace(kubeconfigOf(`{token: `+token(issued, expires)+`}`), "{server: https://a", "{certificate-authority-data: "+caOf(server)+", server: "+server.URL, 1)
	r.write(r.before)
	return r
}

// caOf returns the server's certificate authority in the form of a kubeconfig.
func caOf(server *httptest.Server) string {
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
}

func mustDecode(t *testing.T, text string) []byte {
	t.Helper()
	data, err := base64.StdEncoding.DecodeString(text)
	must(t, err)
	return data
}

// token returns a token of the coordinator's service account.
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

// renewed writes the token as the renewed token of that kubeconfig.
func (r *renewer) renewed(kubeconfig, token string) {
	r.t.Helper()
	r.put(r.files.Renewed, fmt.Sprintf(`{"kubeconfig":"%x","token":%q}`, sha256.Sum256([]byte(kubeconfig)), token))
}

func (r *renewer) isRenewed() bool {
	_, err := os.Stat(r.files.Renewed)
	return err == nil
}

func (r *renewer) credential(report func(State)) *Credential {
	return New(Options{
		Identity: v1alpha1.IdentityCoordinator, Paths: []string{r.files.Kubeconfig}, Absent: "no kubeconfig", Renewed: r.files.Renewed,
		Version: "test", QPS: 100, Burst: 100, Report: report,
	})
}

// read returns the credential in effect for a process that starts now.
func (r *renewer) read() (*kubeconfig, error) {
	return readKubeconfig(r.files.Kubeconfig, r.files.Renewed)
}

// renew renews the token like a process that starts now.
func (r *renewer) renew() (*kubeconfig, error) {
	if err := r.credential(nil).Renew(r.t.Context()); err != nil {
		return nil, err
	}
	return r.read()
}

// look does what the loop does at that time.
func look(t *testing.T, c *Credential, now time.Time) {
	t.Helper()
	c.read(now)
	c.maintain(t.Context(), now)
}

func (r *renewer) give(w http.ResponseWriter, token string) {
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","spec":{"audiences":["x"]},"status":{"token":%q,"expirationTimestamp":"2026-01-02T03:04:05Z"}}`, token)
}

func (r *renewer) refuse(w http.ResponseWriter, code int, reason string) {
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"message":"by the test","code":%d}`, reason, code)
}

// holds fails the test unless the kubeconfig has that content, and the directories contain only the kubeconfig and, if
// expected, the renewed token.
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
			r.t.Errorf("%s: %s contains %v", what, filepath.Dir(path), names)
		}
	}
}

// TestRenew checks that the renewed token is in a separate file that only the process can read, and that the kubeconfig
// stays as the administrator wrote it.
func TestRenew(t *testing.T) {
	now := time.Now()
	r := newRenewer(t, now.Add(-50*time.Minute), now.Add(10*time.Minute))
	own, err := r.read()
	if err != nil {
		t.Fatal(err)
	}
	ownToken := own.user.Token
	got, err := r.renew() // into a directory that does not exist yet
	if err != nil {
		t.Fatal(err)
	}
	gotToken := got.user.Token
	if want := "POST /api/v1/namespaces/lockkeeper/serviceaccounts/lockkeeper-coordinator/token 3600"; len(r.asked) != 1 || r.asked[0] != want || r.as[0] != ownToken {
		t.Errorf("requests %q with the tokens %q, expected %q", r.asked, r.as, want)
	}
	if left := time.Until(got.claims.expires); left < 59*time.Minute || left > time.Hour {
		t.Errorf("still valid for %v", left)
	}
	r.holds("renewed", r.before, true)
	if gotToken == ownToken || got.claims.user != own.claims.user || got.claims.notRenewed != "" || got.notUsed != "" {
		t.Errorf("%+v", got.claims)
	}
	for path, want := range map[string]os.FileMode{r.files.Renewed: 0o600, filepath.Dir(r.files.Renewed): 0o700 | os.ModeDir} {
		if stat, err := os.Stat(path); err != nil || stat.Mode() != want {
			t.Errorf("%s: mode %v, %v, want %v", path, stat.Mode(), err, want)
		}
	}

	// The next request uses this token. The remains of a killed process are not read and are not an obstacle.
	r.put(filepath.Join(filepath.Dir(r.files.Renewed), ".coordinator-token.json.next"), `{"kubeconfig":`)
	if is, err := r.read(); err != nil || is.claims != got.claims || is.user.Token != gotToken {
		t.Errorf("with a partial file next to it: %+v, %v", is, err)
	}
	r.answer = func(w http.ResponseWriter, _ int64) { r.give(w, token(time.Now(), time.Now().Add(2*time.Hour))) }
	next, err := r.renew()
	if err != nil {
		t.Fatal(err)
	}
	if len(r.as) != 2 || r.as[1] != gotToken || next.user.Token == gotToken || !next.claims.expires.After(got.claims.expires) {
		t.Errorf("request with %q; %+v", r.as, next.claims)
	}
	r.holds("renewed again", r.before, true)

	// Relative paths in a kubeconfig are relative to the link.
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(r.files.Kubeconfig, link); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(link), "ca.crt"), mustDecode(t, r.ca), 0o600); err != nil {
		t.Fatal(err)
	}
	r.write(strings.Replace(r.before, "{certificate-authority-data: "+r.ca+", ", "{certificate-authority: ca.crt, ", 1))
	r.files.Kubeconfig = link
	if _, err := r.renew(); err != nil || len(r.as) != 3 || r.as[2] != ownToken {
		t.Errorf("through a link: request with %q, %v", r.as, err)
	}
}

// TestRenewSaysWhatIsWrong checks that the old token stays in effect after any error.
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
		t.Errorf("replaced in the meantime: %v", err)
	}
	r.holds("replaced meanwhile", other, true)
	if is, err := r.read(); err != nil || !is.never || !strings.Contains(other, is.user.Token) {
		t.Errorf("replaced in the meantime: %+v, %v", is, err)
	}

	r.answer = whole
	asked := len(r.asked)
	r.write(kubeconfigOf(`{token: opaque}`))
	if _, err := r.renew(); err == nil || !strings.Contains(err.Error(), "lockkeeper did not mint it") {
		t.Errorf("foreign: %v", err)
	}
	r.write(r.before)
	// If nothing can be written, no token is requested, because it would be lost. /proc accepts no file, not even from
	// root.
	for _, path := range []string{"/proc/self/coordinator-token.json", "/proc/lockkeeper/coordinator-token.json"} {
		own := r.files.Renewed
		r.files.Renewed = path
		if _, err := r.renew(); !errors.Is(err, ErrNotWritable) {
			t.Errorf("%s: %v", path, err)
		}
		r.files.Renewed = own
	}
	if err := os.Remove(r.files.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	if _, err := r.renew(); err == nil || err.Error() != "no kubeconfig" {
		t.Errorf("gone: %v", err)
	}
	if len(r.asked) != asked {
		t.Errorf("pointless requests %q", r.asked[asked:])
	}
}

// TestRead checks which token is in effect, whatever the state directory contains: it may have been emptied, rolled
// back, or copied from another host.
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
		// The result is the same on a host with the same kubeconfig, whichever host got the token.
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
		"too long":      {func() { r.put(r.files.Renewed, strings.Repeat("x", maxFile+1)) }, own, "", "larger than"},
		"a directory":   {func() { r.put(filepath.Join(r.files.Renewed, "x"), "") }, own, "", "is a directory"},
	} {
		if err := os.RemoveAll(filepath.Dir(r.files.Renewed)); err != nil {
			t.Fatal(err)
		}
		c.place()
		k, err := r.read()
		must(t, err)
		if k.user.Token != c.want || k.claims.notRenewed != "" || k.claims.user != "system:serviceaccount:lockkeeper:lockkeeper-coordinator" {
			t.Errorf("%s: %+v", name, k.claims)
		}
		if want := c.worthless + c.unread; !strings.Contains(k.notUsed, want) || (k.notUsed == "") != (want == "") || k.never != (c.worthless != "") {
			t.Errorf("%s: not used because %q (permanently: %t), expected %q", name, k.notUsed, k.never, want)
		}
	}

	// A renewed token that is not used makes no difference.
	content := func() string {
		t.Helper()
		k, err := readKubeconfig(r.files.Kubeconfig, r.files.Renewed)
		must(t, err)
		return k.content()
	}
	must(t, os.RemoveAll(r.files.Renewed))
	plain := content()
	r.renewed("another", next)
	if content() != plain {
		t.Error("an unused renewed token changes the credential")
	}
	r.renewed(r.before, next)
	if content() == plain {
		t.Error("a renewed token does not change the credential")
	}
	pair := base64.StdEncoding.EncodeToString(selfSigned(t, "c", now, now.Add(time.Hour)))
	r.write(kubeconfigOf(`{client-certificate-data: ` + pair + `, client-key-data: ` + pair + `}`))
	if info, err := r.read(); err != nil || info.cert == nil || !info.never {
		t.Errorf("certificate instead of the token: %+v, %v", info, err)
	}
}

// TestRunRenews checks that Run renews a token that is due, reports a token that it cannot renew, and warns if an admin
// has to act.
func TestRunRenews(t *testing.T) {
	now := time.Now()
	r := newRenewer(t, now.Add(-50*time.Minute), now.Add(10*time.Minute))
	told := make(chan State, 100)
	start := func() (stop func()) {
		c := r.credential(func(s State) { told <- s })
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { c.Run(ctx) })
		return func() { cancel(); running.Wait() }
	}
	until := func(what string, is func(State) bool) (s State) {
		t.Helper()
		for {
			select {
			case s = <-told:
				if is(s) {
					return s
				}
			case <-time.After(time.Minute):
				t.Fatalf("timed out waiting for %s: %+v", what, s)
			}
		}
	}
	stop := start()
	s := until("its renewal", func(s State) bool { return s.Renewals == 1 })
	if s.Failures != 0 || time.Until(s.Renews) < 35*time.Minute || problemOf(s, now) != "" || s.RenewError != "" {
		t.Errorf("%+v", s)
	}

	stop()
	r.answer = func(w http.ResponseWriter, _ int64) { r.refuse(w, 403, "Forbidden") }
	r.write("# another\n" + r.before) // uses the kubeconfig's own token again
	stop = start()
	defer stop()
	s = until("its failure", func(s State) bool { return s.Failures == 1 })
	warning := problemOf(s, now)
	for _, part := range []string{r.files.Kubeconfig, "expires in 9 minutes", "may not renew its own token", "`lockkeeper kubeconfig` mints a new one"} {
		if !strings.Contains(warning, part) {
			t.Errorf("warns %q, without %q", warning, part)
		}
	}
	if s.Renewals != 0 || s.RenewErrorSince.IsZero() {
		t.Errorf("%+v", s)
	}
	asked := len(r.asked)
	must(t, os.Remove(r.files.Kubeconfig))
	s = until("its end", func(s State) bool { return !s.Present })
	s = until("its end without a failure", func(s State) bool { return s.RenewError == "" })
	if s.Present || problemOf(s, now) != "" || len(r.asked) != asked {
		t.Errorf("gone: %+v, asked %q", s, r.asked[asked:])
	}
	must(t, os.WriteFile(r.files.Kubeconfig, []byte("clusters: 5\n"), 0o600))
	s = until("its problem", func(s State) bool { return s.Error != "" })
	if !s.Present || !strings.Contains(s.Error, r.files.Kubeconfig) {
		t.Errorf("broken: %+v", s)
	}
}

// TestRenewalThatHangs checks that a hanging renewal does not delay the end of a client whose kubeconfig is gone.
func TestRenewalThatHangs(t *testing.T) {
	now := time.Now()
	r := newRenewer(t, now.Add(-50*time.Minute), now.Add(10*time.Minute))
	asked, done := make(chan struct{}), make(chan struct{})
	r.answer = func(w http.ResponseWriter, _ int64) {
		close(asked)
		<-done
		r.refuse(w, 403, "Forbidden")
	}
	c := r.credential(nil)
	client, err := c.Client()
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	defer running.Wait()
	defer cancel()
	defer close(done)
	select {
	case <-asked:
	case <-time.After(time.Minute):
		t.Fatal("no renewal")
	}
	began := time.Now()
	must(t, os.Remove(r.files.Kubeconfig))
	select {
	case <-client.Context().Done():
	case <-time.After(time.Minute):
	}
	if took := time.Since(began); took > Timeout/2 {
		t.Errorf("the client ended after %v", took)
	}
}

// TestWorthlessTokensAreRemoved checks that the renewed token is removed a while after its kubeconfig was replaced or
// is gone. A tool that writes the same content again does not cause a removal.
func TestWorthlessTokensAreRemoved(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	r := newRenewer(t, now.Add(-20*time.Minute), now.Add(40*time.Minute))
	next := token(now, now.Add(time.Hour))
	c := r.credential(nil)
	at := func(after time.Duration, what string, want bool) {
		t.Helper()
		look(t, c, now.Add(after))
		if got := r.isRenewed(); got != want {
			t.Errorf("%s, after %v: renewed token exists %t, expected %t", what, after, got, want)
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
	if !c.State().Expires.Equal(now.Add(time.Hour)) {
		t.Errorf("the credential expires at %v", c.State().Expires)
	}
	gone()
	at(time.Minute, "gone", true)
	at(time.Minute+lasting-time.Second, "gone", true)
	r.write(r.before)
	at(2*time.Minute, "back", true)
	r.write(r.before[:len(r.before)/2])
	at(3*time.Minute, "half written", true)
	gone()
	at(4*time.Minute, "gone again", true)
	at(4*time.Minute+lasting, "gone again", false)

	r.write(r.before)
	r.renewed(r.before, next)
	at(9*time.Minute, "in effect again", true)
	r.write("# another\n" + r.before)
	at(10*time.Minute, "replaced", true)
	at(10*time.Minute+lasting-time.Second, "replaced", true)
	if again := c.read(now.Add(10*time.Minute + lasting - time.Second)); again > lasting {
		t.Errorf("replaced: reads again after %v, expected less than %v", again, lasting)
	}
	at(10*time.Minute+lasting, "replaced", false)
	r.write(r.before)
	at(11*time.Minute, "the old content again", false)
	if !c.State().Expires.Equal(now.Add(40 * time.Minute)) {
		t.Errorf("the credential expires at %v", c.State().Expires)
	}
	if len(r.asked) > 0 {
		t.Errorf("asked %q", r.asked)
	}
}

// TestHalfWrittenKeepsTheRenewedToken checks that a tool that writes the same kubeconfig again, in several writes, does
// not cause a removal either: cut off within the token, which comes last, a kubeconfig looks like a whole one.
func TestHalfWrittenKeepsTheRenewedToken(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	r := newRenewer(t, now.Add(-91*24*time.Hour), now.Add(-24*time.Hour))
	config, err := clientcmd.Load([]byte(r.before))
	must(t, err)
	text, err := clientcmd.Write(*config) // as `lockkeeper kubeconfig` writes it
	must(t, err)
	whole := string(text)
	r.write(whole)
	r.renewed(whole, token(now, now.Add(90*24*time.Hour)))
	c := r.credential(nil)
	for _, step := range []struct {
		after time.Duration
		text  string
	}{{0, whole}, {time.Minute, whole[:len(whole)-10]}, {time.Minute + time.Second, whole}, {time.Hour, whole}} {
		r.write(step.text)
		look(t, c, now.Add(step.after))
	}
	if s := c.State(); !r.isRenewed() || !s.Expires.Equal(now.Add(90*24*time.Hour)) {
		t.Errorf("the renewed token exists: %t; the credential in use expires at %s, expected %s", r.isRenewed(), stamp(s.Expires), stamp(now.Add(90*24*time.Hour)))
	}
}

// TestReadsAgainWhenTheKubeconfigIsGone checks that the files are read again at the time at which a renewed token
// without a kubeconfig is removed.
func TestReadsAgainWhenTheKubeconfigIsGone(t *testing.T) {
	r := newRenewer(t, time.Now(), time.Now().Add(time.Hour))
	must(t, os.Remove(r.files.Kubeconfig))
	c := r.credential(nil)
	if again := c.read(time.Now()); again > lasting {
		t.Errorf("reads again after %v, expected less than %v", again, lasting)
	}
}

// TestHalfWrittenIsNotRenewed checks that the token of a half-written kubeconfig is not renewed, because the new token
// would belong to content that is gone.
func TestHalfWrittenIsNotRenewed(t *testing.T) {
	now := time.Now()
	r := newRenewer(t, now.Add(-20*time.Minute), now.Add(40*time.Minute))
	c := r.credential(nil)
	look(t, c, now)
	r.write(r.before[:100])
	look(t, c, now.Add(30*time.Minute))
	if len(r.asked) > 0 || !c.State().Present {
		t.Errorf("asked %q", r.asked)
	}
	r.write(r.before)
	look(t, c, now.Add(31*time.Minute))
	if len(r.asked) != 1 {
		t.Errorf("whole again: asked %q", r.asked)
	}
}

// TestRenewalsWait checks that there is a pause after each renewal, whatever its result.
func TestRenewalsWait(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	for name, c := range map[string]struct {
		answer func(r *renewer, w http.ResponseWriter, whole func(http.ResponseWriter, int64), seconds int64)
		wait   time.Duration
		failed bool
	}{
		// A tenth of the remaining ten minutes.
		"refused": {func(r *renewer, w http.ResponseWriter, _ func(http.ResponseWriter, int64), _ int64) {
			r.refuse(w, 403, "Forbidden")
		}, time.Minute, true},
		"replaced by another comment": {func(r *renewer, w http.ResponseWriter, whole func(http.ResponseWriter, int64), n int64) {
			r.write(fmt.Sprintf("# %d\n", len(r.asked)) + r.before)
			whole(w, n)
		}, renewPause, false},
		"replaced by another token": {func(r *renewer, w http.ResponseWriter, whole func(http.ResponseWriter, int64), n int64) {
			was := strings.TrimSuffix(r.before[strings.Index(r.before, "token: ")+len("token: "):], "}}]\n")
			other := token(now.Add(-50*time.Minute), now.Add(10*time.Minute+time.Duration(len(r.asked))*time.Second))
			r.write(strings.Replace(r.before, was, other, 1))
			whole(w, n)
		}, renewPause, false},
	} {
		r := newRenewer(t, now.Add(-50*time.Minute), now.Add(10*time.Minute))
		whole := r.answer
		r.answer = func(w http.ResponseWriter, seconds int64) { c.answer(r, w, whole, seconds) }
		k := r.credential(nil)
		for _, step := range []struct {
			at   time.Duration
			want int
		}{{0, 1}, {0, 1}, {c.wait - time.Second, 1}, {c.wait, 2}, {c.wait, 2}} {
			look(t, k, now.Add(step.at))
			if len(r.asked) != step.want {
				t.Errorf("%s: after %v %d requests, expected %d", name, step.at, len(r.asked), step.want)
			}
			if h := k.State(); c.failed && h.Failures != step.want || !c.failed && (h.Renewals != step.want || h.Failures != 0) {
				t.Errorf("%s: after %v %+v", name, step.at, h)
			}
		}
	}
}

func TestWarning(t *testing.T) {
	issued := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	expires := issued.Add(90 * 24 * time.Hour)
	h := State{Identity: v1alpha1.IdentityCoordinator, File: "/f", Present: true, Issued: issued, Expires: expires, NotRenewed: "it is a certificate"}
	for left, want := range map[time.Duration]string{
		8 * 24 * time.Hour:         "",
		7 * 24 * time.Hour:         "the coordinator's credential in /f expires in 7 days; `lockkeeper kubeconfig` mints a new one; it is not renewed: it is a certificate",
		40*time.Hour + time.Minute: "the coordinator's credential in /f expires in 40 hours; `lockkeeper kubeconfig` mints a new one; it is not renewed: it is a certificate",
		100 * time.Minute:          "the coordinator's credential in /f expires in 100 minutes; `lockkeeper kubeconfig` mints a new one; it is not renewed: it is a certificate",
		0:                          "the coordinator's credential in /f expired at 2026-04-01T00:00:00Z; `lockkeeper kubeconfig` mints a new one",
		-48 * time.Hour:            "the coordinator's credential in /f expired at 2026-04-01T00:00:00Z; `lockkeeper kubeconfig` mints a new one",
	} {
		if got, fails := h.Problem(expires.Add(-left)); got != want || fails != (left <= 0) {
			t.Errorf("%v left: %q, fails %t, want %q", left, got, fails, want)
		}
	}
	h.NotRenewed = ""
	if got := problemOf(h, expires.Add(-time.Hour)); got != "" {
		t.Errorf("warning about a credential that is about to be renewed: %q", got)
	}
}

// TestWarningIsLogged checks that an admin finds in the journal that a credential that is not renewed expires: once a day, and when it
// has expired.
func TestWarningIsLogged(t *testing.T) {
	const day = 24 * time.Hour
	issued := time.Now().Truncate(time.Second)
	path := filepath.Join(t.TempDir(), "coordinator.kubeconfig")
	foreign := jwt(fmt.Sprintf(`{"sub":"system:serviceaccount:lockkeeper:x","iat":%d,"exp":%d}`, issued.Unix(), issued.Add(8*day).Unix()))
	must(t, os.WriteFile(path, []byte(kubeconfigOf(`{token: `+foreign+`}`)), 0o600))
	var log bytes.Buffer
	c := New(Options{Identity: v1alpha1.IdentityCoordinator, Paths: []string{path}, Absent: "no kubeconfig", Renewed: path + ".renewed",
		Log: slog.New(slog.NewTextHandler(&log, nil)), LogEvent: logEvent})
	for _, step := range []struct {
		after   time.Duration
		expires int // how often the journal says by now that it expires
		expired int
	}{
		{6*day - time.Hour, 0, 0}, {6*day + time.Hour, 1, 0}, {6*day + 2*time.Hour, 1, 0}, {7*day + time.Hour, 2, 0}, {7*day + 2*time.Hour, 2, 0},
		{8 * day, 2, 1}, {9 * day, 2, 1},
	} {
		look(t, c, issued.Add(step.after))
		expires, expired := strings.Count(log.String(), "the coordinator's credential in "+path+" expires in "), strings.Count(log.String(), "the coordinator's credential in "+path+" expired at ")
		if expires != 2*step.expires || expired != 2*step.expired { // each line has the text twice
			t.Errorf("after %v:\n%s", step.after, &log)
		}
	}
}

func problemOf(s State, now time.Time) string {
	text, _ := s.Problem(now)
	return text
}
