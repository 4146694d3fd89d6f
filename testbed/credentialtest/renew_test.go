package credentialtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/credential"
	"lockkeeper.dev/lockkeeper/node/local"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// aged places a token that was given for an hour and has so much of it left, and returns what it says of itself.
func aged(t *testing.T, h *simhost.Host, left time.Duration) credential.Info {
	t.Helper()
	expires := time.Now().Add(left)
	token, err := cp.AgedCoordinatorToken(t.Context(), expires.Add(-time.Hour), expires)
	must(t, err)
	path, err := cp.CoordinatorKubeconfig()
	must(t, err)
	text, err := os.ReadFile(path) // as it is minted, but for the token
	must(t, err)
	text, err = controlplane.WithToken(text, token)
	must(t, err)
	mine := filepath.Join(t.TempDir(), "aged.kubeconfig") // its own place is the host's to write to
	must(t, os.WriteFile(mine, text, 0o600))
	info, _, err := credential.ReadFile(mine)
	must(t, err)
	place(t, h, text)
	return info
}

func inFile(t *testing.T, h *simhost.Host) credential.Info {
	t.Helper()
	info, _, err := credential.ReadFile(h.CoordinatorKubeconfig())
	must(t, err)
	return info
}

// A leader renews its own token before it ends, and goes on leading: under the old one, the new one, and none of an admin's
// doing. Where it may not it says so in good time; one that has ended is named, and a new one in its place is taken.
func TestTheCredentialRenewsItself(t *testing.T) {
	h := host(t, simhost.Options{Name: "renew-1", Coordinator: true})
	s := is(t, h, "it to lead, and when its credential ends", func(s local.Status) bool {
		c := s.Coordinator.Credential
		return leads(s) && c != nil && c.Expires != nil && c.Renews != nil
	})
	if c := s.Coordinator.Credential; c.Why != "" || c.Refused != nil {
		t.Fatalf("of a new credential it says %+v", c)
	}
	epoch := *lease(t).Spec.HolderIdentity
	must(t, os.Chmod(h.CoordinatorKubeconfig(), 0o600))

	old := aged(t, h, 10*time.Minute)
	until(t, "its renewal", func() bool { return inFile(t, h).Token != old.Token }, func() any { return view(h) })
	renewed := inFile(t, h)
	if left := time.Until(renewed.Expires); renewed.Foreign != "" || renewed.User != old.User || left < 58*time.Minute || left > time.Hour {
		t.Errorf("renewed: of %s for %v, left alone because %q", renewed.User, left, renewed.Foreign)
	}
	is(t, h, "its word on the renewal", func(s local.Status) bool {
		return s.Coordinator.Credential != nil && s.Coordinator.Credential.Expires != nil && s.Coordinator.Credential.Expires.Equal(renewed.Expires)
	})
	until(t, "the leader to take both", func() bool { return strings.Count(h.Logs(), "the term goes on") >= 1 }, func() any { return h.LogTail(20) })
	first := lease(t)
	until(t, "a renewal of the Lease", func() bool { return lease(t).ResourceVersion != first.ResourceVersion }, func() any { return first })
	if now := *lease(t).Spec.HolderIdentity; now != epoch {
		t.Errorf("the term of %s ended; now it is %s's", epoch, now)
	}

	// Without the leave: what `lockkeeper manifests --no-renewal` leaves out.
	roles := cp.Client().RbacV1().Roles("lockkeeper")
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
	old = aged(t, h, 12*time.Minute)
	s = is(t, h, "its word that it may not", func(s local.Status) bool {
		return s.Coordinator.Credential != nil && strings.Contains(s.Coordinator.Credential.Why, "may not renew its own token")
	})
	// It is said at once, but for what the machine needs.
	if want := regexp.MustCompile("^the coordinator's credential expires in (11|10|9) minutes, `lockkeeper kubeconfig` mints a new one; "); !want.MatchString(s.Line) || !leads(s) {
		t.Errorf("its line is %q, leads %t, want %s…", s.Line, leads(s), want)
	}
	if inFile(t, h).Token != old.Token {
		t.Error("the token is another one all the same")
	}

	// One that has ended takes the place of none that is good. The API server remembers for a while whom it took.
	aged(t, h, -10*time.Minute)
	until(t, "its word that it goes on with the one before", func() bool {
		return strings.Contains(h.Logs(), "has expired; the one before it goes on")
	}, func() any { return h.LogTail(20) })
	must(t, h.SetCoordinator(false))
	is(t, h, "it to stand down", func(s local.Status) bool {
		return s.Coordinator.Role != local.RoleLeader && s.Coordinator.Role != local.RoleCandidate
	})
	aged(t, h, -10*time.Minute)
	// The campaign and what keeps the credential tell their parts one after the other.
	s = is(t, h, "its word that it is refused", func(s local.Status) bool {
		return s.Coordinator.Role == local.RoleCandidate && strings.Contains(s.Coordinator.Why, "has refused the coordinator's credential in ") &&
			s.Coordinator.Credential != nil && s.Coordinator.Credential.Refused != nil && strings.Contains(s.Line, h.CoordinatorKubeconfig())
	})
	for _, part := range []string{h.CoordinatorKubeconfig(), "which expired at ", "since ", "`lockkeeper kubeconfig` mints a new one"} {
		if !strings.Contains(s.Coordinator.Why, part) {
			t.Errorf("it says %q, without %q", s.Coordinator.Why, part)
		}
	}
	if !strings.Contains(s.Line, "is refused since ") {
		t.Errorf("its line is %q, its credential %+v", s.Line, s.Coordinator.Credential)
	}
	must(t, cp.ApplyLockkeeper(t.Context()))
	must(t, h.SetCoordinator(true))
	s = is(t, h, "it to lead again", func(s local.Status) bool {
		return leads(s) && s.Coordinator.Credential != nil && s.Coordinator.Credential.Why == ""
	})
	if !strings.HasPrefix(s.Line, "coordinates; ") || s.Coordinator.Credential.Refused != nil {
		t.Errorf("its line is %q, its credential %+v", s.Line, s.Coordinator.Credential)
	}
}
