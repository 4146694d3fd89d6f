package drain

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

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
	// refuses are the Statuses with which it answers an eviction (POST) and a deletion; it accepts if there is none
	refuses map[string]string
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
		if text := s.refuses[r.Method]; text != "" {
			var status metav1.Status
			_ = json.Unmarshal([]byte(text), &status)
			if d := status.Details; d != nil && d.RetryAfterSeconds > 0 {
				w.Header().Set("Retry-After", strconv.Itoa(int(d.RetryAfterSeconds)))
			}
			w.WriteHeader(int(status.Code))
			_, _ = w.Write([]byte(text))
			return
		}
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

// TestRequestsOfAnEviction checks what is sent for one pod: one eviction, and with Force a deletion if that was refused.
// Each names the pod's UID, because a pod of the same name may run on another node by then, and keeps the pod's grace
// period, unless that is 0.
func TestRequestsOfAnEviction(t *testing.T) {
	const (
		post      = "POST /api/v1/namespaces/shop/pods/db-0/eviction"
		del       = "DELETE /api/v1/namespaces/shop/pods/db-0"
		budget    = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"TooManyRequests","code":429,"details":{"causes":[{"reason":"DisruptionBudget","message":"too few"}]}}`
		busy      = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"TooManyRequests","code":429}`
		full      = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"TooManyRequests","code":429,"details":{"retryAfterSeconds":1}}`
		webhook   = `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no","reason":"Forbidden","code":403}`
		evacuates = `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"admission webhook \"w\" denied the request: moves","code":429}`
		missing   = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`
		away      = `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"away","code":503}`
		timeout   = `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"conflicts","reason":"Timeout","code":504}`
	)
	for name, c := range map[string]struct {
		force   bool
		grace   time.Duration
		refuses string // the answer to the eviction; "" accepts it
		keeps   string // the answer to the deletion; "" accepts it
		sent    []string
		kind    kind
		deleted string // what Deleted is called with
	}{
		"accepted":                      {grace: 5 * time.Second, sent: []string{post}},
		"a grace period of 0":           {sent: []string{post + " 1"}},
		"refused":                       {grace: 5 * time.Second, refuses: budget, sent: []string{post}, kind: later},
		"force, accepted":               {force: true, grace: 5 * time.Second, sent: []string{post}},
		"force, a budget":               {force: true, grace: 5 * time.Second, refuses: budget, sent: []string{post, del}, deleted: "too few"},
		"force, a grace period of 0":    {force: true, refuses: budget, sent: []string{post + " 1", del + " 1"}, deleted: "too few"},
		"force, a webhook":              {force: true, grace: 5 * time.Second, refuses: webhook, sent: []string{post, del}, deleted: "no"},
		"force, a webhook's 429":        {force: true, grace: 5 * time.Second, refuses: evacuates, sent: []string{post, del}, deleted: `admission webhook "w" denied the request: moves`},
		"force, conflicts on a budget":  {force: true, grace: 5 * time.Second, refuses: timeout, sent: []string{post, del}, deleted: "conflicts"},
		"force, both refused":           {force: true, grace: 5 * time.Second, refuses: budget, keeps: webhook, sent: []string{post, del}, kind: refused},
		"force, both refused for now":   {force: true, grace: 5 * time.Second, refuses: budget, keeps: full, sent: []string{post, del}, kind: later},
		"force, gone":                   {force: true, grace: 5 * time.Second, refuses: missing, sent: []string{post}, kind: gone},
		"force, gone since":             {force: true, grace: 5 * time.Second, refuses: budget, keeps: missing, sent: []string{post, del}, kind: gone},
		"force, a busy API server":      {force: true, grace: 5 * time.Second, refuses: busy, sent: []string{post}, kind: later},
		"force, the API server is away": {force: true, grace: 5 * time.Second, refuses: away, sent: []string{post}, kind: later},
	} {
		s, client := servePods(t)
		s.refuses = map[string]string{http.MethodPost: c.refuses, http.MethodDelete: c.keeps}
		var deleted []string
		e := apiEvictor{client: client, force: c.force, deleted: func(p Pod, refusal string) { deleted = append(deleted, p.String()+" "+refusal) }}
		f := facts{Pod: Pod{Namespace: "shop", Name: "db-0", UID: "u1"}, grace: c.grace}
		if a := e.evict(t.Context(), f); a.kind != c.kind || a.overruled != c.deleted {
			t.Errorf("%s: %+v", name, a)
		}
		if want := strings.TrimSpace("shop/db-0 " + c.deleted); c.deleted == "" && len(deleted) > 0 || c.deleted != "" && !slices.Equal(deleted, []string{want}) {
			t.Errorf("%s: Deleted was called with %q", name, deleted)
		}
		var sent []string
		for _, r := range s.ends {
			what, options := optionsOf(t, r)
			if p := options.Preconditions; p == nil || p.UID == nil || *p.UID != "u1" {
				t.Errorf("%s: %s", name, r)
			}
			if options.GracePeriodSeconds != nil {
				what += fmt.Sprintf(" %d", *options.GracePeriodSeconds)
			}
			sent = append(sent, what)
		}
		if !slices.Equal(sent, c.sent) {
			t.Errorf("%s: sent %q, expected %q", name, sent, c.sent)
		}
	}
}

// optionsOf returns the method and path of an eviction or a deletion, and its options.
func optionsOf(t *testing.T, request string) (what string, options metav1.DeleteOptions) {
	t.Helper()
	at := strings.Index(request, " {")
	into := any(&options)
	if strings.HasPrefix(request, http.MethodPost) {
		into = &policyv1.Eviction{DeleteOptions: &options}
	}
	if err := json.Unmarshal([]byte(request[at+1:]), into); err != nil {
		t.Fatal(err)
	}
	return request[:at], options
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
