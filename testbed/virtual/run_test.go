package virtual

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// objects is an API server that keeps JSON objects by path, and knows merge patches.
type objects struct {
	mu      sync.Mutex
	objects map[string]map[string]any
	patches []patched
}

type patched struct {
	user, path string
	doc        map[string]any
}

func newObjects(all ...any) *objects {
	o := &objects{objects: map[string]map[string]any{}}
	for _, v := range all {
		b, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		var doc map[string]any
		if err := json.Unmarshal(b, &doc); err != nil {
			panic(err)
		}
		o.objects[map[any]string{"Node": "/api/v1/nodes/", "Lease": leasesPath + "/", "DisruptionPolicy": policiesPath + "/"}[doc["kind"]]+
			doc["metadata"].(map[string]any)["name"].(string)] = doc
	}
	return o
}

// as is the way of one user.
type as struct {
	*objects
	user string
}

func (a as) RoundTrip(hr *http.Request) (*http.Response, error) {
	o, path := a.objects, strings.TrimSuffix(hr.URL.Path, "/status")
	o.mu.Lock()
	defer o.mu.Unlock()
	var body map[string]any
	if hr.Body != nil {
		b, _ := io.ReadAll(hr.Body)
		_ = json.Unmarshal(b, &body)
	}
	obj, found := o.objects[path]
	code := 200
	switch {
	case hr.Method == http.MethodPost:
		name := path + "/" + body["metadata"].(map[string]any)["name"].(string)
		if o.objects[name] != nil {
			code = 409
		} else {
			o.objects[name] = body
		}
		obj = body
	case hr.Method == http.MethodGet && path == policiesPath:
		obj = map[string]any{"items": []any{}}
		for _, key := range slices.Sorted(maps.Keys(o.objects)) {
			if strings.HasPrefix(key, policiesPath) {
				obj["items"] = append(obj["items"].([]any), o.objects[key])
			}
		}
	case !found:
		code, obj = 404, map[string]any{"kind": "Status"}
	case hr.Method == http.MethodPatch:
		o.patches = append(o.patches, patched{a.user, path, body})
		merged(obj, body)
	case hr.Method == http.MethodPut:
		o.objects[path] = body
	case hr.Method == http.MethodDelete:
		delete(o.objects, path)
	}
	b, _ := json.Marshal(obj)
	return &http.Response{Status: fmt.Sprint(code), StatusCode: code, Body: io.NopCloser(bytes.NewReader(b))}, nil
}

// merged applies a merge patch.
func merged(into, patch map[string]any) {
	for key, value := range patch {
		from, isMap := value.(map[string]any)
		switch {
		case value == nil:
			delete(into, key)
		case isMap:
			if _, ok := into[key].(map[string]any); !ok {
				into[key] = map[string]any{}
			}
			merged(into[key].(map[string]any), from)
		default:
			into[key] = value
		}
	}
}

// fakeFleet records what a plan does to it.
type fakeFleet struct {
	server *objects
	start  time.Time
	mu     sync.Mutex
	calls  []string
}

func (f *fakeFleet) call(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, fmt.Sprintf("%v ", time.Since(f.start))+fmt.Sprintf(format, args...))
}

