package kube

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube/secret"
)

// TestExposed checks that Exposed reports what other users can read or change, and the command that fixes it.
func TestExposed(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		change func(dir string)
		want   []string // DIR is the directory
	}{
		"as it should be":     {func(string) {}, nil},
		"no kubeconfig":       {func(dir string) { must(os.RemoveAll(dir + "/etc")) }, nil},
		"readable by a group": {func(dir string) { must(os.Chmod(dir+"/etc/kubeconfig", 0o640)) }, []string{"users other than root can read DIR/etc/kubeconfig (mode 0640): chmod 0600 DIR/etc/kubeconfig"}},
		"readable by others":  {func(dir string) { must(os.Chmod(dir+"/etc/kubeconfig", 0o604)) }, []string{"users other than root can read DIR/etc/kubeconfig (mode 0604): chmod 0600 DIR/etc/kubeconfig"}},
		"writable by a group": {func(dir string) { must(os.Chmod(dir+"/etc/kubeconfig", 0o620)) }, []string{"users other than root can change DIR/etc/kubeconfig (mode 0620): chmod 0600 DIR/etc/kubeconfig"}},
		"open to everybody":   {func(dir string) { must(os.Chmod(dir+"/etc/kubeconfig", 0o666)) }, []string{"users other than root can read and change DIR/etc/kubeconfig (mode 0666): chmod 0600 DIR/etc/kubeconfig"}},
		"executable, no more": {func(dir string) { must(os.Chmod(dir+"/etc/kubeconfig", 0o711)) }, nil},
		"another user's":      {func(dir string) { must(os.Chown(dir+"/etc/kubeconfig", 1234, 0)) }, []string{"DIR/etc/kubeconfig belongs to user 1234, expected root: chown root DIR/etc/kubeconfig"}},
		"its token file":      {func(dir string) { must(os.Chmod(dir+"/etc/token", 0o644)) }, []string{"users other than root can read DIR/etc/token (mode 0644): chmod 0600 DIR/etc/token"}},
		"its key":             {func(dir string) { must(os.Chmod(dir+"/pki/key.pem", 0o644)) }, []string{"users other than root can read DIR/pki/key.pem (mode 0644): chmod 0600 DIR/pki/key.pem"}},
		"its certificate":     {func(dir string) { must(os.Chmod(dir+"/pki/cert.pem", 0o644)) }, nil},
		"the renewed token":   {func(dir string) { must(os.Chmod(dir+"/var/token.json", 0o644)) }, []string{"users other than root can read DIR/var/token.json (mode 0644): chmod 0600 DIR/var/token.json"}},
		"its directory":       {func(dir string) { must(os.Chmod(dir+"/etc", 0o775)) }, []string{"users other than root can replace what is in the directory DIR/etc (mode 0775): chmod go-w DIR/etc"}},
		"a directory above":   {func(dir string) { must(os.Chmod(dir, 0o777)) }, []string{"users other than root can replace what is in the directory DIR (mode 0777): chmod go-w DIR"}},
		"a directory as /tmp": {func(dir string) { must(os.Chmod(dir, 0o777|os.ModeSticky)) }, nil},
		"a user's directory":  {func(dir string) { must(os.Chown(dir+"/etc", 1234, 0)) }, []string{"the directory DIR/etc belongs to user 1234, who can replace what is in it, expected root: chown root DIR/etc"}},
		"a link's target":     {func(dir string) { link(t, dir); must(os.Chmod(dir+"/elsewhere/kubeconfig", 0o644)) }, []string{"users other than root can read DIR/elsewhere/kubeconfig (mode 0644): chmod 0600 DIR/elsewhere/kubeconfig"}},
		"a link's own place":  {func(dir string) { link(t, dir); must(os.Chmod(dir+"/etc", 0o777)) }, []string{"users other than root can replace what is in the directory DIR/etc (mode 0777): chmod go-w DIR/etc"}},
		"a link leads to it":  {func(dir string) { link(t, dir); must(os.Chmod(dir+"/elsewhere", 0o777)) }, []string{"users other than root can replace what is in the directory DIR/elsewhere (mode 0777): chmod go-w DIR/elsewhere"}},
		"a link on the way": {func(dir string) {
			link(t, dir)
			must(os.Mkdir(dir+"/open", 0o755))
			must(os.Symlink("../elsewhere", dir+"/open/link"))
			must(os.Remove(dir + "/etc/kubeconfig"))
			must(os.Symlink(dir+"/open/link/kubeconfig", dir+"/etc/kubeconfig"))
			must(os.Chmod(dir+"/open", 0o777))
		}, []string{"users other than root can replace what is in the directory DIR/open (mode 0777): chmod go-w DIR/open"}},
		"not a kubeconfig": {func(dir string) { must(os.WriteFile(dir+"/etc/kubeconfig", []byte("clusters: 5\n"), 0o600)) }, nil},
		"several, one by one": {func(dir string) {
			must(os.Chmod(dir+"/etc/kubeconfig", 0o644))
			must(os.Chmod(dir+"/pki/key.pem", 0o602))
		}, []string{"users other than root can read DIR/etc/kubeconfig (mode 0644): chmod 0600 DIR/etc/kubeconfig", "users other than root can change DIR/pki/key.pem (mode 0602): chmod 0600 DIR/pki/key.pem"}},
		"a link that is broken": {func(dir string) { link(t, dir); must(os.RemoveAll(dir + "/elsewhere")) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if os.Geteuid() != 0 && strings.Contains(name, "user's") {
				t.Skip("changing the owner of a file needs root")
			}
			dir := exposable(t)
			c.change(dir)
			var want []string
			for _, text := range c.want {
				want = append(want, strings.ReplaceAll(text, "DIR", dir))
			}
			k, _ := readKubeconfig(dir+"/etc/kubeconfig", "")
			if got := secret.Exposed(append(k.secrets, dir+"/etc/kubeconfig", dir+"/var/token.json")...); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
				t.Errorf("got\n%s\nexpected\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

// exposable creates a kubeconfig and the files that it names, with correct permissions.
func exposable(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil { // independent of the umask
		t.Fatal(err)
	}
	text := kubeconfigOf("{tokenFile: token, client-certificate: ../pki/cert.pem, client-key: ../pki/key.pem}")
	cert, key := certificate(t, "x", time.Now().Add(time.Hour))
	for name, text := range map[string]string{"etc/kubeconfig": text, "etc/token": "x", "pki/cert.pem": cert, "pki/key.pem": key, "var/token.json": "{}"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// link moves the kubeconfig elsewhere and replaces it by a link. The files that it names stay next to the link.
func link(t *testing.T, dir string) {
	t.Helper()
	if err := os.Mkdir(dir+"/elsewhere", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir+"/etc/kubeconfig", dir+"/elsewhere/kubeconfig"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../elsewhere/kubeconfig", dir+"/etc/kubeconfig"); err != nil {
		t.Fatal(err)
	}
}

// TestExposedIsLoggedOnce checks that each finding is logged once, and again only if it comes back.
func TestExposedIsLoggedOnce(t *testing.T) {
	dir := exposable(t)
	var log bytes.Buffer
	c := New(Options{
		Identity: v1alpha1.IdentityCoordinator, Paths: []string{dir + "/etc/kubeconfig"}, Renewed: dir + "/var/token.json", Log: slog.New(slog.NewTextHandler(&log, nil)),
		LogEvent: logEvent,
	})
	look := func(kubeconfig, key os.FileMode, warnings int, exposed string) {
		t.Helper()
		if err := os.Chmod(dir+"/etc/kubeconfig", kubeconfig); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir+"/pki/key.pem", key); err != nil {
			t.Fatal(err)
		}
		log.Reset()
		for range 3 {
			c.read(time.Now())
		}
		if n := strings.Count(log.String(), "level=WARN"); n != warnings || c.State().Exposed != strings.ReplaceAll(exposed, "DIR", dir) {
			t.Errorf("%d warnings, expected %d:\n%s\nexposed %q", n, warnings, log.String(), c.State().Exposed)
		}
		if s := c.State(); !s.Present || s.Error != "" {
			t.Errorf("%+v", s)
		}
	}
	const file = "users other than root can read DIR/etc/kubeconfig (mode 0644): chmod 0600 DIR/etc/kubeconfig"
	const key = "users other than root can read DIR/pki/key.pem (mode 0644): chmod 0600 DIR/pki/key.pem"
	look(0o600, 0o600, 0, "")
	look(0o644, 0o600, 1, file)
	look(0o644, 0o644, 1, file+"\n"+key)
	look(0o600, 0o644, 0, key)
	look(0o644, 0o644, 1, file+"\n"+key)
	look(0o600, 0o600, 0, "")
}

// TestWriteFileIsNotExposed checks that a file that lockkeeper writes is not exposed, whatever existed at its path and
// whatever the umask is.
func TestWriteFileIsNotExposed(t *testing.T) {
	dir := exposable(t)
	if err := os.Chmod(dir+"/etc/kubeconfig", 0o666); err != nil {
		t.Fatal(err)
	}
	if err := secret.WriteFile(dir+"/etc/kubeconfig", []byte("secret")); err != nil {
		t.Fatal(err)
	}
	if found := Exposed(dir + "/etc/kubeconfig"); len(found) > 0 {
		t.Errorf("%q", found)
	}
}

func logEvent(log *slog.Logger, level slog.Level, _ v1alpha1.MessageID, text string, attrs ...any) {
	log.Log(context.Background(), level, text, attrs...)
}
