package client

// pod and budget are the parts of the script's pods and budgets that repeat.
const podSpec = `"spec":{"nodeName":"same-n","automountServiceAccountToken":false,"containers":[{"name":"c","image":"i"}]}`

func makePod(name string) step {
	return step{name: "create pod " + name, request: "POST /api/v1/namespaces/same/pods",
		body: `{"metadata":{"name":"` + name + `","labels":{"app":"web"}},` + podSpec + `}`}
}

func setPod(name, phase, ready string) step {
	return step{name: "pod " + name + " is " + phase + " and ready is " + ready, request: "PATCH /api/v1/namespaces/same/pods/" + name + "/status strategic",
		body: `{"status":{"phase":"` + phase + `","conditions":[{"type":"Ready","status":"` + ready + `"}]}}`}
}

func evictPod(what, name, options string) step {
	return step{name: what, request: "POST /api/v1/namespaces/same/pods/" + name + "/eviction",
		body: `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"` + name + `","namespace":"same"}` + options + `}`}
}

func setBudget(what, status string) step {
	return step{name: what, request: "PATCH /apis/policy/v1/namespaces/same/poddisruptionbudgets/web/status merge", body: `{"status":` + status + `}`}
}

const (
	nodes  = "/api/v1/nodes"
	nodeA  = "/api/v1/nodes/same-a"
	maps1  = "/api/v1/namespaces/same/configmaps"
	pods   = "/api/v1/namespaces/same/pods"
	leases = "/apis/coordination.k8s.io/v1/namespaces/same/leases"
	own    = "/apis/lockkeeper.dev/v1alpha1"
	budget = "/apis/policy/v1/namespaces/same/poddisruptionbudgets"
)

// script is what TestSameAnswers sends.
var script = concat(
	nodeSteps, leaseSteps, listSteps, watchSteps, podSteps, evictionSteps, ownSteps, eventSteps, otherSteps, restartSteps,
)

