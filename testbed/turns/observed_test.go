package turns

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	toolswatch "k8s.io/client-go/tools/watch"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// placeJournal is where every reason appears.
const placeJournal v1alpha1.Place = "journal"

// observations are where the scenes have read each reason, and which kinds of blockers they have read everywhere.
type observations struct {
	mu      sync.Mutex
	reasons map[observation]bool
	kinds   map[string]bool // scene and kind
}

type observation struct {
	scene  string
	reason v1alpha1.Reason
	place  v1alpha1.Place
}

var observed = observations{reasons: map[observation]bool{}, kinds: map[string]bool{}}

func (o *observations) add(scene string, r v1alpha1.Reason, places ...v1alpha1.Place) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range places {
		o.reasons[observation{scene, r, p}] = true
	}
}

func (o *observations) addKind(scene string, k v1alpha1.BlockerKind) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kinds[scene+" "+string(k)] = true
}

// missing returns what the product's tables have and no scene has read.
func (o *observations) missing() (all []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, d := range v1alpha1.ReasonDocs() {
		for _, p := range append(d.Reason.Places(), placeJournal) {
			scenes := provokedBy[d.Reason]
			if !slices.ContainsFunc(scenes, func(scene string) bool { return o.reasons[observation{scene, d.Reason, p}] }) {
				all = append(all, fmt.Sprintf("reason %s was not read in the place %q by %q", d.Reason, p, scenes))
			}
		}
	}
	for _, k := range v1alpha1.BlockerKinds() {
		if scene := blockedIn[k]; !o.kinds[scene+" "+string(k)] {
			all = append(all, fmt.Sprintf("blocker kind %s was not read by %q", k, scene))
		}
	}
	return all
}

// complete runs the tests and then fails if a reason or a kind of blocker was not read everywhere. With -run it does not, because a part
// of the tests reads a part of them.
type complete struct{ m *testing.M }

func (c complete) Run() int {
	status := c.m.Run()
	if f := flag.Lookup("test.run"); f.Value.String() != "" || flag.Lookup("test.list").Value.String() != "" {
		return status
	}
	missing := observed.missing()
	for _, text := range missing {
		fmt.Fprintln(os.Stderr, text)
	}
	if len(missing) > 0 {
		return max(status, 1)
	}
	return status
}

// versions are all versions of all Nodes since a test began, so that what stands on a Node for a moment can be read.
type versions struct {
	mu  sync.Mutex
	all map[string][]turn.Node
}

// follow records the versions of Nodes until the test ends.
func follow(t *testing.T) *versions {
	t.Helper()
	client := cp.Client().CoreV1().Nodes()
	list, err := client.List(t.Context(), metav1.ListOptions{})
	must(t, err)
	w, err := toolswatch.NewRetryWatcherWithContext(t.Context(), list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return client.Watch(ctx, o) },
	})
	must(t, err)
	t.Cleanup(w.Stop)
	v := &versions{all: map[string][]turn.Node{}}
	go func() {
		for e := range w.ResultChan() {
			obj, ok := e.Object.(*corev1.Node)
			if !ok {
				continue
			}
			n := turn.FromNode(obj)
			v.mu.Lock()
			v.all[n.Name] = append(v.all[n.Name], n)
			v.mu.Unlock()
		}
	}()
	return v
}

// find returns the latest version of a Node that is so, nil for none.
func (v *versions) find(name string, is func(*turn.Node) bool) *turn.Node {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, n := range slices.Backward(v.all[name]) {
		if is(&n) {
			return &n
		}
	}
	return nil
}

// saw waits until the host's Node is, or was, so.
func (s *scene) saw(h *simhost.Host, what string, is func(*turn.Node) bool) (found *turn.Node) {
	s.T.Helper()
	s.Eventually("the Node "+h.Name()+" "+what, func(context.Context) (bool, error) {
		found = s.nodes.find(h.Name(), is)
		return found != nil, fmt.Errorf("no version of it was so")
	})
	return found
}

