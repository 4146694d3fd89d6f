package rollout

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/engine"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

const (
	// observed is how long the fleet must write nothing. It is longer than the time between a host's start and its
	// publication (5 s for its sources and 3 s after its read), and much longer than the poll interval of the fleet, a
	// second.
	observed = 10 * time.Second
	// quiet is the time without writes after which the fleet counts as settled: longer than the 10 s after which a policy's counts
	// are written at the latest.
	quiet = 11 * time.Second
)

// TestIdleFleet checks that an idle fleet writes only the Lease, even if engines check for updates and lockkeeper is
// restarted or killed. A new version of lockkeeper writes each host's Node and HostUpdate once.
func TestIdleFleet(t *testing.T) {
	t.Parallel()
	next, err := simhost.BuildMutant(t.Context(), os.Stderr, simhost.Mutation{File: "main.go", Old: "var version string\n", New: "var version = \"v9.9.9\"\n"})
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "lockkeeper")
	install := func(binary string) {
		t.Helper()
		if err := errors.Join(os.Symlink(binary, link+".new"), os.Rename(link+".new", link)); err != nil {
			t.Fatal(err)
		}
	}
	install(binary)
	s := play(t, 5, 2, "rollout: {settle: 1s}", func(o *rig.Options) { o.Fleet.Host.Binary = link })
	for _, h := range s.Fleet.Hosts {
		s.publishes(h, "its version and that it wants nothing", func(u *v1alpha1.HostUpdateStatus) bool {
			return u.Version != "" && u.Wants == v1alpha1.WantsNothing && u.State == "idle"
		})
	}
	s.settled()

	began := time.Now()
	leader := s.leader()
	others := slices.DeleteFunc(slices.Clone(s.Fleet.Hosts), func(h *simhost.Host) bool { return h == leader })
	for i, h := range others { // one of them is a standby
		if i%2 == 0 {
			s.Must(h.Signal(syscall.SIGTERM))
		} else {
			s.Must(h.Signal(syscall.SIGKILL))
		}
	}
	for _, h := range s.Fleet.Hosts { // the engine checks for updates and finds none
		s.Must(h.Engine().Say(simhost.EngineStatus{Operation: engine.OpChecking, NewVersion: "0.0.0"}, true))
		s.Must(h.Engine().Say(simhost.EngineStatus{Operation: engine.OpIdle, NewVersion: "0.0.0", LastChecked: time.Now().Unix()}, true))
	}
	select {
	case <-time.After(observed):
	case <-t.Context().Done():
	}
	for _, h := range others {
		s.Must(h.WaitReady(s.Within(rig.Soon)))
	}
	if wrote := s.audited(began); len(wrote) > 0 {
		t.Errorf("%d writes of an idle fleet within %v:\n%s", len(wrote), time.Since(began), strings.Join(wrote, "\n"))
	}

	began = time.Now()
	install(next)
	for _, h := range others {
		s.Must(h.Signal(syscall.SIGTERM))
	}
	for _, h := range others {
		s.publishes(h, "the next version", func(u *v1alpha1.HostUpdateStatus) bool { return u.Version == "v9.9.9" })
	}
	s.settled()
	var want []string
	for _, h := range others {
		user := "system:node:" + h.Name() + " lockkeeper-host"
		want = append(want, fmt.Sprintf("%s: patch hostupdates %s: 200", user, h.Name()), fmt.Sprintf("%s: patch nodes %s: 200", user, h.Name()))
	}
	slices.Sort(want)
	if got := s.audited(began); !slices.Equal(got, want) {
		t.Errorf("an upgrade of %d hosts wrote\n%s\nexpected\n%s", len(others), strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// settled waits until the fleet has written nothing for a while.
func (s *scene) settled() {
	s.T.Helper()
	s.Eventually("the fleet to write nothing", func(context.Context) (bool, error) {
		wrote := s.audited(time.Now().Add(-quiet))
		return len(wrote) == 0, fmt.Errorf("written: %q", wrote)
	})
}

// audited returns the writes of lockkeeper since a time, sorted, without the renewals of the Lease and the requests for
// the host's own identity.
func (s *scene) audited(since time.Time) (all []string) {
	s.T.Helper()
	requests, err := s.ControlPlane.Requests(since)
	s.Must(err)
	for _, r := range requests {
		agent, _, _ := strings.Cut(r.UserAgent, "/")
		lease := r.Verb == "update" && r.ObjectRef.Resource == "leases" && r.ObjectRef.Namespace == controlplane.LockkeeperNamespace
		if agent != "lockkeeper-host" && agent != "lockkeeper-coordinator" || !r.Writes() || lease || r.ObjectRef.Resource == "selfsubjectreviews" {
			continue
		}
		code := 0
		if r.ResponseStatus != nil {
			code = r.ResponseStatus.Code
		}
		what := strings.TrimSuffix(r.ObjectRef.Resource+"/"+r.ObjectRef.Subresource, "/")
		all = append(all, fmt.Sprintf("%s %s: %s %s %s: %d", r.User.Username, agent, r.Verb, what, r.ObjectRef.Name, code))
	}
	slices.Sort(all)
	return all
}

// publishes waits until cond accepts the host's HostUpdate.
func (s *scene) publishes(h *simhost.Host, what string, cond func(*v1alpha1.HostUpdateStatus) bool) {
	s.T.Helper()
	s.Eventually("the HostUpdate of "+h.Name()+" to have "+what, func(ctx context.Context) (bool, error) {
		obj, err := s.hostUpdates().Get(ctx, h.Name(), metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		var u v1alpha1.HostUpdate
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &u); err != nil {
			return false, err
		}
		return cond(&u.Status), fmt.Errorf("status %+v", u.Status)
	})
}