func (f *fakeFleet) Hosts() []string                      { return shape.Hosts }
func (f *fakeFleet) Client(user string) http.RoundTripper { return as{f.server, user} }
func (f *fakeFleet) Kill(h string)                        { f.call("Kill %s", h) }
func (f *fakeFleet) Restart(h string)                     { f.call("Restart %s", h) }
func (f *fakeFleet) ChangeFile(h, name string, to content) {
	f.call("ChangeFile %s %s %q", h, name, to)
}
func (f *fakeFleet) SetUnit(h, unit string, m unitMode) { f.call("SetUnit %s %s %q", h, unit, m) }
func (f *fakeFleet) AddSentinel(h string)               { f.call("AddSentinel %s", h) }
func (f *fakeFleet) RemoveSentinel(h string)            { f.call("RemoveSentinel %s", h) }
func (f *fakeFleet) AddManager(h string)                { f.call("AddManager %s", h) }
func (f *fakeFleet) AddJob(h, mode string)              { f.call("AddJob %s %s", h, mode) }
func (f *fakeFleet) EndJob(h, mode string)              { f.call("EndJob %s %s", h, mode) }
func (f *fakeFleet) RemoveManager(h string)             { f.call("RemoveManager %s", h) }
func (f *fakeFleet) Freeze(h string)                    { f.call("Freeze %s", h) }
func (f *fakeFleet) Thaw(h string)                      { f.call("Thaw %s", h) }
func (f *fakeFleet) StartSecond(h string)               { f.call("StartSecond %s", h) }
func (f *fakeFleet) StopSecond(h string)                { f.call("StopSecond %s", h) }
func (f *fakeFleet) Crash(h string)                     { f.call("Crash %s", h) }
func (f *fakeFleet) PowerOn(h string)                   { f.call("PowerOn %s", h) }
func (f *fakeFleet) StopBus(h string)                   { f.call("StopBus %s", h) }
func (f *fakeFleet) StartBus(h string)                  { f.call("StartBus %s", h) }
func (f *fakeFleet) DelayBus(h string, d time.Duration) { f.call("DelayBus %s %v", h, d) }
func (f *fakeFleet) SetLogind(h string, m logindMode)   { f.call("SetLogind %s %q", h, m) }
func (f *fakeFleet) RestartLogind(h string)             { f.call("RestartLogind %s", h) }
func (f *fakeFleet) Stage(h, v string)                  { f.call("Stage %s %s", h, v) }
func (f *fakeFleet) RestartClient(h string)             { f.call("RestartClient %s", h) }
func (f *fakeFleet) HangUp(h string)                    { f.call("HangUp %s", h) }
func (f *fakeFleet) StopClient(h string, m clientMode)  { f.call("StopClient %s %s", h, m) }
func (f *fakeFleet) StartClient(h string, m clientMode) { f.call("StartClient %s %s", h, m) }
func (f *fakeFleet) Withdraw(h string)                  { f.call("Withdraw %s", h) }
func (f *fakeFleet) BreakKubelet(h string)              { f.call("BreakKubelet %s", h) }
func (f *fakeFleet) FixKubelet(h string)                { f.call("FixKubelet %s", h) }
func (f *fakeFleet) RollBack(h string)                  { f.call("RollBack %s", h) }
func (f *fakeFleet) RestartKubelet(h string)            { f.call("RestartKubelet %s", h) }
func (f *fakeFleet) ShiftHostClock(host string, d time.Duration) {
	f.call("ShiftHostClock %s %v", host, d)
}
func (f *fakeFleet) ShiftClock(d time.Duration) { f.call("ShiftClock %v", d) }
func (f *fakeFleet) CutWatches(r string)        { f.call("CutWatches %q", r) }
func (f *fakeFleet) Compact()                   { f.call("Compact") }
func (f *fakeFleet) Snapshot() any              { return time.Since(f.start) }
func (f *fakeFleet) Restore(s any)              { f.call("Restore %v", s) }
func (f *fakeFleet) Inhibit(h string)           { f.call("Inhibit %s", h) }
func (f *fakeFleet) EndInhibit(h string)        { f.call("EndInhibit %s", h) }
func (f *fakeFleet) LogIn(h string)             { f.call("LogIn %s", h) }
func (f *fakeFleet) LogOut(h string)            { f.call("LogOut %s", h) }
func (f *fakeFleet) BlockDrains(h string)       { f.call("BlockDrains %s", h) }
func (f *fakeFleet) AllowDrains(h string)       { f.call("AllowDrains %s", h) }
func (f *fakeFleet) AddPod(h string)            { f.call("AddPod %s", h) }