// reads waits until a reason that holds the host's node, or that the host waits for, is read in each of those places that its row of the
// table lists, and in `lockkeeper status NODE` with the words of the table.
func (s *scene) reads(h *simhost.Host, r v1alpha1.Reason) {
	s.T.Helper()
	places := r.Places()
	if slices.Contains(places, v1alpha1.PlaceHeld) {
		s.held(h, r)
		s.serves(s.leader, fmt.Sprintf(`lockkeeper_coordinator_held_nodes{reason="%s"} [1-9]`, r))
		s.journals(s.leader, h.Name(), r)
		observed.add(s.name, r, v1alpha1.PlaceHeld, placeJournal)
	}
	message := ""
	if slices.Contains(places, v1alpha1.PlaceWaits) {
		u := s.update(h, "to wait: "+string(r), func(u *v1alpha1.HostUpdateStatus) bool {
			return string(u.Waits) == string(r) && beginning(string(u.Message)) == beginning(h.Notify().Status)
		})
		message = string(u.Message)
	}
	if message != "" || slices.Contains(places, v1alpha1.PlaceHost) {
		s.statusLineHas(h, string(r))
		s.serves(h, fmt.Sprintf(`lockkeeper_host_waiting{reason="%s"} 1`, r))
		s.journals(h, "", r)
		observed.add(s.name, r, v1alpha1.PlaceHost, placeJournal)
	}
	words := []string{string(r)}
	if slices.Contains(places, v1alpha1.PlaceHeld) {
		d := r.Doc()
		words = []string{"held: " + string(r), d.Means, strings.ReplaceAll(d.Do, "NODE", h.Name())}
	}
	if message != "" {
		words = append(words, message)
	}
	s.statusShows(h, words...)
	observed.add(s.name, r, v1alpha1.PlaceStatus)
	if message != "" {
		observed.add(s.name, r, v1alpha1.PlaceWaits)
	}
}

// remaining is a time in a text that counts down. The text is not published again only because of that.
var remaining = regexp.MustCompile(`[0-9][0-9hms]* left`)

// beginning is as much of a text as every reader keeps, without times that count down.
func beginning(text string) string {
	text = remaining.ReplaceAllString(text, "… left")
	return text[:min(len(text), 200)]
}

// reported waits until the host has given the reason in its ack.
func (s *scene) reported(h *simhost.Host, r v1alpha1.Reason) {
	s.T.Helper()
	s.saw(h, "to have an ack with "+string(r), func(n *turn.Node) bool { return n.Ack.Reason == r })
	s.journals(h, "", r)
	observed.add(s.name, r, v1alpha1.PlaceAck, placeJournal)
}

// endsFor waits until a turn of the host has ended for a reason, in all places that say so.
func (s *scene) endsFor(h *simhost.Host, r v1alpha1.Reason) {
	s.T.Helper()
	l := s.saw(h, "to have had a turn that ended: "+string(r), func(n *turn.Node) bool {
		return !n.InTurn() && n.Last != nil && n.Last.Reason == r
	}).Last
	s.event(h.Name(), string(l.Result), "turn "+l.Turn+" ended", "("+string(r)+": "+v1alpha1.OneLine(r.Doc().Means, 500))
	s.journals(s.leader, h.Name(), r)
	switch r {
	case v1alpha1.ReasonHostSilent: // such a host knows nothing of the turn
	case v1alpha1.ReasonDetached, v1alpha1.ReasonUnmanaged: // the record of the turn is removed when the node is released
	default:
		s.update(h, "to have a turn in its history that ended: "+string(r), func(u *v1alpha1.HostUpdateStatus) bool {
			return slices.ContainsFunc(u.History, func(t v1alpha1.FinishedTurn) bool {
				return string(t.Turn) == l.Turn && string(t.Result) == string(l.Result) && string(t.Reason) == string(r)
			})
		})
		if out, err := s.lockkeeper("history", h.Name()); err != nil || !strings.Contains(out, string(r)) {
			s.T.Errorf("lockkeeper history %s: %v\n%s", h.Name(), err, out)
		}
	}
	observed.add(s.name, r, v1alpha1.PlaceEnd, placeJournal)
	if !slices.Contains(r.Places(), v1alpha1.PlaceHeld) { // else status is read with held
		s.statusShows(h, "last turn", "("+string(r)+")")
		observed.add(s.name, r, v1alpha1.PlaceStatus)
	}
}

