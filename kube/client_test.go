package kube

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

func TestSkew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &answers{}
		c := &Client{answers: a}
		if _, ok := c.Skew(); ok {
			t.Fatal("there is a skew before the first answer")
		}
		// answer is an answer to a request that takes the given times there and back, from a server whose clock is
		// ahead by that much.
		answer := func(ahead, there, back time.Duration) {
			r, err := a.wrap(roundTripper(func(*http.Request) (*http.Response, error) {
				time.Sleep(there)
				date := time.Now().Add(ahead).UTC().Format(http.TimeFormat)
				time.Sleep(back)
				return &http.Response{Header: http.Header{"Date": {date}}}, nil
			})).RoundTrip(&http.Request{})
			if err != nil || r == nil {
				t.Fatal(r, err)
			}
		}
		near := func(want time.Duration) {
			t.Helper()
			got, ok := c.Skew()
			if off := (got - want).Abs(); !ok || off > 3*time.Second {
				t.Errorf("skew %v (%t), expected about %v", got, ok, want)
			}
		}
		answer(0, 0, 0)
		near(0)
		answer(-40*time.Second, 0, 300*time.Millisecond)
		near(-40 * time.Second)
		answer(time.Hour, 4*time.Second, 0)
		near(time.Hour)
		// The server may have written the date right after the request, or right before the answer.
		answer(0, 0, 4900*time.Millisecond)
		near(0)
		answer(0, 4900*time.Millisecond, 0)
		near(0)
		answer(time.Hour, 0, 0)
		// An answer that took long, or during which this process was stopped, is ignored.
		answer(0, time.Second, 2*time.Minute)
		near(time.Hour)
		answer(0, 0, time.Second)
		near(0)
		// An answer without a date and a missing answer are ignored too.
		for _, header := range []http.Header{{}, {"Date": {"yesterday"}}} {
			a.wrap(roundTripper(func(*http.Request) (*http.Response, error) { return &http.Response{Header: header}, nil })).RoundTrip(&http.Request{})
			near(0)
		}
		a.wrap(roundTripper(func(*http.Request) (*http.Response, error) { return nil, http.ErrServerClosed })).RoundTrip(&http.Request{})
		near(0)
	})
}

// TestSkewOfAClockThatIsSet checks that the skew is right as soon as this host's clock has been set, before the next answer.
func TestSkewOfAClockThatIsSet(t *testing.T) {
	server := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	here := server.Add(-3 * time.Second)
	d := &dated{server: server, at: here}
	for _, c := range []struct{ elapsed, set, want time.Duration }{
		{0, 0, 3 * time.Second},
		{time.Minute, 0, 3 * time.Second},
		{5 * time.Second, time.Hour, 3*time.Second - time.Hour},
		{5 * time.Second, -time.Hour, 3*time.Second + time.Hour},
	} {
		if got := d.ahead(c.elapsed, here.Add(c.elapsed+c.set)); got != c.want {
			t.Errorf("%v after the answer, the clock set by %v: ahead %v, expected %v", c.elapsed, c.set, got, c.want)
		}
	}
}

func TestNodeName(t *testing.T) {
	for user, want := range map[string]string{
		"system:node:n1.example.org": "n1.example.org",
		"system:node:":               "",
		"kubernetes-admin":           "",
		"":                           "",
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPost || r.URL.Path != "/apis/authentication.k8s.io/v1/selfsubjectreviews" {
				t.Errorf("%s %s", r.Method, r.URL.Path)
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusCreated)
			json.NewEncoder(w).Encode(authenticationv1.SelfSubjectReview{
				TypeMeta: metav1.TypeMeta{Kind: "SelfSubjectReview", APIVersion: "authentication.k8s.io/v1"},
				Status:   authenticationv1.SelfSubjectReviewStatus{UserInfo: authenticationv1.UserInfo{Username: user}},
			})
		}))
		client, err := ConnectConfig(&rest.Config{Host: server.URL}, "host", "test", 10, 10)
		must(t, err)
		name, err := NodeName(t.Context(), client)
		if name != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", user, name, err, want)
		}
		if err != nil && !strings.Contains(err.Error(), "node_name") {
			t.Errorf("%q: the error does not name node_name: %v", user, err)
		}
		server.Close()
		if _, err := NodeName(t.Context(), client); err == nil {
			t.Error("no error although the API server is down")
		}
	}
}

func TestErrorsNameTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, os.WriteFile(path, []byte("clusters: 5"), 0o600))
	if c, err := New(Options{Identity: "host", Paths: []string{path}}).Client(); c != nil || err == nil || !strings.Contains(err.Error(), "kubeconfig "+path+": ") {
		t.Errorf("%v, %v; expected an error that names %s", c, err, path)
	}
	c, err := New(Options{Identity: "host", Paths: []string{path + ".missing"}, Absent: "none there"}).Client()
	if _, absent := errors.AsType[AbsentError](err); c != nil || !absent || err.Error() != "none there" {
		t.Errorf("%v, %v; expected an AbsentError", c, err)
	}
}

// TestNoKubeconfig checks that the error for a kubeconfig without content names the file, if the user named one.
func TestNoKubeconfig(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		file, env, want string
		none            bool // a host shows what it knows instead
	}{
		{empty, "", "kubeconfig: " + empty + " is empty or is no kubeconfig, expected clusters, contexts and users", false},
		{"", empty, "no kubeconfig: KUBECONFIG names " + empty + ", which is missing, empty or no kubeconfig", true},
		{"", empty + "x", "no kubeconfig: KUBECONFIG names " + empty + "x, which is missing, empty or no kubeconfig", true},
	} {
		t.Setenv("KUBECONFIG", tc.env)
		_, err := Caller{Kubeconfig: tc.file}.Connect()
		if err == nil || err.Error() != tc.want || errors.Is(err, ErrNoKubeconfig) != tc.none {
			t.Errorf("--kubeconfig %q, KUBECONFIG=%q: %v, expected %s", tc.file, tc.env, err, tc.want)
		}
	}
}
