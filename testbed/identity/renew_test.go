package identity

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/local"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// aged places a kubeconfig with a token that was given for an hour and has so much of it left. It returns the file's content and
// what the token says of itself.
func aged(t *testing.T, h *simhost.Host, left time.Duration) (text []byte, info kube.State) {
	t.Helper()
	expires := time.Now().Add(left)
	token, err := credentialPlane().AgedCoordinatorToken(t.Context(), expires.Add(-time.Hour), expires)
	must(t, err)
	path, err := credentialPlane().CoordinatorKubeconfig()
	must(t, err)
	text, err = os.ReadFile(path) // as it is minted, except for the token
	must(t, err)
	text, err = controlplane.WithToken(text, token)
	must(t, err)
	place(t, h, text)
	return text, stateOf(t, h.CoordinatorKubeconfig(), "")
}

// stateOf is the state of a credential as a process that starts now sees it.
func stateOf(t *testing.T, kubeconfig, renewed string) kube.State {
	t.Helper()
	c := kube.New(kube.Options{Identity: v1alpha1.IdentityCoordinator, Paths: []string{kubeconfig}, Renewed: renewed, QPS: 5, Burst: 5})
	_, err := c.Client()
	must(t, err)
	return c.State()
}

func inEffect(t *testing.T, h *simhost.Host) kube.State {
	t.Helper()
	dir := t.TempDir() // of copies: a Credential removes what is worthless
	for _, file := range []string{h.CoordinatorKubeconfig(), h.RenewedToken()} {
		if text, err := os.ReadFile(file); err == nil {
			must(t, os.WriteFile(filepath.Join(dir, filepath.Base(file)), text, 0o600))
		}
	}
	return stateOf(t, filepath.Join(dir, filepath.Base(h.CoordinatorKubeconfig())), filepath.Join(dir, filepath.Base(h.RenewedToken())))
}

