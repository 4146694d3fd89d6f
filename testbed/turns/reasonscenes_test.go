package turns

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/faultproxy"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
	"lockkeeper.dev/lockkeeper/testbed/zincati"
)

// atOnceAll is a policy that lets each node have its turn when it wants one.
const atOnceAll = "rollout: {settle: 0s}"

// reasons are scenes that concern their own hosts alone.
var reasons = map[string]func(*scene){
	"reason-control-plane": func(s *scene) {
		s.keep("control-plane")
		s.policy("rollout: {settle: 0s, maxUnavailable: 2}\nhooks: {beforeDrain: [{name: control-plane}]}")
		a, b := s.host(simhost.Options{Name: s.name + "-1", ControlPlane: true}), s.host(simhost.Options{Name: s.name + "-2", ControlPlane: true})
		s.idle(a)
		s.idle(b)
		s.stage(a)
		s.reaches(a, v1alpha1.StateBeforeDrain)
		s.stage(b)
		s.reads(b, v1alpha1.ReasonControlPlane)
	},
	"reason-failed": func(s *scene) {
		s.policy(atOnceAll)
		hosts := s.hosts(2)
		a, b := hosts[0], hosts[1]
		a.SetNextBoot(simhost.NextBoot{Rollback: true})
		s.stage(a)
		s.saw(a, "to have failed", func(n *turn.Node) bool { return n.Last != nil && n.Last.Result == v1alpha1.ResultFailed })
		s.stage(b)
		s.reads(b, v1alpha1.ReasonHalted)
		s.has(s.name, v1alpha1.ReasonHalted)
		s.stage(a)
		s.reads(a, v1alpha1.ReasonFailed)
		s.has(a.Name(), v1alpha1.ReasonFailed)
	},
	// The client asks, hangs up, and reboots the host without permission.
	"reason-fleetlock": func(s *scene) {
		s.policy("rollout: {settle: 0s}")
		free, err := net.Listen("tcp", "127.0.0.1:0")
		s.Must(err)
		address := free.Addr().String()
		s.Must(free.Close())
		id, err := zincati.AppID("1c09ca98649c4c7abc779cd04c96812e")
		s.Must(err)
		h := s.host(simhost.Options{Name: s.name + "-1", WithoutEngine: true, Config: func(c simhost.Config) {
			c.Set("fleetlock", "listen", address)
			c.Set("fleetlock", "id", id)
		}})
		s.idle(h)
		client := &zincati.Client{BaseURL: "http://" + address + "/", Identity: zincati.Identity{ID: id, Group: zincati.DefaultGroup}}
		ctx, hangUp := context.WithCancel(s.T.Context())
		defer hangUp()
		asked := make(chan struct{})
		go func() {
			defer close(asked)
			_, _ = client.PreReboot(ctx) // it is cut off
		}()
		s.saw(h, "to want a reboot", func(n *turn.Node) bool { return n.Wants == v1alpha1.WantsReboot })
		hangUp()
		<-asked
		s.reads(h, v1alpha1.ReasonFleetLock)
		s.Must(h.CallReboot(s.T.Context()))
		s.saw(h, "to have had its turn", func(n *turn.Node) bool { return n.Last != nil })
	},
	"reason-turn-limit": func(s *scene) {
		s.policy("rollout: {settle: 0s, maxTurnsPerDay: 1}")
		h := s.hosts(1)[0]
		s.stage(h)
		s.saw(h, "to have had its turn", func(n *turn.Node) bool { return n.Last != nil })
		s.idle(h)
		s.Must(h.StageUpdate("4.3.0"))
		s.reads(h, v1alpha1.ReasonTurnLimit)
	},
	"reason-not-ready": func(s *scene) {
		s.policy(atOnceAll)
		h := s.hosts(1)[0]
		h.StopKubelet()
		s.Must(cp.SetNodeReady(s.soon(), h.Name(), "", false))
		s.stage(h)
		s.reads(h, v1alpha1.ReasonNotReady)
	},
	// The host is a build of another protocol.
	"reason-version": func(s *scene) {
		s.policy(atOnceAll)
		later, err := simhost.BuildMutant(s.soon(), nil, simhost.Mutation{File: "api/v1alpha1/host.go", Old: "const Protocol = 1\n", New: "const Protocol = 3\n"})
		s.Must(err)
		h := s.host(simhost.Options{Name: s.name + "-1", Binary: later})
		s.idle(h)
		s.stage(h)
		s.reads(h, v1alpha1.ReasonVersionSkew)
		s.has(h.Name(), v1alpha1.ReasonVersionSkew)
	},
	"reason-no-policy": func(s *scene) {
		h := s.host(simhost.Options{Name: s.name + "-1", Labels: map[string]string{"no": "policy"}})
		s.idle(h)
		s.stage(h)
		s.reads(h, v1alpha1.ReasonNoPolicy)
		s.has(h.Name(), v1alpha1.ReasonNoPolicy)
	},
	"reason-invalid-policy": func(s *scene) {
		// The schema cannot know that there is no such time zone.
		s.policy(`rollout: {windows: [{start: "00:00", duration: 24h, timeZone: Mars/Olympus}]}`)
		h := s.hosts(1)[0]
		s.stage(h)
		s.reads(h, v1alpha1.ReasonInvalidPolicy)
		s.has(s.name, v1alpha1.ReasonInvalidPolicy)
	},
	"reason-would-grant": func(s *scene) {
		s.policy("mode: Observe\nrollout: {settle: 0s}")
		h := s.hosts(1)[0]
		s.stage(h)
		s.reads(h, v1alpha1.ReasonWouldGrant)
	},
	"reason-paused": func(s *scene) {
		s.policy(atOnceAll)
		h := s.hosts(1)[0]
		s.edit(h, "annotations", v1alpha1.AnnotationPaused, "a disk is replaced")
		s.stage(h)
		s.reads(h, v1alpha1.ReasonPaused)
		s.has(h.Name(), v1alpha1.ReasonPaused)
	},
	"reason-detached": func(s *scene) {
		s.takenOut(func(h *simhost.Host) {
			s.edit(h, "annotations", v1alpha1.AnnotationDetached, "it is theirs")
		}, v1alpha1.ReasonDetached, func(h *simhost.Host) { s.edit(h, "annotations", v1alpha1.AnnotationDetached, "") })
	},
	"reason-unmanaged": func(s *scene) {
		s.takenOut(func(h *simhost.Host) {
			s.edit(h, "labels", v1alpha1.LabelManaged, "false")
		}, v1alpha1.ReasonUnmanaged, func(h *simhost.Host) { s.edit(h, "labels", v1alpha1.LabelManaged, "") })
	},
	// The host hears of its turn and cannot answer.
	"reason-host-silent": func(s *scene) {
		s.policy("rollout: {settle: 0s, backoff: 1h, backoffMax: 2h}\ntimeouts: {seen: 2s}")
		h, p := s.proxied()
		s.idle(h)
		s.edit(h, "annotations", v1alpha1.AnnotationPaused, "until it wants something")
		s.stage(h)
		s.published(h, v1alpha1.WantsReboot, string(v1alpha1.SourceOSUpdate))
		p.Add(func(r *faultproxy.Request) *faultproxy.Fault {
			if r.Is("patch", "nodes") {
				return faultproxy.Refuse(http.StatusServiceUnavailable, 0)
			}
			return nil
		})
		s.edit(h, "annotations", v1alpha1.AnnotationPaused, "")
		s.reads(h, v1alpha1.ReasonHostSilent)
		s.has(h.Name(), v1alpha1.ReasonHostSilent)
		s.endsFor(h, v1alpha1.ReasonHostSilent)
	},
	"reason-unknown-state": func(s *scene) {
		s.policy(atOnceAll)
		h := s.hosts(1)[0]
		s.stage(h)
		s.edit(h, "labels", v1alpha1.LabelState, "sleeping")
		s.reads(h, v1alpha1.ReasonUnknownState)
		s.has(h.Name(), v1alpha1.ReasonUnknownState)
	},
	// The host is a build that allows itself a larger record, and has so many changes.
	"reason-invalid-record": func(s *scene) {
		s.policy(atOnceAll)
		larger, err := simhost.BuildMutant(s.soon(), nil, simhost.Mutation{File: "api/v1alpha1/host.go", Old: "MaxHost = 16 << 10\n", New: "MaxHost = 24 << 10\n"})
		s.Must(err)
		var paths []string
		for i := range 60 {
			paths = append(paths, fmt.Sprintf("/run/%s-%d/%s", strings.Repeat("long", 50), i, strings.Repeat("long", 50)))
		}
		h := s.host(simhost.Options{Name: s.name + "-1", Binary: larger, Config: func(c simhost.Config) { c.Set("sources", "sentinels", paths) }})
		s.idle(h)
		s.edit(h, "annotations", v1alpha1.AnnotationPaused, "until all of them are there")
		for _, path := range paths {
			s.Must(h.WriteFile(path, ""))
		}
		s.until(h, "to have a record that is too large", func(n *turn.Node) bool { return len(n.RawHost) > v1alpha1.MaxHost })
		s.edit(h, "annotations", v1alpha1.AnnotationPaused, "")
		s.reads(h, v1alpha1.ReasonInvalidRecord)
	},
	"reason-marked": func(s *scene) {
		s.policy(atOnceAll)
		h := s.host(simhost.Options{Name: s.name + "-1", Config: func(c simhost.Config) { c.Set("", "managed_by_default", false) }})
		s.until(h, "to be Ready", func(n *turn.Node) bool { return n.Ready })
		s.edit(h, "annotations", v1alpha1.AnnotationPaused, "it is looked at")
		s.patch(h, fmt.Sprintf(`{"metadata":{"annotations":{%q:"aaaaaaaaaaaaaaaa"}},"spec":{"unschedulable":true}}`, v1alpha1.AnnotationCordon), v1alpha1.AnnotationCordon)
		s.reads(h, v1alpha1.ReasonOwnCordonLeft)
		s.edit(h, "annotations", v1alpha1.AnnotationPaused, "")
		s.saw(h, "to be given back", func(n *turn.Node) bool { return n.Last != nil && n.Last.Reason == v1alpha1.ReasonOwnCordonLeft })
		s.edit(h, "labels", v1alpha1.LabelManaged, "true")
		s.endsFor(h, v1alpha1.ReasonOwnCordonLeft)
	},
	// What cannot be read is neither a file nor a directory.
	"reason-sources": func(s *scene) {
		s.policy("paused: true\n" + atOnceAll)
		h := s.hosts(1)[0]
		s.Must(os.MkdirAll(filepath.Join(h.Root(), "etc"), 0o755))
		s.Must(syscall.Mkfifo(filepath.Join(h.Root(), appConf), 0o600))
		s.stage(h)
		s.until(h, "to have the veto", func(n *turn.Node) bool { return n.Host != nil && n.Host.Veto == v1alpha1.ReasonSourceUnreadable })
		_, err := s.tryPolicy(atOnceAll)
		s.Must(err)
		s.reads(h, v1alpha1.ReasonSourceUnreadable)
	},
	"reason-host-paused": func(s *scene) { s.veto(v1alpha1.ReasonHostPaused, "", "paused", "a disk is replaced") },
	"reason-observe":     func(s *scene) { s.veto(v1alpha1.ReasonObserve, "", "mode", "observe") },
	"reason-min-uptime":  func(s *scene) { s.veto(v1alpha1.ReasonMinUptime, "reboot", "min_uptime", time.Hour) },
	"reason-held-back": func(s *scene) {
		s.keep("held-back")
		s.policy("rollout: {settle: 0s}\nhooks: {beforeDrain: [{name: held-back}]}\n" +
			`rules: [{source: OSUpdate, holdBack: "4.2.*", actions: [{type: Drain}, {type: Reboot}]}]`)
		h := s.hosts(1)[0]
		s.Must(h.WriteFile(flagged, ""))
		s.reaches(h, v1alpha1.StateBeforeDrain)
		s.stage(h)
		s.endsFor(h, v1alpha1.ReasonHeldBack)
		s.reads(h, v1alpha1.ReasonHeldBack)
		s.has(h.Name(), v1alpha1.ReasonHeldBack)
	},
	"reason-reboot-manager": func(s *scene) {
		s.policy(atOnceAll)
		h := s.hosts(1)[0]
		s.Must(h.Units().Set("locksmithd.service", simhost.Unit{Load: "loaded", Active: "active"}))
		s.until(h, "to have the veto", func(n *turn.Node) bool { return n.Host != nil && n.Host.Veto == v1alpha1.ReasonOtherManager })
		s.stage(h)
		s.reads(h, v1alpha1.ReasonOtherManager)
		s.has(h.Name(), v1alpha1.ReasonOtherManager)
	},
	// A job holds the node before its turn, and the next node has its own. Another job comes after the grant.
	"reason-drain-blocked": func(s *scene) {
		s.keep("drain-blocked")
		s.policy("rollout: {settle: 0s, backoff: 1h, backoffMax: 2h}\nhooks: {beforeDrain: [{name: drain-blocked}]}\n" +
			"drain: {block: [{selector: {matchLabels: {keep: " + s.name + "}}}]}")
		hosts := s.hosts(2)
		a, b := hosts[0], hosts[1]
		ends := s.barePod(a, "job", map[string]string{"keep": s.name})
		s.stage(a)
		s.reads(a, v1alpha1.ReasonDrainBlocked)
		s.statusShows(a, "default/"+a.Name()+"-job (BlockedByPolicy)", "blocked by", "drain.block of its policy selects the pod")
		s.blockedBy(a, v1alpha1.BlockerPod, "default/"+a.Name()+"-job", "drain.block of its policy selects the pod", "change drain in the policy")

		s.stage(b)
		s.reaches(b, v1alpha1.StateBeforeDrain)
		later := s.barePod(b, "later", map[string]string{"keep": s.name})
		s.confirm(b, "drain-blocked")
		s.reported(b, v1alpha1.ReasonDrainBlocked)
		s.endsFor(b, v1alpha1.ReasonDrainBlocked)
		if n := s.nodes.find(b.Name(), func(n *turn.Node) bool { return n.Unschedulable || n.Mark }); n != nil {
			s.T.Errorf("%s was cordoned in %s", b.Name(), n.State)
		}
		later()

		if n := s.nodes.find(a.Name(), (*turn.Node).InTurn); n != nil {
			s.T.Errorf("%s had a turn while its job ran: %s", a.Name(), n.State)
		}
		ends()
		s.reaches(a, v1alpha1.StateBeforeDrain)
		s.confirm(a, "drain-blocked")
		s.saw(a, "to have had its turn", func(n *turn.Node) bool { return n.Last != nil && n.Last.Result == v1alpha1.ResultDone })
	},
	// A job outlasts the policy's blockTimeout: it is evicted in the next turn.
	"block-timeout": func(s *scene) {
		s.policy("rollout: {settle: 0s}\ndrain: {blockTimeout: 1m, onBlockTimeout: Evict, block: [{selector: {matchLabels: {keep: " + s.name + "}}}]}")
		h := s.hosts(1)[0]
		s.barePod(h, "job", map[string]string{"keep": s.name})
		s.stage(h)
		s.held(h, v1alpha1.ReasonDrainBlocked)
		s.statusShows(h, "default/"+h.Name()+"-job (BlockedByPolicy)", "when drain.blockTimeout is over", "blocked for ")
		h.StopLockkeeper() // the time goes on over a restart
		s.Must(h.StartLockkeeper())
		n := s.saw(h, "to be granted with Block off", func(n *turn.Node) bool { return n.Grant != nil && n.Grant.BlockOff })
		if n.Host == nil || n.Host.BlockedSince.Add(time.Minute).After(n.Grant.StartedAt) {
			s.T.Errorf("granted at %v: %s", n.Grant.StartedAt, n.RawHost)
		}
		s.saw(h, "to have had its turn", func(n *turn.Node) bool { return n.Last != nil && n.Last.Result == v1alpha1.ResultDone })
		if text := "drain.blockTimeout is over"; !strings.Contains(h.Logs(), text) {
			s.T.Errorf("its log does not have %q", text)
		}
		_, err := cp.Client().CoreV1().Pods("default").Get(s.soon(), h.Name()+"-job", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			s.T.Errorf("the job: %v", err)
		}
	},
	"reason-forbidden": func(s *scene) {
		s.policy(atOnceAll)
		h := s.hosts(1)[0]
		s.refuseGrants(h)
		s.stage(h)
		s.reads(h, v1alpha1.ReasonForbidden)
		s.has(h.Name(), v1alpha1.ReasonForbidden)
	},
	// It fails in before-drain, which ends the turn, and in before-uncordon, where it stays.
	"reason-hook-failed": func(s *scene) {
		s.policy("rollout: {settle: 0s, backoff: 1h, backoffMax: 2h}")
		h := s.hosts(1)[0]
		fails := simhost.Unit{Load: "loaded", Active: "failed"}
		s.Must(h.Units().Set("ease.service", fails))
		for _, stage := range []string{"before-drain", "before-uncordon"} {
			s.Must(h.Units().Set("lockkeeper-"+stage+".target", simhost.Unit{Load: "loaded", Wants: []string{"ease.service"}}))
		}
		h.StopLockkeeper() // it looks for hook units when it starts
		s.Must(h.StartLockkeeper())
		s.until(h, "to have its hook units known", func(n *turn.Node) bool { return n.Host != nil && len(n.Host.HookStages) == 2 })
		s.stage(h)
		s.reported(h, v1alpha1.ReasonHookFailed)
		s.reads(h, v1alpha1.ReasonHookFailed)
		n := s.reaches(h, v1alpha1.StateBeforeUncordon)
		s.Must(h.Units().Set("lockkeeper-before-uncordon.target", simhost.Unit{Load: "loaded"}))
		s.edit(h, "annotations", v1alpha1.AnnotationRetry, n.Turn)
		s.endsFor(h, v1alpha1.ReasonHookFailed)
	},
	"reason-apply-failed": func(s *scene) {
		s.policy(atOnceAll)
		h := s.hosts(1)[0]
		release := h.Units().HoldJobs()
		s.Must(h.WriteFile(appConf, "workers = 2\n"))
		s.ordered(h, appRestart)
		s.Must(h.Units().Set("app.service", simhost.Unit{Load: "loaded", Active: "failed"}))
		release()
		s.reported(h, v1alpha1.ReasonApplyFailed)
		s.endsFor(h, v1alpha1.ReasonApplyFailed)
	},
	"reason-unhealthy": func(s *scene) {
		s.policy(atOnceAll)
		h := s.host(simhost.Options{Name: s.name + "-1", Config: func(c simhost.Config) {
			c.Set("health", "units", []string{"db.service"})
			c.Set("health", "timeout", 2*time.Second)
		}})
		s.idle(h)
		s.Must(h.Units().Set("db.service", simhost.Unit{Load: "loaded", Active: "failed"}))
		s.stage(h)
		s.reported(h, v1alpha1.ReasonUnhealthy)
		s.reads(h, v1alpha1.ReasonUnhealthy)
		if out, err := s.lockkeeper("retry", h.Name()); err != nil {
			s.T.Errorf("%v: %s", err, out)
		}
		s.endsFor(h, v1alpha1.ReasonCleared)
	},
	// The Node comes back as another object, with what was on the one before, as from a backup.
	"reason-replaced": func(s *scene) {
		s.keep("replaced")
		s.policy("rollout: {settle: 0s}\nhooks: {beforeDrain: [{name: replaced}]}")
		h := s.hosts(1)[0]
		s.stage(h)
		s.reaches(h, v1alpha1.StateBeforeDrain)
		h.StopLockkeeper()
		h.StopKubelet()
		nodes := cp.Client().CoreV1().Nodes()
		n, err := nodes.Get(s.soon(), h.Name(), metav1.GetOptions{})
		s.Must(err)
		s.Must(nodes.Delete(s.soon(), h.Name(), metav1.DeleteOptions{}))
		bare := n.DeepCopy()
		bare.ObjectMeta = metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{sceneLabel: s.name}}
		_, err = nodes.Create(s.soon(), bare, metav1.CreateOptions{})
		s.Must(err)
		s.patch(h, fmt.Sprintf(`{"metadata":{"labels":{%q:%q},"annotations":{%q:%q,%q:%q}}}`, v1alpha1.LabelState, n.Labels[v1alpha1.LabelState],
			v1alpha1.AnnotationTurn, n.Annotations[v1alpha1.AnnotationTurn], v1alpha1.AnnotationGrant, n.Annotations[v1alpha1.AnnotationGrant]), v1alpha1.AnnotationGrant)
		s.journals(s.leader, h.Name(), v1alpha1.ReasonReplaced)
		observed.add(s.name, v1alpha1.ReasonReplaced, placeJournal)
	},
	"blocked-by-api-server": func(s *scene) {
		s.policy(atOnceAll)
		h, p := s.proxied()
		s.idle(h)
		remove := p.Add(func(r *faultproxy.Request) *faultproxy.Fault {
			if r.Is("create", "pods/eviction") {
				return faultproxy.Refuse(http.StatusInternalServerError, 0)
			}
			return nil
		})
		s.work(h, 1)
		s.stage(h)
		s.blockedBy(h, v1alpha1.BlockerAPIServer, s.podOf(h), http.StatusText(http.StatusInternalServerError))
		remove()
		s.saw(h, "to have had its turn", func(n *turn.Node) bool { return n.Last != nil && n.Last.Result == v1alpha1.ResultDone })
	},
}