// has waits until an object has an Event of the reason's own.
func (s *scene) has(object string, r v1alpha1.Reason) {
	s.T.Helper()
	words := []string{"what to do: " + r.Doc().Do}
	switch r {
	case v1alpha1.ReasonPaused, v1alpha1.ReasonDetached, v1alpha1.ReasonInvalidPolicy, v1alpha1.ReasonFailed, v1alpha1.ReasonStopped:
		words = nil // it says who set it and why, which field is invalid, or how the turn failed
	}
	s.event(object, string(r), words...)
	observed.add(s.name, r, v1alpha1.PlaceEvent)
}

// event waits until an object has an Event of that reason with these words.
func (s *scene) event(object, reason string, words ...string) {
	s.T.Helper()
	s.Eventually(fmt.Sprintf("an Event %s about %s with %q", reason, object, words), func(ctx context.Context) (bool, error) {
		list, err := cp.Client().EventsV1().Events("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		var notes []string
		for _, e := range list.Items {
			if e.Regarding.Name == object {
				notes = append(notes, e.Reason+": "+e.Note)
			}
		}
		return slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool {
			return e.Regarding.Name == object && e.Reason == reason && containsAll(e.Note, words)
		}), fmt.Errorf("it has %q", notes)
	})
}

// journals waits until a process has an entry with the reason in its journal, about a node unless that is "".
func (s *scene) journals(h *simhost.Host, node string, r v1alpha1.Reason) {
	s.T.Helper()
	s.Eventually(fmt.Sprintf("the journal of %s to have reason=%s of %q", h.Name(), r, node), func(context.Context) (bool, error) {
		for line := range strings.Lines(h.Logs()) {
			line = strings.TrimSuffix(line, "\n") + " "
			if strings.Contains(line, " reason="+string(r)+" ") && (node == "" || strings.Contains(line, " node="+node+" ")) {
				return true, nil
			}
		}
		return false, fmt.Errorf("it has none")
	})
}

// readBlocker waits until what blocks the host is in `lockkeeper status NODE` and in its metrics as it is in its HostUpdate.
func (s *scene) readBlocker(h *simhost.Host, b *v1alpha1.Blocker) {
	s.T.Helper()
	s.statusShows(h, "blocked by", string(b.Kind)+" "+string(b.Name), string(b.Message))
	s.serves(h, fmt.Sprintf(`lockkeeper_host_blockers{kind="%s"} [1-9]`, b.Kind), fmt.Sprintf(
		`lockkeeper_host_blocked_since_timestamp_seconds{kind="%s",name="%s",pod="%s"} `, b.Kind, regexp.QuoteMeta(string(b.Name)), regexp.QuoteMeta(string(b.Pod))))
	observed.addKind(s.name, b.Kind)
}

var listens = regexp.MustCompile(`serves metrics and health.*listen=(\S+)`)

// serves waits until the host's metrics have lines that begin with what the expressions match.
func (s *scene) serves(h *simhost.Host, lines ...string) {
	s.T.Helper()
	s.Eventually(fmt.Sprintf("the metrics of %s to have %q", h.Name(), lines), func(ctx context.Context) (bool, error) {
		found := listens.FindAllStringSubmatch(h.Logs(), -1)
		if found == nil {
			return false, fmt.Errorf("it serves none")
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+found[len(found)-1][1]+"/metrics", nil)
		if err != nil {
			return false, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return false, err
		}
		defer resp.Body.Close()
		page, err := io.ReadAll(resp.Body)
		return err == nil && !slices.ContainsFunc(lines, func(line string) bool {
			return !regexp.MustCompile(`(?m)^` + line).Match(page)
		}), fmt.Errorf("they are %s", page)
	})
}
