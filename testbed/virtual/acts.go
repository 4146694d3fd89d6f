package virtual

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// acts are what the executor does for each kind of fault that is not a request's.
var acts = map[Kind]act{
	kindCutOff: {
		begin: func(e *executor, f Fault) {
			for _, t := range e.of(f.On) {
				t.eachWatch("", func(w *watch) { w.hung = true })
			}
		},
		end: func(e *executor, f Fault) {
			for _, t := range e.of(f.On) {
				t.eachWatch("", func(w *watch) { w.resume(f.For < silence) })
			}
			e.answersAgain(f.On)
		},
	},
	kindDenied: {
		// The watches end as well: otherwise hardly a process would notice that it may not watch.
		begin: func(e *executor, f Fault) { e.watches(f, func(w *watch) { w.ending = io.EOF }) },
		end:   func(e *executor, f Fault) { e.answersAgain(f.On) },
		what:  func(f Fault) string { return f.Mode },
	},
	kindWatchCut: {begin: func(e *executor, f Fault) { e.watches(f, func(w *watch) { w.ending, w.half = errReset, true }) }},
	kindWatchEnd: {begin: func(e *executor, f Fault) { e.watches(f, func(w *watch) { w.ending = io.EOF }) }},
	kindWatchHang: {
		begin: func(e *executor, f Fault) { e.watches(f, func(w *watch) { w.hung = true }) },
		end:   func(e *executor, f Fault) { e.watches(f, func(w *watch) { w.resume(false) }) },
	},
	kindWatchLag: {begin: func(e *executor, f Fault) { e.watches(f, func(w *watch) { w.lag = f.For }) }},

	kindKill:    {begin: func(e *executor, f Fault) { e.fleet.Kill(f.On) }},
	kindRestart: {begin: func(e *executor, f Fault) { e.fleet.Restart(f.On) }},
	kindFreeze: {
		begin: func(e *executor, f Fault) { e.fleet.Freeze(f.On) },
		end:   func(e *executor, f Fault) { e.fleet.Thaw(f.On) },
	},
	kindTwice: {
		begin: func(e *executor, f Fault) { e.fleet.StartSecond(f.On) },
		end:   func(e *executor, f Fault) { e.fleet.StopSecond(f.On) },
	},
	kindCrash: {
		begin: func(e *executor, f Fault) { e.fleet.Crash(f.On) },
		end:   func(e *executor, f Fault) { e.fleet.PowerOn(f.On) },
	},
	kindBusDown: {
		begin: func(e *executor, f Fault) { e.fleet.StopBus(f.On) },
		end:   func(e *executor, f Fault) { e.fleet.StartBus(f.On) },
	},
	kindBusSlow: {
		begin: func(e *executor, f Fault) {
			delay, err := time.ParseDuration(f.Mode)
			if err != nil {
				panic("the mode of a slow bus: " + f.Mode)
			}
			e.fleet.DelayBus(f.On, delay)
		},
		end: func(e *executor, f Fault) { e.fleet.DelayBus(f.On, 0) },
	},
	kindLogind: {
		begin: func(e *executor, f Fault) { e.fleet.SetLogind(f.On, logindMode(f.Mode)) },
		end:   func(e *executor, f Fault) { e.fleet.SetLogind(f.On, logindWorks) },
	},
	kindLogindRestart: {begin: func(e *executor, f Fault) { e.fleet.RestartLogind(f.On) }},
	kindInhibit: {
		begin: func(e *executor, f Fault) { e.fleet.Inhibit(f.On) },
		end:   func(e *executor, f Fault) { e.fleet.EndInhibit(f.On) },
	},
	kindClientRestart: {begin: func(e *executor, f Fault) { e.fleet.RestartClient(f.On) }},
	kindClientHangUp:  {begin: func(e *executor, f Fault) { e.fleet.HangUp(f.On) }},
	kindClientStop: {
		begin: func(e *executor, f Fault) { e.fleet.StopClient(f.On, clientMode(f.Mode)) },
		end:   func(e *executor, f Fault) { e.fleet.StartClient(f.On, clientMode(f.Mode)) },
		what:  func(f Fault) string { return f.Mode },
	},
	kindSession: {
		begin: func(e *executor, f Fault) { e.fleet.LogIn(f.On) },
		end:   func(e *executor, f Fault) { e.fleet.LogOut(f.On) },
	},
	kindStage: {begin: func(e *executor, f Fault) { e.fleet.Stage(f.On, f.Mode) }},
	kindWithdraw: {
		begin: func(e *executor, f Fault) { e.fleet.Withdraw(f.On) },
		end:   func(e *executor, f Fault) { e.fleet.Stage(f.On, f.Mode) },
	},
	kindNotReady: {
		begin: func(e *executor, f Fault) { e.fleet.BreakKubelet(f.On) },
		end:   func(e *executor, f Fault) { e.fleet.FixKubelet(f.On) },
	},
	kindRollback: {begin: func(e *executor, f Fault) { e.fleet.RollBack(f.On) }},
	kindFile: {begin: func(e *executor, f Fault) {
		name, to, _ := strings.Cut(f.Mode, ",")
		e.fleet.ChangeFile(f.On, name, content(to))
	}},
	kindSentinel: {
		begin: func(e *executor, f Fault) { e.fleet.AddSentinel(f.On) },
		end: func(e *executor, f Fault) {
			if f.Mode == "removed" { // otherwise the next boot removes it
				e.fleet.RemoveSentinel(f.On)
			}
		},
		what: func(f Fault) string { return f.Mode },
	},
	kindUnit: {
		begin: func(e *executor, f Fault) {
			unit, mode := f.unit()
			e.fleet.SetUnit(f.On, unit, mode)
		},
		end: func(e *executor, f Fault) {
			unit, _ := f.unit()
			e.fleet.SetUnit(f.On, unit, unitWorks)
		},
		what: func(f Fault) string { unit, _ := f.unit(); return unit },
	},
	kindHostClock: {
		begin: func(e *executor, f Fault) { e.fleet.ShiftHostClock(f.On, f.ahead()) },
		end:   func(e *executor, f Fault) { e.fleet.ShiftHostClock(f.On, 0) },
	},

	kindOutage: {
		begin: func(e *executor, f Fault) {
			e.setOutage(f.Mode)
			for _, t := range e.running() {
				t.eachWatch("", func(w *watch) { w.ending = errReset })
			}
		},
		end: func(e *executor, _ Fault) {
			e.setOutage("")
			e.answersAgain("")
		},
	},
	kindClock: {
		begin: func(e *executor, f Fault) {
			e.fleet.ShiftClock(f.ahead())
		},
		end: func(e *executor, _ Fault) { e.fleet.ShiftClock(0) },
	},
	kindCutWatches: {begin: func(e *executor, f Fault) { e.fleet.CutWatches(f.Mode) }},
	kindCompact:    {begin: func(e *executor, _ Fault) { e.fleet.Compact() }},
	kindRewind:     {begin: (*executor).rewind},

	kindIntent:  {begin: setIntent, end: removeIntent, what: func(f Fault) string { return intents[f.Mode].key }},
	kindRetry:   {begin: retry},
	kindConfirm: {begin: confirm},
	kindStop:    {begin: stop, end: liftStop, what: func(f Fault) string { return f.Mode }},
	kindLease:   {begin: editLease},
	kindPolicy: {
		begin: changePolicy,
		end:   restorePolicy,
		what: func(f Fault) string { // every change is one of the same policy, but brokenRules adds another
			if f.Mode == brokenRules {
				return f.Mode
			}
			return ""
		},
	},
	kindReplaceNode: {
		begin: func(e *executor, f Fault) { e.people.do(admin, http.MethodDelete, nodePath(f.On), nil, nil) },
		end:   func(e *executor, f Fault) { e.fleet.RestartKubelet(f.On) },
	},
	kindCordon: {
		begin: func(e *executor, f Fault) { e.people.patchNode(f.On, cordon(true)) },
		end:   func(e *executor, f Fault) { e.people.patchNode(f.On, cordon(false)) },
	},
	kindExclude:  {begin: exclude},
	kindUncordon: {begin: func(e *executor, f Fault) { e.people.patchNode(f.On, cordon(false)) }},
	kindBudget: {
		begin: func(e *executor, f Fault) { e.fleet.BlockDrains(f.On) },
		end:   func(e *executor, f Fault) { e.fleet.AllowDrains(f.On) },
	},
	kindPod: {begin: func(e *executor, f Fault) { e.fleet.AddPod(f.On) }},
	kindJob: {
		begin: func(e *executor, f Fault) { e.fleet.AddJob(f.On, f.Mode) },
		end:   func(e *executor, f Fault) { e.fleet.EndJob(f.On, f.Mode) },
		what:  func(f Fault) string { return f.Mode },
	},
	kindManager: {
		begin: func(e *executor, f Fault) { e.fleet.AddManager(f.On) },
		end:   func(e *executor, f Fault) { e.fleet.RemoveManager(f.On) },
	},

	kindLie:   {begin: tellLies, end: endLies, what: func(f Fault) string { return f.Mode }},
	kindThief: {begin: steal, end: endTheft, what: func(f Fault) string { return f.Mode }},
}