// play carries a plan of ten minutes out on a fake fleet, runs f meanwhile, and returns what happened to the fleet.
func play(t *testing.T, text string, f func(*testing.T, *executor, *fakeFleet)) (calls []string, fleet *fakeFleet, log *trace) {
	t.Helper()
	p, err := Parse("plan seed=7 length=10m0s\n" + text)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		spec := v1alpha1.DefaultPolicySpec()
		dp := &v1alpha1.DisruptionPolicy{TypeMeta: typeMeta("lockkeeper.dev/v1alpha1", "DisruptionPolicy"), ObjectMeta: objectMeta("", "p"), Spec: spec}
		lease := map[string]any{"kind": "Lease", "metadata": map[string]any{"name": "lockkeeper"}, "spec": map[string]any{}}
		log = newTrace()
		fleet = &fakeFleet{server: newObjects(nodes()[0], dp, lease), start: time.Now()}
		e := newExecutor(p, log)
		defer e.Close()
		e.Start(fleet)
		if f != nil {
			f(t, e, fleet)
		}
		<-e.Calm()
		if after := time.Since(fleet.start); after < 10*time.Minute || after > 10*time.Minute+10*time.Second {
			t.Errorf("the quiet period begins after %v", after)
		}
	})
	fleet.mu.Lock()
	defer fleet.mu.Unlock()
	return fleet.calls, fleet, log
}

// spec returns a part of an object as JSON; "gone" if it does not exist.
func (o *objects) part(path string, fields ...string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	obj, ok := o.objects[path]
	if !ok {
		return "gone"
	}
	var v any = obj
	for _, f := range fields {
		v = v.(map[string]any)[f]
	}
	b, _ := json.Marshal(v)
	return string(b)
}

// TestPeople: what admins and thieves do to objects, while it lasts and after it.
func TestPeople(t *testing.T) {
	node := func(fields ...string) func(*objects) string {
		return func(o *objects) string { return o.part(nodePath("n1"), fields...) }
	}
	annotations := node("metadata", "annotations")
	lease := func(fields ...string) func(*objects) string {
		return func(o *objects) string { return o.part(leasePath, fields...) }
	}
	rollout := func(field string) func(*objects) string {
		return func(o *objects) string { return o.part(policiesPath+"/p", "spec", "rollout", field) }
	}
	broken := func(o *objects) string { return o.part(policiesPath+"/"+brokenRules, "metadata", "name") }
	const key = "lockkeeper.dev/"
	for text, c := range map[string]struct {
		of            func(*objects) string
		during, after string
	}{
		"30s intent n1 for=1m mode=paused":         {annotations, `{"` + key + `paused":"why not"}`, `{}`},
		"30s intent n1 for=1m mode=detached-force": {annotations, `{"` + key + `detached":"{\"by\": \"ada\", \"force\": true}"}`, `{}`},
		"30s intent n1 for=1m mode=unmanaged":      {node("metadata", "labels"), `{"` + key + `managed":"false"}`, `{}`},
		"30s intent n1 for=1m mode=request":        {annotations, `{"` + key + `request":"reboot"}`, `{"` + key + `request":"reboot"}`},
		"30s intent n1 for=1m mode=request-off":    {annotations, `{"` + key + `request":"reboot"}`, `{}`},
		"30s intent n1 for=1m mode=paused-until": {
			annotations, `{"` + key + `paused":"{\"reason\": \"a test\", \"until\": \"2000-01-01T00:01:30Z\"}"}`,
			`{"` + key + `paused":"{\"reason\": \"a test\", \"until\": \"2000-01-01T00:01:30Z\"}"}`,
		},
		"30s stop for=1m mode=annotation":                               {lease("metadata", "annotations"), `{"` + key + `paused":"a test"}`, `{}`},
		"30s stop for=1m mode=delete":                                   {lease("metadata", "name"), "gone", `"lockkeeper"`},
		"30s lease mode=steal":                                          {lease("spec", "holderIdentity"), `"somebody-else"`, `"somebody-else"`},
		"30s lease mode=blank":                                          {lease("spec", "holderIdentity"), `""`, `""`},
		"30s policy for=1m mode=budget=2":                               {rollout("maxUnavailable"), "2", "1"},
		"30s policy for=1m mode=deleted":                                {rollout("maxUnavailable"), "gone", "1"},
		"30s policy for=5s mode=deleted\n31s policy for=1m mode=paused": {rollout("maxUnavailable"), "gone", "1"},
		"30s replace-node n1 for=1m":                                    {node("metadata", "name"), "gone", "gone"},
		"30s cordon n1 for=1m":                                          {node("spec", "unschedulable"), "true", "false"},
		"30s uncordon n1":                                               {node("spec", "unschedulable"), "false", "false"},
		"30s lie n1 for=1m mode=wants-unknown":                          {node("metadata", "labels"), `{"` + key + `wants":"everything"}`, `{"` + key + `wants":"everything"}`},
		"30s lie n1 for=1m mode=mark":                                   {node("spec", "unschedulable"), "true", "false"},
		"30s intent n1 for=1m mode=detached\n32s retry n1":              {annotations, `{"` + key + `detached":"mine"}`, `{}`},
		"30s thief for=1m mode=lease":                                   {lease("spec", "holderIdentity"), `"thief_0001"`, `"thief_0001"`},

		"30s policy for=5s mode=broken-rules\n31s policy for=1m mode=paused": {broken, "gone", "gone"},
		"30s policy for=1m mode=broken-rules\n31s policy for=5s mode=paused": {broken, `"broken-rules"`, "gone"},
	} {
		t.Run(text, func(t *testing.T) {
			_, fleet, log := play(t, text, func(t *testing.T, e *executor, fleet *fakeFleet) {
				time.Sleep(40 * time.Second)
				if got := c.of(fleet.server); got != c.during {
					t.Errorf("meanwhile it is %s, expected %s", got, c.during)
				}
			})
			if got := c.of(fleet.server); got != c.after {
				t.Errorf("after it, it is %s, expected %s; the trace:\n%v", got, c.after, log)
			}
		})
	}
}

