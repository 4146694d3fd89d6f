package drain

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// podServer serves pods in pages of the size that is asked for, whatever the selector says, and keeps what it is asked to
// evict or delete.
type podServer struct {
	pods  []*corev1.Pod
	lists []string // the query of each list
	ends  []string // method, path and body of each eviction and deletion
}

func servePods(t *testing.T, pods ...*corev1.Pod) (*podServer, kubernetes.Interface) {
	t.Helper()
	s := &podServer{pods: pods}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	return s, client
}

func (s *podServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.Method != http.MethodGet {
		body, _ := io.ReadAll(r.Body)
		s.ends = append(s.ends, r.Method+" "+r.URL.Path+" "+string(body))
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Success"}`))
		return
	}
	query := r.URL.Query()
	s.lists = append(s.lists, query.Encode())
	from, _ := strconv.Atoi(query.Get("continue"))
	to := len(s.pods)
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, ListMeta: metav1.ListMeta{ResourceVersion: "9"}}
	if limit, _ := strconv.Atoi(query.Get("limit")); limit > 0 && from+limit < to {
		to = from + limit
		list.Continue = strconv.Itoa(to)
	}
	for _, p := range s.pods[from:to] {
		list.Items = append(list.Items, *p)
	}
	_ = json.NewEncoder(w).Encode(list)
}

// TestRequestsNameThePod checks that an eviction and a deletion name the pod's UID, because a pod of the same name may run
// on another node by then, and that neither changes the pod's grace period.
func TestRequestsNameThePod(t *testing.T) {
	pod := Pod{Namespace: "shop", Name: "db-0", UID: "u1"}
	for force, want := range map[bool]string{false: "POST /api/v1/namespaces/shop/pods/db-0/eviction", true: "DELETE /api/v1/namespaces/shop/pods/db-0"} {
		s, client := servePods(t)
		if a := (apiEvictor{client: client, force: force}).evict(t.Context(), pod); a.kind != accepted {
			t.Errorf("%+v", a)
		}
		if len(s.ends) != 1 || !strings.HasPrefix(s.ends[0], want+" ") {
			t.Fatalf("sent %q, want %s", s.ends, want)
		}
		body, options := []byte(strings.TrimPrefix(s.ends[0], want+" ")), &metav1.DeleteOptions{}
		into := any(options)
		eviction := &policyv1.Eviction{DeleteOptions: options}
		if !force {
			into = eviction
		}
		if err := json.Unmarshal(body, into); err != nil {
			t.Fatal(err)
		}
		if !force {
			options = eviction.DeleteOptions
		}
		if p := options.Preconditions; p == nil || p.UID == nil || *p.UID != pod.UID || options.GracePeriodSeconds != nil {
			t.Errorf("force %t: options %s", force, body)
		}
	}
}

// TestRemaining checks what has to be gone before a reboot: the pods of every page that are on this node, those that
// terminate, and those that a policy blocks.
func TestRemaining(t *testing.T) {
	on := func(node string, p *corev1.Pod) *corev1.Pod {
		p.Spec.NodeName = node
		return p
	}
	blocked, skipped := on(testNode, aPod("blocked")), on(testNode, aPod("skipped"))
	blocked.Labels, skipped.Labels = map[string]string{"app": "db"}, map[string]string{"app": "log"}
	pods := []*corev1.Pod{blocked, skipped, on("another", aPod("elsewhere")), on(testNode, aPod("mirror", mirror)), on(testNode, aPod("ends", terminating))}
	for i := range listPage {
		pods = append(pods, on(testNode, aPod(fmt.Sprintf("mirror-%d", i), mirror)))
	}
	s, client := servePods(t, append(pods, on(testNode, aPod("last")))...)
	selects := func(app string) []v1alpha1.PodSelector {
		return []v1alpha1.PodSelector{{Selector: metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}}
	}
	left, err := (&Drainer{Client: client, Node: testNode, Policy: Selecting(v1alpha1.PodRules{Block: selects("db"), Skip: selects("log")})}).Remaining(t.Context())
	if got := fmt.Sprint(left); err != nil || got != "[default/blocked default/ends default/last]" {
		t.Errorf("%s are left, %v", got, err)
	}
	if len(s.lists) != 2 || strings.Contains(s.lists[0], "resourceVersion") || !strings.Contains(s.lists[0], "fieldSelector=spec.nodeName") {
		t.Errorf("listed by %q", s.lists)
	}
}