// watches changes the running watches of the host's processes.
func (e *executor) watches(f Fault, change func(*watch)) {
	for _, t := range e.of(f.On) {
		t.eachWatch("", change)
	}
}

// resume ends a watch's silence. If the connection has survived it, the events of that time arrive now.
func (w *watch) resume(survived bool) {
	if w.hung && !survived {
		w.ending = errPings
	}
	w.hung = false
}

// setOutage makes the API server unreachable for all processes, in that mode; "" ends it.
func (e *executor) setOutage(mode string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.outage = mode
}

// admin is the user for what people do.
const admin = "kubernetes-admin"

// people does with the API server what people and other programs do, past all faults.
type people struct {
	fleet target
	trace *trace
}

func nodePath(name string) string { return "/api/v1/nodes/" + name }

// leasePath and policiesPath are where lockkeeper's Lease and its policies are.
const (
	leasesPath   = "/apis/coordination.k8s.io/v1/namespaces/" + v1alpha1.DefaultLeaseNamespace + "/leases"
	leasePath    = leasesPath + "/" + v1alpha1.DefaultLeaseName
	policiesPath = "/apis/lockkeeper.dev/v1alpha1/disruptionpolicies"
)

// do sends a request as the user and decodes the answer into out, if it is not nil. It reports whether the API server accepted it. What was
// refused is in the trace: an admin's request may come too late or for a Node that is gone.
func (p *people) do(user, method, path string, body, out any) bool {
	var reader io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			panic(fmt.Sprintf("encoding a request of %s: %v", user, err))
		}
		reader = bytes.NewReader(b)
	}
	hr, err := http.NewRequestWithContext(context.Background(), method, "http://apiserver"+path, reader)
	if err != nil {
		panic(fmt.Sprintf("a request of %s: %v", user, err))
	}
	contentType := "application/json"
	if method == http.MethodPatch {
		contentType = "application/merge-patch+json"
	}
	hr.Header.Set("Content-Type", contentType)
	hr.Header.Set("Accept", "application/json")
	resp, err := p.fleet.Client(user).RoundTrip(hr)
	if err != nil {
		p.trace.note("", "%s: %s %s: %v", user, method, path, err)
		return false
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= 300 {
		p.trace.note("", "%s: %s %s: %s %v %s", user, method, path, resp.Status, err, v1alpha1.OneLine(string(answer), maxDetail))
		return false
	}
	if out != nil {
		if err := json.Unmarshal(answer, out); err != nil {
			p.trace.note("", "%s: %s %s: %v", user, method, path, err)
			return false
		}
	}
	return true
}