// TestTurnOfANode: an admin clears the turn that the node is in, or else its last one, and confirms its hooks.
func TestTurnOfANode(t *testing.T) {
	inTurn := map[string]string{
		v1alpha1.AnnotationTurn:  "t2",
		v1alpha1.AnnotationLast:  `{"turn":"t1","result":"Failed","end":"2000-01-01T00:00:00Z"}`,
		v1alpha1.AnnotationGrant: `{"turn":"t2","epoch":"e","nodeUID":"u","wants":"reboot","terms":{"beforeDrain":[{"name":"a"}],"beforeUncordon":[{"name":"b"}]}}`,
	}
	last := maps.Clone(inTurn)
	delete(last, v1alpha1.AnnotationTurn)
	delete(last, v1alpha1.AnnotationGrant)
	for _, c := range []struct {
		text        string
		annotations map[string]string
		want        map[string]string
	}{
		{"30s retry n1", inTurn, map[string]string{v1alpha1.AnnotationRetry: "t2"}},
		{"30s retry n1", last, map[string]string{v1alpha1.AnnotationRetry: "t1"}},
		{"30s retry n1", nil, nil},
		{"30s confirm n1 mode=right", inTurn, map[string]string{"hook.lockkeeper.dev/a": "t2", "hook.lockkeeper.dev/b": "t2"}},
		{"30s confirm n1 mode=stale", inTurn, map[string]string{"hook.lockkeeper.dev/a": "another-turn", "hook.lockkeeper.dev/b": "another-turn"}},
		{"30s confirm n1 mode=right", last, nil},
	} {
		_, fleet, _ := play(t, c.text, func(t *testing.T, _ *executor, fleet *fakeFleet) {
			n := nodes()[0]
			n.Annotations = c.annotations
			fleet.server = newObjects(n)
		})
		got := map[string]string{}
		for _, p := range fleet.server.patches {
			for key, value := range p.doc["metadata"].(map[string]any)["annotations"].(map[string]any) {
				got[key] = value.(string)
			}
		}
		if !maps.Equal(got, c.want) {
			t.Errorf("%s writes %v, expected %v", c.text, got, c.want)
		}
	}
}

