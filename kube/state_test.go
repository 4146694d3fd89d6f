package kube

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestProblemWithoutAFile checks that a kubeconfig that disappears while a host uses it is a problem, and that a
// kubeconfig that does not exist yet is not.
func TestProblemWithoutAFile(t *testing.T) {
	now := time.Now()
	gone := State{Identity: v1alpha1.IdentityHost, File: "/f", Error: "no kubeconfig", ErrorSince: now.Add(-time.Minute)}
	if got, fails := gone.Problem(now); got != "" || fails {
		t.Errorf("host that has not joined: %q", got)
	}
	gone.InUse = true
	if got, fails := gone.Problem(now); !fails || !strings.Contains(got, "no kubeconfig") {
		t.Errorf("file that is gone: %q", got)
	}
	gone.Error, gone.Refused = "", now
	if got, fails := gone.Problem(now); !fails || !strings.Contains(got, "refused") {
		t.Errorf("refused: %q", got)
	}
	gone.Refused, gone.Expires = time.Time{}, now.Add(-time.Minute)
	if got, fails := gone.Problem(now); !fails || !strings.Contains(got, "expired") {
		t.Errorf("expired: %q", got)
	}
}

// TestRefusedNeedsAClient checks that an answer to a client that has ended is ignored, because there is no credential
// that could be refused.
func TestRefusedNeedsAClient(t *testing.T) {
	c := New(Options{Identity: v1alpha1.IdentityCoordinator, Paths: []string{filepath.Join(t.TempDir(), "none")}, Absent: "none"})
	c.answers.refuse(true)
	if s := c.State(); !s.Refused.IsZero() || s.InUse {
		t.Errorf("refused since %v, in use %t", s.Refused, s.InUse)
	}
}

func TestFind(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.Mkdir(at("dir"), 0o700), os.WriteFile(at("file"), nil, 0o600), os.WriteFile(at("other"), nil, 0o600), syscall.Mkfifo(at("pipe"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		paths []string
		want  string // "" means no error
		err   string
	}{
		"the first file":       {[]string{at("none"), at("file"), at("other")}, at("file"), ""},
		"a directory before":   {[]string{at("dir"), at("file")}, at("file"), ""},
		"a pipe before":        {[]string{at("pipe"), at("file")}, at("file"), ""},
		"a file on the way":    {[]string{at("file/none"), at("other")}, at("other"), ""},
		"nothing":              {[]string{at("none")}, "", "absent"},
		"only a pipe":          {[]string{at("none"), at("pipe")}, "", "kubeconfig " + at("pipe") + ": it is not a regular file"},
		"a directory and none": {[]string{at("dir"), at("none")}, "", "kubeconfig " + at("dir") + ": it is not a regular file"},
	} {
		got, err := find(c.paths, "absent")
		if text := ""; got != c.want || c.err != "" && (err == nil || err.Error() != c.err) || c.err == "" && err != nil {
			if err != nil {
				text = err.Error()
			}
			t.Errorf("%s: %q, %q", name, got, text)
		}
	}
}