// A leader renews its own token before it ends, and continues leading: under the old one and the new one. The administrator's file
// stays as it is, is what makes the host a candidate, and counts at once when it is replaced. Where the token may not be renewed the
// host says so in good time; one that has ended is named, and a new one in its place is taken.
func TestTheCredentialRenewsItself(t *testing.T) {
	h := host(t, simhost.Options{Name: "renew-1", Coordinator: true})
	s := is(t, h, "it to lead, and when its credential ends", func(s local.Status) bool {
		c := s.Coordinator.Credential
		return leads(s) && c != nil && c.Expires != nil && c.Renews != nil
	})
	if c := s.Coordinator.Credential; c.Why != "" || c.Refused != nil {
		t.Fatalf("of a new credential it says %+v", c)
	}
	epoch := *credentialLease(t).Spec.HolderIdentity

	text, old := aged(t, h, 10*time.Minute)
	waitForCredential(t, "its renewal", func() bool { return !inEffect(t, h).Expires.Equal(old.Expires) }, func() any { return view(h) })
	renewed := inEffect(t, h)
	if now, err := os.ReadFile(h.CoordinatorKubeconfig()); err != nil || !bytes.Equal(now, text) {
		t.Errorf("the kubeconfig was written to (%v)", err)
	}
	if stat, err := os.Stat(h.RenewedToken()); err != nil || stat.Mode() != 0o600 {
		t.Errorf("the renewed token: %v (%v)", stat.Mode(), err)
	}
	if left := time.Until(renewed.Expires); renewed.NotRenewed != "" || renewed.User != old.User || left < 58*time.Minute || left > time.Hour {
		t.Errorf("renewed: of %s for %v, left alone because %q", renewed.User, left, renewed.NotRenewed)
	}
	is(t, h, "its word on the renewal", func(s local.Status) bool {
		return s.Coordinator.Credential != nil && s.Coordinator.Credential.Expires != nil && s.Coordinator.Credential.Expires.Equal(renewed.Expires)
	})
	waitForCredential(t, "the leader to take both", func() bool { return strings.Count(h.Logs(), "its client continues") >= 1 }, func() any { return h.LogTail(20) })
	first := credentialLease(t)
	waitForCredential(t, "a renewal of the Lease", func() bool { return credentialLease(t).ResourceVersion != first.ResourceVersion }, func() any { return first })
	if now := *credentialLease(t).Spec.HolderIdentity; now != epoch {
		t.Errorf("the term of %s ended; now it is %s's", epoch, now)
	}

	// The renewed token is worth nothing without the kubeconfig, and counts again with the same one.
	must(t, h.SetCoordinator(false))
	is(t, h, "it to stand down", func(s local.Status) bool {
		return s.Coordinator.Role != v1alpha1.RoleLeader && s.Coordinator.Role != v1alpha1.RoleStandby
	})
	place(t, h, text)
	is(t, h, "it to lead again, with the renewed token", func(s local.Status) bool {
		c := s.Coordinator.Credential
		return leads(s) && c != nil && c.Expires != nil && c.Expires.Equal(renewed.Expires)
	})

	// Without the leave: what `lockkeeper manifests --no-renewal` leaves out.
	roles := credentialPlane().Client().RbacV1().Roles("lockkeeper")
	role, err := roles.Get(t.Context(), "lockkeeper-renewal", metav1.GetOptions{})
	must(t, err)
	if len(role.Rules) != 1 {
		t.Fatalf("the role's rules are %+v", role.Rules)
	}
	role.Rules = nil
	_, err = roles.Update(t.Context(), role, metav1.UpdateOptions{})
	must(t, err)
	allowed(t, authorizationv1.SubjectAccessReviewSpec{User: controlplane.CoordinatorUser, ResourceAttributes: &authorizationv1.ResourceAttributes{
		Namespace: controlplane.LockkeeperNamespace, Resource: "serviceaccounts", Subresource: "token", Name: v1alpha1.CoordinatorServiceAccount, Verb: "create"}}, false)
	_, old = aged(t, h, 12*time.Minute)
	s = is(t, h, "its word that it may not", func(s local.Status) bool {
		return s.Coordinator.Credential != nil && strings.Contains(s.Coordinator.Credential.Why, "may not renew its own token")
	})
	// It is said at once, but for what the machine needs.
	if want := regexp.MustCompile("^the coordinator's credential in \\S+ expires in (11|10|9) minutes; `lockkeeper kubeconfig` mints a new one; it is not renewed: "); !want.MatchString(s.Line) || !leads(s) {
		t.Errorf("its line is %q, leads %t, want %s…", s.Line, leads(s), want)
	}
	if !inEffect(t, h).Expires.Equal(old.Expires) {
		t.Error("the token is another one all the same")
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) { // lockkeeper waits for ten seconds
		if _, err := os.Stat(h.RenewedToken()); errors.Is(err, os.ErrNotExist) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the renewed token of a kubeconfig that was replaced is still there")
		}
	}

	// A token that has ended counts at once too.
	aged(t, h, -10*time.Minute)
	// The campaign and what keeps the credential tell their parts one after the other.
	s = is(t, h, "its word that it is refused", func(s local.Status) bool {
		return s.Coordinator.Role == v1alpha1.RoleStandby && strings.Contains(s.Coordinator.Why, "has refused the coordinator's credential in ") &&
			s.Coordinator.Credential != nil && s.Coordinator.Credential.Refused != nil && strings.Contains(s.Line, h.CoordinatorKubeconfig())
	})
	for _, part := range []string{h.CoordinatorKubeconfig(), "which expired at ", "since ", "`lockkeeper kubeconfig` mints a new one"} {
		if !strings.Contains(s.Coordinator.Why, part) {
			t.Errorf("it says %q, without %q", s.Coordinator.Why, part)
		}
	}
	if !strings.HasPrefix(s.Line, "the API server has refused ") {
		t.Errorf("its line is %q, its credential %+v", s.Line, s.Coordinator.Credential)
	}
	must(t, credentialPlane().ApplyLockkeeper(t.Context()))
	must(t, h.SetCoordinator(true))
	s = is(t, h, "it to lead again", func(s local.Status) bool {
		return leads(s) && s.Coordinator.Credential != nil && s.Coordinator.Credential.Why == ""
	})
	if !strings.HasPrefix(s.Line, "coordinates; ") || s.Coordinator.Credential.Refused != nil {
		t.Errorf("its line is %q, its credential %+v", s.Line, s.Coordinator.Credential)
	}

	// One that others can read is warned of, and the term continues.
	text, err = os.ReadFile(h.CoordinatorKubeconfig())
	must(t, err)
	must(t, os.WriteFile(h.CoordinatorKubeconfig()+".new", text, 0o600))
	must(t, os.Chmod(h.CoordinatorKubeconfig()+".new", 0o644))
	must(t, os.Rename(h.CoordinatorKubeconfig()+".new", h.CoordinatorKubeconfig()))
	s = is(t, h, "its warning", func(s local.Status) bool {
		return s.Coordinator.Credential != nil && len(s.Coordinator.Credential.Exposed) > 0
	})
	finding := "users other than root can read " + h.CoordinatorKubeconfig() + " (mode 0644): chmod 0600 " + h.CoordinatorKubeconfig()
	if !slices.Equal(s.Coordinator.Credential.Exposed, []string{finding}) || !strings.Contains(s.Line, "; the coordinator's credential: "+finding) || !leads(s) {
		t.Errorf("its line is %q, its credential %+v, leads %t", s.Line, s.Coordinator.Credential, leads(s))
	}
	warned := func() int {
		return strings.Count(h.Logs(), "other users can read or change the coordinator's credential: ")
	}
	// The log comes through a pipe, and the view does not.
	waitForCredential(t, "the warning in the log", func() bool { return warned() > 0 }, func() any { return h.LogTail(20) })
	if n := warned(); n != 1 {
		t.Errorf("warned %d times, want once", n)
	}
}