// patchNode sends an admin's merge patch. The field manager is kubectl's, as for a person's cordon.
func (p *people) patchNode(name string, doc map[string]any) {
	p.do(admin, http.MethodPatch, nodePath(name)+"?fieldManager=kubectl-edit", doc, nil)
}

// node returns the Node, or nil.
func (p *people) node(user, name string) *corev1.Node {
	n := new(corev1.Node)
	if !p.do(user, http.MethodGet, nodePath(name), nil, n) {
		return nil
	}
	return n
}

// cordon returns a patch of the cordon.
func cordon(on bool) map[string]any {
	return map[string]any{"spec": map[string]any{"unschedulable": on}}
}

// annotate and label return a patch of a key of the metadata; nil removes it.
func annotate(key string, value any) map[string]any { return metadata("annotations", key, value) }
func label(key string, value any) map[string]any    { return metadata("labels", key, value) }

func metadata(field, key string, value any) map[string]any {
	return map[string]any{"metadata": map[string]any{field: map[string]any{key: value}}}
}

// intent is how an admin sets an intent.
type intent struct {
	key   string
	value string // "UNTIL" stands for the end
	stays bool   // the admin does not remove it: the coordinator does
}

var intents = map[string]intent{
	"paused":         {v1alpha1.AnnotationPaused, "why not", false},
	"paused-until":   {v1alpha1.AnnotationPaused, `{"reason": "a test", "until": "UNTIL"}`, true},
	"paused-broken":  {v1alpha1.AnnotationPaused, `{"until": tomorrow}`, false},
	"detached":       {v1alpha1.AnnotationDetached, "mine", false},
	"detached-until": {v1alpha1.AnnotationDetached, `{"by": "ada", "until": "UNTIL"}`, true},
	"detached-force": {v1alpha1.AnnotationDetached, `{"by": "ada", "force": true}`, false},
	"unmanaged":      {v1alpha1.LabelManaged, "false", false},
	"managed":        {v1alpha1.LabelManaged, "true", false},
	"request":        {v1alpha1.AnnotationRequest, "reboot", true},
	"request-reason": {v1alpha1.AnnotationRequest, `{"action": "reboot", "reason": "a test", "by": "ada"}`, true},
	"request-off":    {v1alpha1.AnnotationRequest, "reboot", false},
	"request-now":    {v1alpha1.AnnotationRequestNow, "reboot", true},
}