func concat(parts ...[]step) []step {
	var all []step
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

var nodeSteps = []step{
	{name: "create namespace", request: "POST /api/v1/namespaces code", body: `{"metadata":{"name":"{space}"}}`},
	{name: "create a service account", request: "POST /api/v1/namespaces/same/serviceaccounts code", body: `{"metadata":{"name":"default"}}`},
	{name: "create a node", request: "POST " + nodes + "?fieldManager=alpha", body: `{"metadata":{"name":"same-a","labels":{"t":"same","x":"1"}},"spec":{"providerID":"p","taints":[{"key":"node.kubernetes.io/not-ready","effect":"NoSchedule"}]}}`},
	{name: "create a node without a taint", request: "POST " + nodes, body: `{"metadata":{"name":"same-t"}}`},
	{name: "delete the node without a taint", request: "DELETE " + nodes + "/same-t"},
	{name: "create it again", request: "POST " + nodes, body: `{"metadata":{"name":"same-a"}}`},
	{name: "create with a version", request: "POST " + nodes, body: `{"metadata":{"name":"same-b","resourceVersion":"7"}}`},
	{name: "create without a name", request: "POST " + nodes + " code", body: `{"metadata":{}}`},
	{name: "get", request: "GET " + nodeA},
	{name: "get as protobuf", request: "GET " + nodeA + " proto"},
	{name: "get a missing node", request: "GET " + nodes + "/same-z"},
	{name: "merge patch", request: "PATCH " + nodeA + "?fieldManager=alpha merge save", body: `{"metadata":{"labels":{"y":"2"}}}`},
	{name: "the same patch", request: "PATCH " + nodeA + "?fieldManager=alpha merge", body: `{"metadata":{"labels":{"y":"2"}}}`},
	{name: "the same patch by another manager", request: "PATCH " + nodeA + "?fieldManager=other merge", body: `{"metadata":{"labels":{"y":"2"}}}`},
	{name: "patch by another manager", request: "PATCH " + nodeA + "?fieldManager=beta merge", body: `{"metadata":{"labels":{"y":"3","x":null},"annotations":{"a":"b"}}}`},
	{name: "patch of a stale version", request: "PATCH " + nodeA + " merge", body: `{"metadata":{"resourceVersion":"{old}","labels":{"y":"4"}}}`},
	{name: "a stale patch that changes nothing", request: "PATCH " + nodeA + " merge", body: `{"metadata":{"resourceVersion":"{old}","labels":{"y":"3"}}}`},
	{name: "cordon at a version", request: "PATCH " + nodeA + "?fieldManager=beta merge", body: `{"metadata":{"resourceVersion":"{rv same-a}"},"spec":{"unschedulable":true}}`},
	{name: "uncordon by another manager", request: "PATCH " + nodeA + "?fieldManager=gamma merge", body: `{"spec":{"unschedulable":false}}`},
	{name: "taints", request: "PATCH " + nodeA + "?fieldManager=gamma merge", body: `{"spec":{"taints":[{"key":"k","effect":"NoSchedule"}]}}`},
	{name: "no taints", request: "PATCH " + nodeA + "?fieldManager=gamma merge", body: `{"spec":{"taints":[]}}`},
	{name: "patch with the wrong type", request: "PATCH " + nodeA + " merge code", body: `{"spec":{"unschedulable":"yes"}}`},
	{name: "patch that is not JSON", request: "PATCH " + nodeA + " merge code", body: `{`},
	{name: "patch of the name", request: "PATCH " + nodeA + " merge code", body: `{"metadata":{"name":"same-b"}}`},
	{name: "patch of the uid", request: "PATCH " + nodeA + " merge code", body: `{"metadata":{"uid":"other"}}`},
	{name: "odd patch", request: "PATCH " + nodeA + " odd code", body: `{}`},
	{name: "patch of a missing node", request: "PATCH " + nodes + "/same-z merge", body: `{}`},
	{name: "dry run", request: "PATCH " + nodeA + "?dryRun=All&fieldManager=alpha merge", body: `{"metadata":{"labels":{"dry":"run"}}}`},
	{name: "dry run of an odd label", request: "PATCH " + nodeA + "?dryRun=All merge code", body: `{"metadata":{"labels":{"odd label":"x"}}}`},
	{name: "stale dry run", request: "PATCH " + nodeA + "?dryRun=All merge", body: `{"metadata":{"resourceVersion":"{old}","labels":{"dry":"run"}}}`},
	{name: "get after the dry run", request: "GET " + nodeA},
	{name: "condition", request: "PATCH " + nodeA + "/status?fieldManager=kubelet strategic", body: `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"r"},{"type":"Other","status":"False"}],"nodeInfo":{"bootID":"b1"}}}`},
	{name: "one condition changes", request: "PATCH " + nodeA + "/status?fieldManager=kubelet strategic", body: `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`},
	{name: "a condition is removed", request: "PATCH " + nodeA + "/status?fieldManager=kubelet strategic", body: `{"status":{"conditions":[{"type":"Other","$patch":"delete"}]}}`},
	{name: "status patch with a label and a spec", request: "PATCH " + nodeA + "/status?fieldManager=kubelet strategic", body: `{"metadata":{"labels":{"s":"1"}},"spec":{"unschedulable":true}}`},
	{name: "stale status patch", request: "PATCH " + nodeA + "/status strategic", body: `{"metadata":{"resourceVersion":"{old}"},"status":{"nodeInfo":{"bootID":"b2"}}}`},
	{name: "main patch with a status", request: "PATCH " + nodeA + " merge", body: `{"status":{"nodeInfo":{"bootID":"b3"}}}`},
	{name: "put", request: "PUT " + nodeA + "?fieldManager=alpha", body: `{"metadata":{"name":"same-a","labels":{"t":"same"}},"spec":{"providerID":"p","taints":[{"key":"node.kubernetes.io/not-ready","effect":"NoSchedule"}]}}`},
	{name: "stale put", request: "PUT " + nodeA, body: `{"metadata":{"name":"same-a","resourceVersion":"{old}"}}`},
	{name: "put of another uid", request: "PUT " + nodeA, body: `{"metadata":{"name":"same-a","uid":"x"}}`},
	{name: "put with another name", request: "PUT " + nodeA, body: `{"metadata":{"name":"same-b"}}`},
	{name: "put of a missing node", request: "PUT " + nodes + "/same-z", body: `{"metadata":{"name":"same-z"}}`},
	{name: "delete with another uid", request: "DELETE " + nodeA, body: `{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"uid":"x"}}`},
	{name: "delete a stale version", request: "DELETE " + nodeA, body: `{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"resourceVersion":"{old}"}}`},
	{name: "dry delete", request: "DELETE " + nodeA, body: `{"kind":"DeleteOptions","apiVersion":"v1","dryRun":["All"]}`},
	{name: "delete", request: "DELETE " + nodeA},
	{name: "delete again", request: "DELETE " + nodeA},
	{name: "node with a finalizer", request: "POST " + nodes, body: `{"metadata":{"name":"same-a","finalizers":["example.com/f"]},"spec":{"taints":[{"key":"node.kubernetes.io/not-ready","effect":"NoSchedule"}]}}`},
	{name: "delete it", request: "DELETE " + nodeA},
	{name: "delete it again", request: "DELETE " + nodeA},
	{name: "remove the finalizer", request: "PATCH " + nodeA + " merge", body: `{"metadata":{"finalizers":null}}`},
	{name: "it is gone", request: "GET " + nodeA},
}

var leaseSteps = []step{
	{name: "create a lease", request: "POST " + leases + " save", body: `{"metadata":{"name":"lock"},"spec":{"holderIdentity":"a","leaseDurationSeconds":15,"renewTime":"2026-01-02T03:04:05.123456Z"}}`},
	{name: "renew", request: "PUT " + leases + "/lock", body: `{"metadata":{"name":"lock","namespace":"same","resourceVersion":"{rv lock}"},"spec":{"holderIdentity":"b","leaseDurationSeconds":15,"leaseTransitions":1}}`},
	{name: "stale renewal", request: "PUT " + leases + "/lock", body: `{"metadata":{"name":"lock","resourceVersion":"{old}"},"spec":{"holderIdentity":"a"}}`},
	{name: "lease without a version", request: "PUT " + leases + "/lock", body: `{"metadata":{"name":"lock"},"spec":{"holderIdentity":"a"}}`},
	{name: "lease in another namespace", request: "PUT " + leases + "/lock code", body: `{"metadata":{"name":"lock","namespace":"default"},"spec":{}}`},
	{name: "put creates a lease", request: "PUT " + leases + "/other", body: `{"metadata":{"name":"other"},"spec":{"holderIdentity":"a"}}`},
	{name: "stop", request: "PATCH " + leases + "/lock merge", body: `{"metadata":{"annotations":{"stop":"yes"}}}`},
	{name: "lease as protobuf", request: "GET " + leases + "/lock proto"},
	{name: "create a lease in a missing namespace", request: "POST /apis/coordination.k8s.io/v1/namespaces/nowhere/leases", body: `{"metadata":{"name":"lock"}}`},
	{name: "delete leases", request: "DELETE " + leases + "/other"},
	{name: "list leases in a missing namespace", request: "GET /apis/coordination.k8s.io/v1/namespaces/nowhere/leases"},
}

func makeMap(name string) step {
	return step{name: "create config map " + name, request: "POST " + maps1, body: `{"metadata":{"name":"` + name + `","labels":{"t":"` + name[:1] + `"}},"data":{"k":"v"}}`}
}

var listSteps = []step{
	makeMap("a1"), makeMap("a2"), makeMap("a3"), makeMap("b1"), makeMap("b2"),
	{name: "list", request: "GET " + maps1 + " save"},
	{name: "list as protobuf", request: "GET " + maps1 + " proto"},
	{name: "first page", request: "GET " + maps1 + "?limit=2"},
	{name: "a write between the pages", request: "DELETE " + maps1 + "/a3 code"},
	{name: "another write between the pages", request: "POST " + maps1 + " code", body: `{"metadata":{"name":"a4"}}`},
	{name: "second page", request: "GET " + maps1 + "?limit=2&continue={continue}"},
	{name: "last page", request: "GET " + maps1 + "?limit=2&continue={continue}"},
	{name: "a page that holds all", request: "GET " + maps1 + "?limit=5"},
	{name: "a page with a label selector", request: "GET " + maps1 + "?limit=1&labelSelector=t%3Da"},
	{name: "the next page with a label selector", request: "GET " + maps1 + "?limit=1&labelSelector=t%3Da&continue={continue}"},
	{name: "list of a version", request: "GET " + maps1 + "?resourceVersion={old}&resourceVersionMatch=Exact"},
	{name: "list not older than a version", request: "GET " + maps1 + "?resourceVersion={old}&resourceVersionMatch=NotOlderThan&labelSelector=t%3Db"},
	{name: "page of a version", request: "GET " + maps1 + "?resourceVersion={old}&limit=3"},
	{name: "list of any version", request: "GET " + maps1 + "?resourceVersion=0&labelSelector=t%3Db"},
	{name: "list of a future version", request: "GET " + maps1 + "?resourceVersion=99999999"},
	{name: "get of a future version", request: "GET " + maps1 + "/a1?resourceVersion=99999999 code"},
	{name: "get of an old version", request: "GET " + maps1 + "/a1?resourceVersion={old}"},
	{name: "list of no version", request: "GET " + maps1 + "?resourceVersion=abc code"},
	{name: "match without a version", request: "GET " + maps1 + "?resourceVersionMatch=Exact code"},
	{name: "odd match", request: "GET " + maps1 + "?resourceVersion=0&resourceVersionMatch=Odd code"},
	{name: "odd continue", request: "GET " + maps1 + "?continue=odd code"},
	{name: "field selector", request: "GET " + maps1 + "?fieldSelector=metadata.name%3Db1"},
	{name: "unknown field", request: "GET " + maps1 + "?fieldSelector=data.k%3Dv"},
	{name: "odd field selector", request: "GET " + maps1 + "?fieldSelector=a code"},
	{name: "odd label selector", request: "GET " + maps1 + "?labelSelector=,, code"},
	{name: "set selector", request: "GET " + maps1 + "?labelSelector=t+in+(b),t"},
}

var watchSteps = []step{
	{name: "list before the watch", request: "GET " + maps1 + " save"},
	{name: "watch from the list", request: "WATCH all " + maps1 + "?watch=1&resourceVersion={old}"},
	{name: "watch a label", request: "WATCH label " + maps1 + "?watch=true&resourceVersion={old}&labelSelector=t%3Dc"},
	{name: "watch a name", request: "WATCH name " + maps1 + "?watch=true&resourceVersion={old}&fieldSelector=metadata.name%3Dc1&allowWatchBookmarks=true"},
	makeMap("c1"),
	{name: "the label goes", request: "PATCH " + maps1 + "/c1 merge", body: `{"metadata":{"labels":{"t":"d"}}}`},
	{name: "a write that changes nothing", request: "PATCH " + maps1 + "/c1 merge", body: `{"metadata":{"labels":{"t":"d"}}}`},
	{name: "the label comes back", request: "PATCH " + maps1 + "/c1 merge", body: `{"metadata":{"labels":{"t":"c"}}}`},
	{name: "the data changes", request: "PATCH " + maps1 + "/c1 merge", body: `{"data":{"k":"w"}}`},
	{name: "the map goes", request: "DELETE " + maps1 + "/c1"},
	{name: "events of all", request: "EVENTS all 5"},
	{name: "events of the label", request: "EVENTS label 5"},
	{name: "events of the name", request: "EVENTS name 5"},
	{name: "watch from the past", request: "WATCH past " + maps1 + "?watch=true&resourceVersion={old}&timeoutSeconds=2"},
	{name: "events of the past", request: "EVENTS past 5"},
	{name: "watch from any version", request: "WATCH any " + maps1 + "?watch=true&resourceVersion=0&timeoutSeconds=2"},
	{name: "events from any version", request: "EVENTS any 5"},
	{name: "watch from a version that the store has not reached", request: "WATCH ahead " + maps1 + "?watch=true&resourceVersion=99999999&timeoutSeconds=2"},
	{name: "its end without events", request: "END ahead"},
	{name: "watch from now", request: "WATCH now " + maps1 + "?watch=true&timeoutSeconds=2"},
	{name: "events from now", request: "EVENTS now 5"},
	{name: "watch a streamed list", request: "WATCH stream " + maps1 + "?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=2"},
	{name: "events of the streamed list", request: "EVENTS stream 6"},
	{name: "the end of the past", request: "END past"},
	{name: "the end of the streamed list", request: "END stream"},
	{name: "streamed list without match", request: "GET " + maps1 + "?watch=true&sendInitialEvents=true code"},
	{name: "watch from no version", request: "GET " + maps1 + "?watch=true&resourceVersion=abc code"},
}

var restartSteps = []step{
	{name: "version before the restart", request: "GET " + maps1 + " save"},
	{name: "page before the restart", request: "GET " + maps1 + "?limit=2"},
	{name: "watch over the restart", request: "WATCH over " + maps1 + "?watch=true&resourceVersion={old}"},
	makeMap("z1"), makeMap("z2"),
	{name: "events before the restart", request: "EVENTS over 2"},
	{name: "restart", request: "RESTART"},
	{name: "the watch ends", request: "END over"},
	{name: "watch from before the restart", request: "WATCH gone " + maps1 + "?watch=true&resourceVersion={old}"},
	{name: "events from before the restart", request: "EVENTS gone 1"},
	{name: "the end of the watch from before the restart", request: "END gone"},
	{name: "list of a version before the restart", request: "GET " + maps1 + "?resourceVersion={old}&resourceVersionMatch=Exact"},
	{name: "list not older than before the restart", request: "GET " + maps1 + "?resourceVersion={old}&resourceVersionMatch=NotOlderThan"},
	{name: "page after the restart", request: "GET " + maps1 + "?limit=2&continue={continue}"},
	{name: "inconsistent page", request: "GET " + maps1 + "?limit=2&continue={continue}"},
	{name: "the page after it", request: "GET " + maps1 + "?limit=2&continue={continue}"},
}