// TestLiesAreRepeated: a host that lies all the time writes at its interval, until the fault is over.
func TestLiesAreRepeated(t *testing.T) {
	_, fleet, _ := play(t, "30s lie n1 for=5s mode=wants-flap", nil)
	var got []string
	for _, p := range fleet.server.patches {
		got = append(got, fmt.Sprint(p.user, p.doc))
	}
	flap := func(wants string) string {
		return "system:node:n1map[metadata:map[labels:map[lockkeeper.dev/wants:" + wants + "]]]"
	}
	if want := []string{flap("reboot"), flap("nothing"), flap("reboot"), flap("nothing"), flap("reboot")}; !slices.Equal(got, want) {
		t.Errorf("it writes %q, expected %q", got, want)
	}
}

// TestCounts: a fault that counts requests happens at the one that it names, and to as many as it says; an event of the fleet triggers too. A fault
// may come some time later.
func TestCounts(t *testing.T) {
	text := "n1#2:host,patch,nodes lost mode=error times=2\n*#3:host,get kill n3\nn2#1:hook,before-drain crash n2 for=1m\n" +
		"n2#1:hook,before-drain+3s kill n1\n"
	calls, _, log := play(t, text, func(t *testing.T, e *executor, fleet *fakeFleet) {
		s := &standIn{}
		send := func(process, method, want string) {
			t.Helper()
			resp, err := e.Transport(process, roleHost, s).RoundTrip(newRequest(t.Context(), t, method, "/api/v1/nodes/n1", patchOfState))
			got := describeAnswer(resp, err)
			if got, _, _ = strings.Cut(got, " "); got != want {
				t.Errorf("%s %s of %s gets %s, expected %s", method, patchOfState, process, got, want)
			}
		}
		for _, want := range []string{"200", "connection", "connection", "200"} {
			send("n1", "PATCH", want)
			send("n2", "PATCH", "200")
			send("n2", "GET", "200")
		}
		e.Happened(t.Context(), "n1", "hook,before-drain")
		e.Happened(t.Context(), "n2", "hook,before-reboot")
		time.Sleep(time.Minute)
		e.Happened(t.Context(), "n2", "hook,before-drain")
		fleet.call("the hook")
		time.Sleep(2 * time.Second)
		fleet.call("2 s later")
		time.Sleep(2 * time.Second)
		if got, want := fmt.Sprint(e.Fired()), "map[crash:1 kill:2 lost:2]"; got != want {
			t.Errorf("these faults have happened: %s, expected %s", got, want)
		}
	})
	for i, c := range calls {
		_, calls[i], _ = strings.Cut(c, " ")
	}
	if got, want := strings.Join(calls, ", "), "Kill n3, Crash n2, the hook, 2 s later, Kill n1, PowerOn n2"; got != want {
		t.Errorf("the fleet gets %q, expected %q; the trace:\n%v", got, want, log)
	}
}