// intentModes are the keys of intents. Those that hold a node are as frequent as those that request a reboot.
var intentModes = []string{
	"paused", "paused-until", "paused-broken", "detached", "detached-until", "detached-force", "unmanaged", "managed",
	"request", "request-reason", "request-off", "request-now",
}

func setIntent(e *executor, f Fault) {
	i := intents[f.Mode]
	value := strings.Replace(i.value, "UNTIL", time.Now().Add(f.For).UTC().Format(time.RFC3339), 1)
	e.people.patchNode(f.On, i.patch(value))
}

func removeIntent(e *executor, f Fault) {
	if i := intents[f.Mode]; !i.stays {
		e.people.patchNode(f.On, i.patch(nil))
	}
}

func (i intent) patch(value any) map[string]any {
	if i.key == v1alpha1.LabelManaged {
		return label(i.key, value)
	}
	return annotate(i.key, value)
}

// retry clears the node's last turn, or the one that it is in.
func retry(e *executor, f Fault) {
	n := e.people.node(admin, f.On)
	if n == nil {
		return
	}
	keys := v1alpha1.ReadKeys(n.Labels, n.Annotations)
	turn := keys.Turn
	if turn == "" && keys.Last != nil {
		turn = keys.Last.Turn
	}
	if turn != "" {
		e.people.patchNode(f.On, annotate(v1alpha1.AnnotationRetry, turn))
	}
}

