package node

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/step"
)

// podServer answers lists of pods, and counts them.
type podServer struct {
	pods    []corev1.Pod
	fails   bool
	proxied bool // a proxy answers in its place
	lists   int
	query   string // of the last list
}

func (s *podServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.lists++
	s.query = r.URL.Path + "?" + r.URL.RawQuery
	w.Header().Set("Content-Type", "application/json")
	if s.fails {
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"no rights","code":403}`))
		return
	}
	if s.proxied {
		_, _ = w.Write([]byte(`{"code":0}`))
		return
	}
	_ = json.NewEncoder(w).Encode(corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "9"}, Items: s.pods})
}

func servePods(t *testing.T) (*podServer, *nodePods) {
	s := &podServer{}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	client, err := kube.ConnectConfig(&rest.Config{Host: server.URL}, "host", "test", 100, 100)
	must(t, err)
	return s, newNodePods(client, "n1", 30*time.Second)
}

// aPod runs the command in a pod of the DaemonSet, or of none.
func aPod(namespace, name, daemonSet string, command ...string) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "other"}, {Command: command}}}}
	if daemonSet != "" {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: daemonSet, UID: "u", Controller: new(true)}}
	}
	return p
}

// Which pods count: those that run a known program in kube-system or a namespace that the host's file names.
func TestPodManagers(t *testing.T) {
	const (
		kured = "kured (DaemonSet kube-system/kured) would reboot this host too; `kubectl -n kube-system delete DaemonSet kured` switches it off"
		fluo  = "the agent of the Flatcar Linux Update Operator (DaemonSet reboot-coordinator/flatcar-linux-update-agent) would reboot this host too; " +
			"`kubectl -n reboot-coordinator delete DaemonSet flatcar-linux-update-agent` switches it off"
	)
	labeled := aPod("kube-system", "app", "", "/app")
	labeled.Labels = map[string]string{"name": "kured", "app.kubernetes.io/name": "kured", "app": "flatcar-linux-update-agent"}
	done := aPod("kube-system", "kured-x", "kured", "/usr/bin/kured")
	done.Status.Phase = corev1.PodFailed
	args := aPod("kube-system", "kured-x", "kured")
	args.Spec.Containers[1].Args = []string{"/usr/bin/kured", "--period=1h"}
	image, another := aPod("kube-system", "kured-x", "kured"), aPod("kube-system", "x", "x", "/app")
	image.Spec.Containers[1].Image = "ghcr.io/kubereboot/kured:1.23.0@sha256:0"
	another.Spec.Containers[1].Image = "example.com/kured"
	agent := aPod("reboot-coordinator", "a", "flatcar-linux-update-agent", "/bin/update-agent")
	for name, c := range map[string]struct {
		pods       []corev1.Pod
		namespaces []string
		want       string
	}{
		"none":                       {},
		"another program":            {pods: []corev1.Pod{aPod("kube-system", "x", "x", "/usr/bin/other", "kured")}},
		"kured":                      {pods: []corev1.Pod{aPod("kube-system", "kured-x", "kured", "/usr/bin/kured", "--period=1h")}, want: kured},
		"kured behind an init":       {pods: []corev1.Pod{aPod("kube-system", "kured-x", "kured", "/tini", "--", "/usr/bin/kured")}, want: kured},
		"kured in the arguments":     {pods: []corev1.Pod{args}, want: kured},
		"kured's image alone":        {pods: []corev1.Pod{image}, want: kured},
		"its image, not its program": {pods: []corev1.Pod{another}},
		"two pods of it":             {pods: []corev1.Pod{aPod("kube-system", "kured-x", "kured", "/usr/bin/kured"), aPod("kube-system", "kured-y", "kured", "/usr/bin/kured")}, want: kured},
		"a pod of no DaemonSet":      {pods: []corev1.Pod{aPod("kube-system", "k", "", "/usr/bin/kured")}, want: "kured (Pod kube-system/k) would reboot this host too; `kubectl -n kube-system delete Pod k` switches it off"},
		"an owner with a command": {pods: []corev1.Pod{aPod("kube-system", "k", "$(rm)", "/usr/bin/kured")},
			want: "kured (Pod kube-system/k) would reboot this host too; `kubectl -n kube-system delete Pod k` switches it off"},
		"a pod that has ended":      {pods: []corev1.Pod{done}},
		"labels alone":              {pods: []corev1.Pod{labeled}},
		"a namespace not named":     {pods: []corev1.Pod{aPod("default", "kured-x", "kured", "/usr/bin/kured"), agent}},
		"a namespace that is named": {pods: []corev1.Pod{agent}, namespaces: []string{"a", "reboot-coordinator"}, want: fluo},
		"kube-system need not be":   {pods: []corev1.Pod{aPod("kube-system", "kured-x", "kured", "/usr/bin/kured")}, namespaces: []string{"a"}, want: kured},
		"two managers":              {pods: []corev1.Pod{aPod("kube-system", "kured-x", "kured", "/usr/bin/kured"), agent}, namespaces: []string{"reboot-coordinator"}, want: kured + "\n" + fluo},
	} {
		t.Run(name, func(t *testing.T) {
			s, p := servePods(t)
			s.pods = c.pods
			p.poll(t.Context(), true)
			var v step.Vetoes
			if p.addVetoes(&v, c.namespaces); strings.Join(v.Managers, "\n") != c.want || v.Unread != "" {
				t.Errorf("%q, %q; want %q", v.Managers, v.Unread, c.want)
			}
			if want := "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1&resourceVersion=0"; s.query != want {
				t.Errorf("asked for %s, want %s", s.query, want)
			}
		})
	}
}

// The pods are listed only while something is wanted, every ten poll intervals, and a minute before a commit.
func TestPodManagersAreListedRarely(t *testing.T) {
	s, p := servePods(t)
	age := func(d time.Duration) { p.read, p.tried = p.read.Add(-d), p.tried.Add(-d) }
	lists := func(what string, want int) {
		t.Helper()
		if s.lists != want {
			t.Errorf("%s: %d lists, want %d", what, s.lists, want)
		}
	}
	p.poll(t.Context(), false)
	lists("nothing is wanted", 0)
	s.pods = []corev1.Pod{aPod("kube-system", "kured-x", "kured", "/usr/bin/kured")}
	p.poll(t.Context(), true)
	lists("something is wanted", 1)
	age(4 * time.Minute)
	p.poll(t.Context(), true)
	lists("within five minutes", 1)
	age(time.Minute)
	p.poll(t.Context(), true)
	lists("after five minutes", 2)
	age(20 * time.Second)
	must(t, p.refresh(t.Context(), commitPodsAge))
	lists("a commit within a minute", 2)
	age(40 * time.Second)
	must(t, p.refresh(t.Context(), commitPodsAge))
	lists("a commit after a minute", 3)
	var v step.Vetoes
	if p.addVetoes(&v, nil); len(v.Managers) != 1 {
		t.Errorf("found: %q", v.Managers)
	}
	p.poll(t.Context(), false)
	v = step.Vetoes{}
	if p.addVetoes(&v, nil); len(v.Managers) != 0 {
		t.Errorf("still found, though nothing is wanted: %q", v.Managers)
	}
	p.poll(t.Context(), true)
	lists("something is wanted again", 4)

	s.fails = true
	age(5 * time.Minute)
	for range 3 {
		p.poll(t.Context(), true)
	}
	lists("a list that fails", 5)
	v = step.Vetoes{}
	if p.addVetoes(&v, nil); len(v.Managers) != 1 || v.Unread != "" {
		t.Errorf("after one failure: %q, %q", v.Managers, v.Unread)
	}
	age(time.Minute)
	p.poll(t.Context(), true)
	lists("a minute after the failure", 6)
	age(4*time.Minute + time.Second)
	v = step.Vetoes{}
	if p.addVetoes(&v, nil); len(v.Managers) != 1 || !strings.Contains(v.Unread, "pods of node n1 cannot be read, so it is not known whether another reboot manager or a pod that blocks a drain is among them: ") {
		t.Errorf("after ten minutes: %q, %q", v.Managers, v.Unread)
	}
	if err := p.refresh(t.Context(), commitPodsAge); err == nil {
		t.Error("a commit without a list")
	}

	s, p = servePods(t)
	s.fails = true
	p.poll(t.Context(), true)
	v = step.Vetoes{}
	if p.addVetoes(&v, nil); v.Unread == "" {
		t.Error("no veto before the first list")
	}
	s.fails, p.tried = false, p.tried.Add(-time.Minute)
	p.poll(t.Context(), true)
	v = step.Vetoes{}
	if p.addVetoes(&v, nil); v.Unread != "" {
		t.Errorf("the veto stays: %s", v.Unread)
	}
	s.pods, s.proxied = []corev1.Pod{aPod("kube-system", "kured-x", "kured", "/usr/bin/kured")}, true
	if err := p.refresh(t.Context(), 0); err == nil {
		t.Error("the answer of a proxy is a list without pods")
	}
}