// TestNetworks: a host that is cut off, an outage of the API server, and watches that hang, lag and end.
func TestNetworks(t *testing.T) {
	for text, want := range map[string]string{
		"30s cut-off n1 for=20s":                             "GET: context deadline exceeded; watch: one@0s two@50s",
		"30s cut-off n1 for=50s":                             "GET: context deadline exceeded; watch: one@0s client connection lost: no answer to pings@1m20s",
		"30s cut-off n2 for=20s":                             "GET: 200; watch: one@0s two@35s",
		"30s denied n1 for=20s mode=401:host":                "GET: 401; watch: one@0s EOF@30s",
		"30s denied n1 for=20s mode=403,rbac:host,get,nodes": "GET: 403; watch: one@0s EOF@30s",
		"30s denied n1 for=20s mode=401:coordinator":         "GET: 200; watch: one@0s EOF@30s",
		"30s denied n2 for=20s mode=401:host":                "GET: 200; watch: one@0s two@35s",
		"30s outage for=20s mode=error":                      "GET: connection reset by peer; watch: one@0s connection reset by peer@30s",
		"30s outage for=20s mode=silent":                     "GET: context deadline exceeded; watch: one@0s connection reset by peer@30s",
		"30s watch-hang n1 for=20s":                          "GET: 200; watch: one@0s client connection lost: no answer to pings@50s",
		"30s watch-lag n1 for=20s":                           "GET: 200; watch: one@0s two@55s",
		"30s watch-cut n1":                                   "GET: 200; watch: one@0s tw@35s",
		"30s watch-end n1":                                   "GET: 200; watch: one@0s EOF@30s",
		"30s watch-end n2":                                   "GET: 200; watch: one@0s two@35s",
		"8s proxy n1 mode=404 times=2":                       "GET: 404; watch: one@0s two@35s",
	} {
		t.Run(text, func(t *testing.T) {
			var got []string
			play(t, text, func(t *testing.T, e *executor, fleet *fakeFleet) {
				s := &standIn{events: make(chan string, 2)}
				rt := e.Transport("n1", roleHost, s)
				body := openWatch(t, rt)
				s.events <- "one"
				events := make(chan string, 10)
				go func() {
					buffer := make([]byte, 100)
					for {
						n, err := body.Read(buffer)
						text := strings.TrimSpace(string(buffer[:n]))
						if err != nil {
							text = err.Error()
						}
						events <- fmt.Sprintf("%s@%v", text, time.Since(fleet.start).Round(time.Second))
						if err != nil {
							return
						}
					}
				}()
				time.Sleep(32 * time.Second)
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				answer := describeAnswer(rt.RoundTrip(newRequest(ctx, t, "GET", "/api/v1/nodes/n1", "")))
				if short, _, _ := strings.Cut(answer, " "); len(short) == 3 {
					answer = short
				}
				time.Sleep(35*time.Second - time.Since(fleet.start))
				s.events <- "two"
				time.Sleep(5 * time.Minute)
				got = append(got, "GET: "+answer+"; watch: "+<-events+" "+<-events)
			})
			if got[0] != want {
				t.Errorf("%s, expected %s", got[0], want)
			}
		})
	}
}

// TestNext: a fault happens to the next request of a class by the process whose request triggers it, or to that process.
func TestNext(t *testing.T) {
	text := "*#2:host,patch,nodes>host,get,nodes lost mode=error times=2\n*#1:host,patch,nodes kill\n"
	calls, _, _ := play(t, text, func(t *testing.T, e *executor, fleet *fakeFleet) {
		s := &standIn{}
		for i, c := range []struct{ process, method, want string }{
			{"n1", "GET", "200"}, {"n2", "PATCH", "200"}, {"n2", "GET", "200"}, {"n1", "PATCH", "200"}, {"n2", "GET", "200"}, {"n1", "PATCH", "200"},
			{"n1", "GET", "connection"}, {"n2", "GET", "200"}, {"n1", "GET", "connection"}, {"n1", "GET", "200"},
		} {
			resp, err := e.Transport(c.process, roleHost, s).RoundTrip(newRequest(t.Context(), t, c.method, "/api/v1/nodes/n1", patchOfState))
			if got, _, _ := strings.Cut(describeAnswer(resp, err), " "); got != c.want {
				t.Errorf("request %d, %s of %s, gets %s, expected %s", i, c.method, c.process, got, c.want)
			}
		}
	})
	if len(calls) != 1 || !strings.HasSuffix(calls[0], " Kill n2") {
		t.Errorf("the faults did %q, expected to kill n2", calls)
	}
}

