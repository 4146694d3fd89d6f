package client

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/testbed/apiserver"
)

// differences are the steps of the script that the server in memory answers in another way on purpose, with the reason.
var differences = map[string]string{
	"create a node without a taint": "the taint not-ready comes from admission, and only the controller manager would remove it",
	"put of another uid":            "the message of a real one names etcd's key",
	"dry run of an odd label":       "objects are not validated",
	"the budget cannot be negative": "objects are not validated",
}

// TestSameAnswers holds one script of requests against the API server in memory and against a real one, and compares the answers.
func TestSameAnswers(t *testing.T) {
	freshLease(t)
	real := &player{t: t, name: "real", clients: func(user string) http.RoundTripper {
		groups := []string{"system:nodes"}
		if user == "admin" {
			groups = []string{"system:masters"}
		}
		cfg, err := cp(t).ConfigFor(user, groups...)
		must(t, err)
		rt, err := rest.TransportFor(cfg)
		must(t, err)
		return rt
	}, base: cp(t).URL(), restart: func() error {
		if _, err := cp(t).Compact(t.Context()); err != nil {
			return err
		}
		return cp(t).RestartAPIServer(t.Context())
	}}
	memory := inMemory(t)
	var both sync.WaitGroup
	for _, p := range []*player{real, memory} {
		both.Go(p.play)
	}
	both.Wait()
	if t.Failed() {
		return
	}
	for _, s := range script {
		want, got := real.answers[s.name], memory.answers[s.name]
		why, listed := differences[s.name]
		switch {
		case want != got && !listed:
			t.Errorf("%s: %s\nthe real API server answers\n%s\nthe one in memory answers\n%s", s.name, s.request, want, got)
		case want == got && listed:
			t.Errorf("%s: the answers are the same, but it is listed as a difference: %s", s.name, why)
		}
	}
	for name := range differences {
		if !slices.ContainsFunc(script, func(s step) bool { return s.name == name }) {
			t.Errorf("a difference is listed for %q, which is not in the script", name)
		}
	}
}

// inMemory returns the player of the server in memory.
func inMemory(t *testing.T) *player {
	s := apiserver.New()
	return &player{t: t, name: "memory", clients: s.Client, base: "http://memory", restart: func() error {
		s.CutWatches("")
		s.Compact()
		return nil
	}}
}

// step is one request of the script, or one part of a watch:
//
//	GET /api/v1/nodes        a request; after the path there may be the kind of the patch, "proto" for a protobuf answer and "code" if only the code counts
//	WATCH name PATH          starts a watch
//	EVENTS name N            expects N events of the watch, without bookmarks unless they end the initial events
//	END name                 expects the end of the watch
//	RESTART                  restarts the API server after its store was compacted
//
// A request and its body may contain {rv NAME}, {uid NAME} and {continue}, from the last answer with an object of that name, and {old}, a
// resourceVersion that the step before saved with "save".
type step struct {
	name, request, body string
	as                  string // the user; "" is admin
}

// player plays the script against one server.
type player struct {
	t       *testing.T
	name    string
	base    string
	clients func(user string) http.RoundTripper
	restart func() error
	space   string // the namespace; the script calls it "same"

	vars    map[string]string
	symbols map[string]string
	answers map[string]string
	watches map[string]*playedWatch
}

type playedWatch struct {
	body   io.Closer
	events chan map[string]any
}

func (p *player) play() {
	// No controller deletes the namespace after the test, so that another run needs another one.
	p.space = fmt.Sprintf("same-%d", time.Now().UnixNano())
	p.vars, p.symbols, p.answers, p.watches = map[string]string{}, map[string]string{}, map[string]string{}, map[string]*playedWatch{}
	defer func() {
		for _, w := range p.watches {
			w.body.Close()
		}
	}()
	for _, s := range script {
		if _, twice := p.answers[s.name]; twice {
			p.t.Errorf("two steps have the name %q", s.name)
		}
		answer, err := p.step(s)
		if err != nil {
			p.t.Errorf("%s: %s: %v", p.name, s.name, err)
			return
		}
		p.answers[s.name] = answer
	}
}

var variable = regexp.MustCompile(`\{(rv|uid|continue|old)( [^{}]*)?\}`)

func (p *player) fill(s string) string {
	s = strings.ReplaceAll(s, "namespaces/same", "namespaces/"+p.space)
	s = strings.ReplaceAll(s, `"namespace":"same"`, `"namespace":"`+p.space+`"`)
	return variable.ReplaceAllStringFunc(strings.ReplaceAll(s, "{space}", p.space), func(name string) string {
		v, ok := p.vars[strings.Trim(name, "{}")]
		if !ok {
			p.t.Errorf("%s: no value for %s", p.name, name)
		}
		return v
	})
}