// confirm confirms every hook that the node's turn has, in whichever stage: with the turn's ID, or that of another turn.
func confirm(e *executor, f Fault) {
	n := e.people.node(admin, f.On)
	if n == nil {
		return
	}
	keys := v1alpha1.ReadKeys(n.Labels, n.Annotations)
	if keys.Grant == nil {
		return
	}
	turn := keys.Turn
	if f.Mode == "stale" {
		turn = "another-turn"
	}
	t := &keys.Grant.Terms
	for _, h := range slices.Concat(t.BeforeDrain, t.BeforeReboot, t.BeforeUncordon) {
		e.people.patchNode(f.On, annotate(v1alpha1.HookAnnotation(h.Name), turn))
	}
}

// stop sets the emergency stop, or deletes the Lease.
func stop(e *executor, f Fault) {
	if f.Mode == "delete" {
		e.people.do(admin, http.MethodDelete, leasePath, nil, nil)
		return
	}
	e.people.do(admin, http.MethodPatch, leasePath, annotate(v1alpha1.AnnotationStop, "a test"), nil)
}

// liftStop ends the stop. A deleted Lease is created without a holder, as the manifests do.
func liftStop(e *executor, f Fault) {
	if f.Mode == "delete" {
		e.people.do(admin, http.MethodPost, leasesPath, &coordinationv1.Lease{
			TypeMeta:   typeMeta("coordination.k8s.io/v1", "Lease"),
			ObjectMeta: objectMeta(v1alpha1.DefaultLeaseNamespace, v1alpha1.DefaultLeaseName),
		}, nil)
		return
	}
	e.people.do(admin, http.MethodPatch, leasePath, annotate(v1alpha1.AnnotationStop, nil), nil)
}

// editLease clears the Lease's holder, or names one that does not exist.
func editLease(e *executor, f Fault) {
	spec := map[string]any{"holderIdentity": ""}
	if f.Mode == "steal" {
		spec = leaseSpec("somebody-else")
	}
	e.people.do(admin, http.MethodPatch, leasePath, map[string]any{"spec": spec}, nil)
}

// leaseSpec returns the spec of a Lease that the holder has just taken.
func leaseSpec(holder string) map[string]any {
	now := time.Now().UTC().Format("2006-01-02T15:04:05.000000Z07:00")
	return map[string]any{"holderIdentity": holder, "acquireTime": now, "renewTime": now, "leaseDurationSeconds": 30}
}

// policyModes are the changes of a policy; see [policyChange].
var policyModes = []string{
	"budget=2", "budget=100%", "paused", "observe", "window", "window-cancel", "hooks", "hooks-continue", "drain-short", "drain-force",
	"settle=0s", "deleted", brokenRules,
}

// brokenRules is a policy that a team adds: it has rules alone, and they are invalid, although the API server accepts them. It selects every node.
const brokenRules = "broken-rules"

// policyChange returns the change of a policy's spec.
func policyChange(mode string) map[string]any {
	window := []any{map[string]any{"start": time.Now().Add(6 * time.Hour).UTC().Format("15:04"), "duration": "1h", "timeZone": "UTC"}}
	hook := func(onTimeout v1alpha1.OnTimeout) map[string]any {
		return map[string]any{"beforeDrain": []any{map[string]any{"name": "virtual", "timeout": "1m", "onTimeout": onTimeout}}}
	}
	rollout := func(key string, value any) map[string]any {
		return map[string]any{"rollout": map[string]any{key: value}}
	}
	switch mode {
	case "budget=2":
		return rollout("maxUnavailable", 2)
	case "budget=100%":
		return rollout("maxUnavailable", "100%")
	case "paused":
		return map[string]any{"paused": true}
	case "observe":
		return map[string]any{"mode": "Observe"}
	case "window":
		return rollout("windows", window)
	case "window-cancel":
		return map[string]any{"rollout": map[string]any{"windows": window, "onClose": "Cancel"}}
	case "hooks":
		return map[string]any{"hooks": hook(v1alpha1.OnTimeoutAbort)}
	case "hooks-continue":
		return map[string]any{"hooks": hook(v1alpha1.OnTimeoutContinue)}
	case "drain-short":
		return map[string]any{"drain": map[string]any{"timeout": "10s", "onTimeout": "Abort"}}
	case "drain-force":
		return map[string]any{"drain": map[string]any{"timeout": "30s", "onTimeout": "Force"}}
	case "settle=0s":
		return rollout("settle", "0s")
	}
	panic("the mode of a policy's change: " + mode)
}

