package kube

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestUnusableKubeconfigIsToldOf checks that Check reports a kubeconfig that has become unusable, while the previous
// content stays in use, but not a kubeconfig that is being written.
func TestUnusableKubeconfigIsToldOf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubelet.conf")
	write := func(text string) { t.Helper(); must(t, os.WriteFile(path, []byte(text), 0o600)) }
	good := `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:1"}}], "users": [{"name": "u", "user": {"token": "t"}}],
		"contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}]}`
	write(good)
	f := New(Options{Identity: v1alpha1.IdentityHost, Paths: []string{path}, Absent: "no kubeconfig of the kubelet's"})
	c, err := f.Client()
	must(t, err)
	// later returns the trouble that Check reports after a time.
	later := func(d time.Duration) *Trouble {
		t.Helper()
		f.read(time.Now())
		f.problem.since = f.problem.since.Add(-d)
		err := c.Check()
		if err == nil {
			return nil
		}
		trouble, ok := errors.AsType[*Trouble](err)
		if !ok {
			t.Fatalf("%v", err)
		}
		return trouble
	}
	silent := func(d time.Duration) {
		t.Helper()
		if told := later(d); told != nil {
			t.Errorf("reported %q, expected nothing", told.Text)
		}
	}
	tells := func(d time.Duration, begins string) {
		t.Helper()
		told := later(d)
		if told == nil || told.Reason != "" || !told.Usable || !told.Local || !strings.HasPrefix(told.Text, begins) || !strings.HasSuffix(told.Text, "; its previous content is still in use") {
			t.Errorf("reported %+v, expected %s", told, begins)
		}
	}
	silent(0)
	write(good[:100])
	silent(0)
	silent(9 * time.Second)
	// The kubeconfig has been unusable for ten seconds, for changing reasons.
	write("clusters: 5\n")
	tells(time.Second, "kubeconfig "+path+": ")
	must(t, os.Remove(path))
	tells(0, "no kubeconfig of the kubelet's; ")
	write(good)
	silent(time.Hour)
	// A new interruption starts a new interval.
	write("")
	silent(0)
	silent(9 * time.Second)
	tells(time.Second, "kubeconfig "+path+": ")
}