// proxied starts a host of the scene whose requests go through a proxy.
func (s *scene) proxied() (*simhost.Host, *faultproxy.Proxy) {
	s.T.Helper()
	name := s.name + "-1"
	config, err := cp.NodeConfig(name)
	s.Must(err)
	p, err := faultproxy.Start(faultproxy.Options{Name: name, Config: config, Dir: s.T.TempDir()})
	s.Must(err)
	s.T.Cleanup(func() { s.Must(p.Close()) })
	return s.host(simhost.Options{Name: name, Kubeconfig: p.Kubeconfig(), Config: func(c simhost.Config) { c.Set("", "node_name", name) }}), p
}

// podOf returns the one pod of the host's namespace, as namespace/name.
func (s *scene) podOf(h *simhost.Host) string {
	s.T.Helper()
	name, _, _ := strings.Cut(s.pod(h.Name()), " ")
	return h.Name() + "/" + name
}

// veto has a host with one setting in its file that keeps it from its turn.
func (s *scene) veto(r v1alpha1.Reason, table, key string, value any) {
	s.T.Helper()
	s.policy(atOnceAll)
	h := s.host(simhost.Options{Name: s.name + "-1", BootedAgo: time.Second, Config: func(c simhost.Config) { c.Set(table, key, value) }})
	s.idle(h)
	s.stage(h)
	s.reads(h, r)
}

// takenOut has an admin take a node out in a turn, which ends it, and then give it back.
func (s *scene) takenOut(out func(*simhost.Host), r v1alpha1.Reason, back func(*simhost.Host)) {
	s.T.Helper()
	s.keep(s.name)
	s.policy("rollout: {settle: 0s}\nhooks: {beforeDrain: [{name: " + s.name + "}]}")
	h := s.hosts(1)[0]
	s.stage(h)
	s.reaches(h, v1alpha1.StateBeforeDrain)
	out(h)
	s.reads(h, r)
	if r == v1alpha1.ReasonDetached {
		s.has(h.Name(), r)
	}
	back(h)
	s.endsFor(h, r)
}