// deciding returns one of the policies that decide about nodes: the fleet's, or with every other seed its canary's, if it has one.
func (p *people) deciding(seed uint64) *v1alpha1.DisruptionPolicy {
	var list v1alpha1.DisruptionPolicyList
	if !p.do(admin, http.MethodGet, policiesPath, nil, &list) {
		return nil
	}
	items := slices.DeleteFunc(list.Items, func(i v1alpha1.DisruptionPolicy) bool { return i.Spec.RulesOnly })
	if len(items) == 0 {
		return nil
	}
	slices.SortFunc(items, func(a, b v1alpha1.DisruptionPolicy) int {
		return cmp.Or(cmp.Compare(b.Spec.Priority, a.Spec.Priority), cmp.Compare(a.Name, b.Name))
	})
	return &items[seed%uint64(len(items))]
}

// changePolicy changes a policy. The executor keeps it as it was before the first change.
func changePolicy(e *executor, f Fault) {
	if f.Mode == brokenRules {
		p := v1alpha1.DisruptionPolicy{TypeMeta: typeMeta(v1alpha1.GroupVersion.String(), "DisruptionPolicy"), ObjectMeta: objectMeta("", brokenRules)}
		p.Spec.RulesOnly = true
		p.Spec.Rules = []v1alpha1.Rule{{Source: v1alpha1.SourceFile, Path: confDir, Actions: []v1alpha1.Action{{Type: v1alpha1.ActionRestart, Unit: "rescue@x.service"}}}}
		e.people.do(admin, http.MethodPost, policiesPath, &p, nil)
		return
	}
	e.mu.Lock()
	before := e.policy
	e.mu.Unlock()
	if before == nil {
		if before = e.people.deciding(e.plan.Seed); before == nil {
			return
		}
		e.mu.Lock()
		e.policy = before
		e.mu.Unlock()
	}
	path := policiesPath + "/" + before.Name
	if f.Mode == "deleted" {
		e.people.do(admin, http.MethodDelete, path, nil, nil)
		return
	}
	e.people.do(admin, http.MethodPatch, path, map[string]any{"spec": policyChange(f.Mode)}, nil)
}

// restorePolicy makes the policy what it was.
func restorePolicy(e *executor, f Fault) {
	if f.Mode == brokenRules {
		e.people.do(admin, http.MethodDelete, policiesPath+"/"+brokenRules, nil, nil)
		return
	}
	e.mu.Lock()
	before := e.policy
	e.policy = nil
	e.mu.Unlock()
	if before == nil {
		return
	}
	path := policiesPath + "/" + before.Name
	fresh := before.DeepCopy()
	fresh.TypeMeta = typeMeta(v1alpha1.GroupVersion.String(), "DisruptionPolicy")
	var now v1alpha1.DisruptionPolicy
	if e.people.do(admin, http.MethodGet, path, nil, &now) {
		fresh.ResourceVersion = now.ResourceVersion
		if e.people.do(admin, http.MethodPut, path, fresh, nil) {
			return
		}
	}
	// It is gone: an admin applies it again.
	fresh.ObjectMeta = objectMeta("", before.Name)
	e.people.do(admin, http.MethodPost, policiesPath, fresh, nil)
}