// TestExecutor: what each kind does to the fleet, and when. What lasts longer than the faults ends with them.
func TestExecutor(t *testing.T) {
	for text, want := range map[string]string{
		"30s kill n2":                                "30s Kill n2",
		"30s restart n2":                             "30s Restart n2",
		"30s file n2 mode=a":                         `30s ChangeFile n2 a ""`,
		"30s file n2 mode=b,back":                    `30s ChangeFile n2 b "back"`,
		"30s unit n2 for=1m mode=app.service,hangs":  `30s SetUnit n2 app.service "hangs", 1m30s SetUnit n2 app.service ""`,
		"30s freeze n2 for=5s":                       "30s Freeze n2, 35s Thaw n2",
		"30s freeze n2 for=1h":                       "30s Freeze n2, 10m0s Thaw n2",
		"30s start-twice n2 for=5s":                  "30s StartSecond n2, 35s StopSecond n2",
		"30s crash n2 for=1m":                        "30s Crash n2, 1m30s PowerOn n2",
		"30s bus-down n2 for=1s":                     "30s StopBus n2, 31s StartBus n2",
		"30s bus-slow n2 for=2s mode=1s":             "30s DelayBus n2 1s, 32s DelayBus n2 0s",
		"30s logind n2 for=1s mode=lose":             `30s SetLogind n2 "lose", 31s SetLogind n2 ""`,
		"30s client-restart n2":                      "30s RestartClient n2",
		"30s client-hang-up n2":                      "30s HangUp n2",
		"30s client-stop n2 for=1m mode=by-hand":     "30s StopClient n2 by-hand, 1m30s StartClient n2 by-hand",
		"30s logind-restart n2":                      "30s RestartLogind n2",
		"30s stage n2 mode=3.0.0":                    "30s Stage n2 3.0.0",
		"30s withdraw n2 for=1m mode=2.0.0":          "30s Withdraw n2, 1m30s Stage n2 2.0.0",
		"30s host-clock n2 for=5s mode=1h":           "30s ShiftHostClock n2 1h0m0s, 35s ShiftHostClock n2 0s",
		"30s clock for=5s mode=-40s":                 "30s ShiftClock -40s, 35s ShiftClock 0s",
		"30s cut-watches mode=pods":                  `30s CutWatches "pods"`,
		"30s compact":                                "30s Compact",
		"2m10s rewind for=1m":                        "2m10s Restore 1m0s",
		"2m10s rewind for=1m\n2m30s rewind for=10s":  "2m10s Restore 1m0s, 2m30s Restore 2m20s",
		"2m10s rewind for=1m\n2m15s rewind for=14s":  "2m10s Restore 1m0s, 2m15s Restore 1m0s",
		"2m10s rewind for=1h":                        "",
		"30s not-ready n1 for=1m":                    "30s BreakKubelet n1, 1m30s FixKubelet n1",
		"30s rollback n1":                            "30s RollBack n1",
		"30s replace-node n1 for=1m":                 "1m30s RestartKubelet n1",
		"30s sentinel n2 for=1m mode=removed":        "30s AddSentinel n2, 1m30s RemoveSentinel n2",
		"30s sentinel n2 for=1m mode=stays":          "30s AddSentinel n2",
		"30s manager n2 for=1m":                      "30s AddManager n2, 1m30s RemoveManager n2",
		"30s job n2 for=1m mode=bare":                "30s AddJob n2 bare, 1m30s EndJob n2 bare",
		"30s inhibit n2 for=1m":                      "30s Inhibit n2, 1m30s EndInhibit n2",
		"30s session n2 for=1m":                      "30s LogIn n2, 1m30s LogOut n2",
		"30s budget n2 for=1m":                       "30s BlockDrains n2, 1m30s AllowDrains n2",
		"30s pod n2":                                 "30s AddPod n2",
		"30s lie n1 for=1s mode=status-boot":         "31s RestartKubelet n1",
		"30s lie n1 for=1s mode=mark,alone":          "30s Freeze n1, 31s Thaw n1",
		"11m kill n1":                                "",
		"30s freeze n2 for=9s\n35s freeze n2 for=9s": "30s Freeze n2, 35s Freeze n2, 44s Thaw n2",
	} {
		t.Run(text, func(t *testing.T) {
			if calls, _, log := play(t, text, nil); strings.Join(calls, ", ") != want {
				t.Errorf("the fleet gets %q, expected %q; the trace:\n%v", strings.Join(calls, ", "), want, log)
			}
		})
	}
}