func (p *player) step(s step) (string, error) {
	parts := strings.Fields(p.fill(s.request))
	// A space in braces is a part of a variable, and is gone by now.
	switch parts[0] {
	case "WATCH":
		return "started", p.watch(s, parts[1], parts[2])
	case "EVENTS":
		var n int
		if _, err := fmt.Sscan(parts[2], &n); err != nil {
			return "", err
		}
		return p.events(parts[1], n), nil
	case "END":
		return p.end(parts[1]), nil
	case "RESTART":
		return "restarted", p.restart()
	}
	resp, err := p.send(s, parts[0], parts[1], parts[2:])
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	media, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	head := fmt.Sprintf("%d %s", resp.StatusCode, media)
	if after := resp.Header.Get("Retry-After"); after != "" {
		head += " Retry-After " + after
	}
	if media == "application/vnd.kubernetes.protobuf" {
		if body, err = asJSON(body); err != nil {
			return "", err
		}
	}
	var date time.Time
	if parts[0] == http.MethodDelete {
		date, _ = http.ParseTime(resp.Header.Get("Date"))
	}
	var v any
	if json.Unmarshal(body, &v) != nil && !slices.Contains(parts, "code") {
		return head + "\n" + string(body), nil
	}
	p.learn(v)
	if slices.Contains(parts, "save") {
		p.vars["old"] = v.(map[string]any)["metadata"].(map[string]any)["resourceVersion"].(string)
	}
	if slices.Contains(parts, "code") {
		return fmt.Sprint(resp.StatusCode), nil
	}
	return head + "\n" + p.normal(v, date), nil
}

// asJSON decodes a protobuf answer.
func asJSON(body []byte) ([]byte, error) {
	obj, gvk, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, err
	}
	obj.GetObjectKind().SetGroupVersionKind(*gvk)
	return json.Marshal(obj)
}

var patches = map[string]string{"merge": "application/merge-patch+json", "strategic": "application/strategic-merge-patch+json",
	"apply": "application/apply-patch+yaml", "odd": "application/x-odd"}

func (p *player) send(s step, method, path string, flags []string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(p.t.Context(), method, p.base+path, strings.NewReader(p.fill(s.body)))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "same/1 (test)")
	for _, f := range flags {
		if kind, ok := patches[f]; ok {
			req.Header.Set("Content-Type", kind)
		}
		if f == "proto" {
			req.Header.Set("Accept", "application/vnd.kubernetes.protobuf,application/json")
		}
		if f == "onlyproto" {
			req.Header.Set("Accept", "application/vnd.kubernetes.protobuf")
		}
	}
	user := s.as
	if user == "" {
		user = "admin"
	}
	return p.clients(user).RoundTrip(req)
}

func (p *player) watch(s step, name, path string) error {
	resp, err := p.send(s, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	w := &playedWatch{body: resp.Body, events: make(chan map[string]any, 1000)}
	p.watches[name] = w
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the watch %s is answered with %s", name, resp.Status)
	}
	go func() {
		defer close(w.events)
		lines := bufio.NewReader(resp.Body)
		for {
			line, err := lines.ReadBytes('\n')
			var e map[string]any
			if err != nil || json.Unmarshal(line, &e) != nil {
				return
			}
			w.events <- e
		}
	}()
	return nil
}

// events returns the next events of a watch, normalized.
func (p *player) events(name string, n int) string {
	var all strings.Builder
	timeout := time.After(10 * time.Second)
	for n > 0 {
		select {
		case e, ok := <-p.watches[name].events:
			if !ok {
				return all.String() + "the watch has ended"
			}
			raw, err := json.Marshal(e["object"])
			must(p.t, err)
			if e["type"] == "BOOKMARK" && !bytes.Contains(raw, []byte(metav1.InitialEventsAnnotationKey)) {
				continue
			}
			n--
			p.learn(e["object"])
			fmt.Fprintf(&all, "%s %s\n", e["type"], p.normal(e["object"], time.Time{}))
		case <-timeout:
			return all.String() + "no further event"
		}
	}
	return all.String()
}

func (p *player) end(name string) string {
	timeout := time.After(10 * time.Second)
	for {
		select {
		case e, ok := <-p.watches[name].events:
			if !ok {
				return "ended"
			}
			if e["type"] != "BOOKMARK" {
				return fmt.Sprint("another event: ", p.normal(e["object"], time.Time{}))
			}
		case <-timeout:
			return "it does not end"
		}
	}
}

// learn keeps the versions and UIDs of an answer for later requests.
func (p *player) learn(v any) {
	m, _ := v.(map[string]any)
	meta, _ := m["metadata"].(map[string]any)
	name, _ := meta["name"].(string)
	for key, field := range map[string]string{"rv": "resourceVersion", "uid": "uid"} {
		if s, ok := meta[field].(string); ok && s != "" {
			p.vars[strings.TrimSpace(key+" "+name)] = s
		}
	}
	if s, ok := meta["continue"].(string); ok {
		p.vars["continue"] = s
	}
	items, _ := m["items"].([]any)
	for _, item := range items {
		p.learn(item)
	}
}

// symbol returns a name for a version or UID: equal values have equal names.
func (p *player) symbol(kind, v string) string {
	if _, ok := p.symbols[v]; !ok {
		p.symbols[v] = fmt.Sprintf("%s%d", kind, len(p.symbols)+1)
	}
	return p.symbols[v]
}

// normal returns an answer without what differs between any two servers.
func (p *player) normal(v any, date time.Time) string {
	m, ok := v.(map[string]any)
	if !ok {
		return fmt.Sprint(v)
	}
	_, isList := m["items"]
	b, err := json.MarshalIndent(p.clean(m, date, isList), "", " ")
	must(p.t, err)
	text := strings.ReplaceAll(string(b), p.space, "same")
	for _, value := range slices.Sorted(maps.Keys(p.symbols)) {
		if len(value) > 8 { // a UID in a message
			text = strings.ReplaceAll(text, value, p.symbols[value])
		}
	}
	return numbers.ReplaceAllString(text, "N")
}

var numbers = regexp.MustCompile(`\b\d{2,}\b`)

// podFields are the fields of a pod's spec that are compared: a real API server sets many defaults that no eviction depends on.
var podFields = []string{"nodeName", "terminationGracePeriodSeconds", "restartPolicy", "priority", "schedulerName"}

func (p *player) clean(m map[string]any, date time.Time, inList bool) map[string]any {
	out := map[string]any{}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		switch v := m[k].(type) {
		case map[string]any:
			if k == "spec" && v["containers"] != nil {
				maps.DeleteFunc(v, func(k string, _ any) bool { return !slices.Contains(podFields, k) })
			}
			out[k] = p.clean(v, date, inList && k != "metadata")
		case []any:
			if k == "managedFields" {
				out[k] = owners(v)
				continue
			}
			var items []any
			for _, item := range v {
				if one, ok := item.(map[string]any); ok {
					item = p.clean(one, date, false)
				}
				items = append(items, item)
			}
			out[k] = items
		case string:
			if k == "continue" && v == "" {
				continue
			}
			out[k] = p.word(k, v, date, m)
		default:
			out[k] = v
		}
	}
	return out
}

// word normalizes a string at a key of m.
func (p *player) word(key, v string, date time.Time, m map[string]any) string {
	switch {
	case key == "resourceVersion" && m["name"] == nil:
		return "the list's" // other parts of a control plane write, too
	case key == "resourceVersion":
		return p.symbol("v", v)
	case key == "uid":
		return p.symbol("uid", v)
	case key == "continue":
		return "token"
	}
	if at, err := time.Parse(time.RFC3339Nano, v); err == nil {
		if key == "deletionTimestamp" && !date.IsZero() {
			return fmt.Sprintf("in %v", at.Sub(date).Round(10*time.Second))
		}
		return "a time"
	}
	return v
}

// owners returns who owns which fields. Entries of lists and of maps' own existence are left out: the server in memory treats a list as one field.
func owners(entries []any) []string {
	var all []string
	for _, e := range entries {
		m := e.(map[string]any)
		var fields []string
		listFields("", m["fieldsV1"].(map[string]any), &fields)
		slices.Sort(fields)
		all = append(all, fmt.Sprint(m["manager"], " ", m["operation"], " ", m["subresource"], " ", m["apiVersion"], " ", slices.Compact(fields)))
	}
	slices.Sort(all)
	return all
}

func listFields(path string, m map[string]any, all *[]string) {
	leaf := true
	for k, v := range m {
		if name, ok := strings.CutPrefix(k, "f:"); ok {
			leaf = false
			listFields(path+"."+name, v.(map[string]any), all)
		}
	}
	if leaf {
		*all = append(*all, path)
	}
}
