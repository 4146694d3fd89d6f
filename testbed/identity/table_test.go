package identity

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// The layers that can refuse an act.
const (
	rbac        = "RBAC and the Node authorizer" // nobody granted it
	restriction = "NodeRestriction"
	keys        = policyLayer + "lockkeeper-keys"
	prefixes    = policyLayer + "lockkeeper-prefixes"
	owners      = policyLayer + "lockkeeper-owners"
	coordinator = policyLayer + "lockkeeper-coordinator"
	lease       = policyLayer + "lockkeeper-coordinator-lease"
	token       = policyLayer + "lockkeeper-coordinator-token"
	// policyWriters judges who writes DisruptionPolicies.
	policyWriters = policyLayer + "lockkeeper-policies"

	policyLayer = "policy " // begins the layers that are admission policies
)

// An act and who refuses it; "" is no one. Written by hand, from DESIGN section 8.
type act struct {
	name    string
	do      do
	refused string
}

// hostActs are tried with the credential of the kubelet of id-a. The Nodes are those of fixture.
var hostActs = []act{
	{"say what it wants", node("id-a", `{"metadata":{"labels":{"lockkeeper.dev/wants":"nothing"},"annotations":{"lockkeeper.dev/host":"{}"}}}`), ""},
	{"say it through status", status("id-a", label("lockkeeper.dev/wants", `"drain"`)), ""},
	{"say what it is", node("id-a", `{"metadata":{"labels":{"lockkeeper.dev/os":"flatcar","lockkeeper.dev/os-version":"1","lockkeeper.dev/group":"stable"}}}`), ""},
	{"ack", node("id-a", annotation("lockkeeper.dev/ack", `"t/b/draining/seen"`)), ""},
	{"cordon with the mark", node("id-a", `{"metadata":{"annotations":{"lockkeeper.dev/cordon":"other"}},"spec":{"unschedulable":true}}`), ""},
	{"uncordon", node("id-a", `{"metadata":{"annotations":{"lockkeeper.dev/cordon":null}},"spec":{"unschedulable":null}}`), ""},
	{"strip its keys", node("id-a", `{"metadata":{"labels":{"lockkeeper.dev/wants":null},"annotations":{"lockkeeper.dev/host":null,"lockkeeper.dev/ack":null}}}`), ""},
	{"write its heartbeat", status("id-a", `{"status":{"conditions":[{"type":"Ready","status":"True"}],"nodeInfo":{"bootID":"b2"}}}`), ""},
	// A host that is newer than the manifests, in one write with a key that they know.
	{"write a key of a later version", node("id-a", `{"metadata":{"labels":{"lockkeeper.dev/wants":"reboot","lockkeeper.dev/host-next":"x"},"annotations":{"lockkeeper.dev/host-later":"x"}}}`), ""},
	{"label itself with a label of others", node("id-a", label("example.com/rack", `"7"`)), ""},
	{"annotate itself through status", status("id-a", annotation("example.com/volumes", `"2"`)), ""},
	{"get the Lease", getLease, ""},
	{"list its pods", listPods("spec.nodeName=id-a"), ""},
	{"evict its pod", evict("on-id-a"), ""},

	{"promote itself", node("id-a", label("lockkeeper.dev/state", `"rebooting"`)), keys},
	{"promote itself through status", status("id-a", label("lockkeeper.dev/state", `"rebooting"`)), keys},
	{"drop its state", node("id-a", label("lockkeeper.dev/state", "null")), keys},
	{"forge its turn", node("id-a", annotation("lockkeeper.dev/turn", `"x"`)), keys},
	{"forge its turn through status", status("id-a", annotation("lockkeeper.dev/turn", `"x"`)), keys},
	{"forge its grant", node("id-a", annotation("lockkeeper.dev/grant", `"{}"`)), keys},
	{"forge its last turn", node("id-a", annotation("lockkeeper.dev/last", "null")), keys},
	{"forge held", node("id-a", label("lockkeeper.dev/held", `"Budget"`)), keys},
	{"opt out", node("id-a", label("lockkeeper.dev/managed", `"false"`)), keys},
	{"opt out through status", status("id-a", label("lockkeeper.dev/managed", `"false"`)), keys},
	{"change its pause", node("id-a", annotation("lockkeeper.dev/paused", `"x"`)), keys},
	{"lift its pause", node("id-a", annotation("lockkeeper.dev/paused", "null")), keys},
	{"lift its pause through status", status("id-a", annotation("lockkeeper.dev/paused", "null")), keys},
	{"detach itself", node("id-a", annotation("lockkeeper.dev/detached", `"x"`)), keys},
	{"request another reboot", node("id-a", annotation("lockkeeper.dev/request", `"again"`)), keys},
	{"withdraw a request", node("id-a", annotation("lockkeeper.dev/request", "null")), keys},
	{"clear itself", node("id-a", annotation("lockkeeper.dev/retry", `"t1"`)), keys},
	{"confirm a hook", node("id-a", annotation("hook.lockkeeper.dev/backup", `"t2"`)), keys},
	{"confirm a hook through status", status("id-a", annotation("hook.lockkeeper.dev/backup", `"t2"`)), keys},
	{"confirm a hook that its turn does not wait for", node("id-a", annotation("hook.lockkeeper.dev/other", `"t2"`)), prefixes},
	{"claim the end of a pause", node("id-a", annotation("lockkeeper.dev/expired", `"x"`)), keys},
	{"invent a key", node("id-a", label("lockkeeper.dev/x", `"x"`)), prefixes},
	{"write a later version's key of the coordinator", node("id-a", annotation("lockkeeper.dev/coordinator-next", `"x"`)), prefixes},
	{"get itself deleted by the garbage collector", node("id-a", owned), restriction},
	{"hide a forged state behind its own word", node("id-a", `{"metadata":{"labels":{"lockkeeper.dev/wants":"drain","lockkeeper.dev/state":"idle"}}}`), keys},

	{"label another Node", node("id-b", label("example.com/rack", `"7"`)), restriction},
	{"speak for another Node", node("id-b", label("lockkeeper.dev/wants", `"drain"`)), restriction},
	{"promote another Node", node("id-b", label("lockkeeper.dev/state", `"rebooting"`)), restriction},
	{"promote another Node through status", status("id-b", label("lockkeeper.dev/state", `"rebooting"`)), restriction},
	{"cordon another Node", node("id-b", `{"spec":{"unschedulable":true}}`), restriction},
	{"taint itself", node("id-a", `{"spec":{"taints":[{"key":"x","effect":"NoSchedule"}]}}`), restriction},
	{"evict another's pod", evict("on-id-b"), restriction},
	{"read another Node", getNode("id-b"), rbac},
	{"list another's pods", listPods("spec.nodeName=id-b"), rbac},
	{"list all pods", listPods(""), rbac},
	{"delete itself", deleteNode("id-a"), rbac},
	{"take the Lease", updateLease, rbac},
	{"lift the emergency stop", patchLease, rbac},
	{"delete the Lease", deleteLease, rbac},
	{"make a Lease", createLease, rbac},
	{"read others' secrets", listSecrets, rbac},
	{"unbind the policies", deleteBinding, rbac},
	{"make a policy", createPolicy, rbac},
	{"become an administrator", widenRole, rbac},
	{"become the coordinator", mintToken(controlplane.LockkeeperNamespace, v1alpha1.CoordinatorServiceAccount), rbac},
}

// owned gives an object an owner that does not exist.
const owned = `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"gone","uid":"gone"}]}}`

// prepared has the next server-side apply of the tool gitops end the pause of a Node and uncordon it.
const prepared = `{"metadata":{"managedFields":[{"manager":"gitops","operation":"Apply","apiVersion":"v1","time":"2026-01-01T00:00:00Z",` +
	`"fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:annotations":{"f:lockkeeper.dev/paused":{}},"f:labels":{"f:example.com/rack":{}}},` +
	`"f:spec":{"f:unschedulable":{}}}}]}}`

var coordinatorActs = []act{
	{"promote", node("id-a", `{"metadata":{"labels":{"lockkeeper.dev/state":"before-reboot","lockkeeper.dev/held":null},"annotations":{"lockkeeper.dev/turn":"t2","lockkeeper.dev/grant":"{}"}}}`), ""},
	{"say why it holds a node", node("id-a", label("lockkeeper.dev/held", `"Budget"`)), ""},
	{"end a turn", node("id-a", `{"metadata":{"labels":{"lockkeeper.dev/state":"idle"},"annotations":{"lockkeeper.dev/turn":null,"lockkeeper.dev/grant":null,"lockkeeper.dev/last":"{}","lockkeeper.dev/request":null,"lockkeeper.dev/request-now":null,"hook.lockkeeper.dev/backup":null}}}`), ""},
	{"release a node with the keys of its host", node("id-b", `{"metadata":{"labels":{"lockkeeper.dev/state":null,"lockkeeper.dev/wants":null,"lockkeeper.dev/held":"Detached"},"annotations":{"lockkeeper.dev/cordon":null,"lockkeeper.dev/host":null,"lockkeeper.dev/ack":null}}}`), ""},
	{"remove a pause that has ended", nodeAs(kube.FieldManager("coordinator"), "id-a", `{"metadata":{"annotations":{"lockkeeper.dev/paused":null,"lockkeeper.dev/expired":"now"}}}`), ""},
	// A coordinator that is newer than the manifests.
	{"write a key of a later version", node("id-a", `{"metadata":{"labels":{"lockkeeper.dev/held":"Budget","lockkeeper.dev/coordinator-next":"x"},"annotations":{"lockkeeper.dev/coordinator-later":"x"}}}`), ""},
	{"read a Node", getNode("id-a"), ""},
	{"read the Lease", getLease, ""},
	{"take the Lease", updateLease, ""},

	{"write a later version's key of a host", node("id-a", annotation("lockkeeper.dev/host-next", `"x"`)), coordinator},
	{"speak for a host", node("id-a", label("lockkeeper.dev/wants", `"nothing"`)), coordinator},
	{"ack for a host", node("id-a", annotation("lockkeeper.dev/ack", `"x"`)), coordinator},
	{"mark a cordon", node("id-a", annotation("lockkeeper.dev/cordon", `"x"`)), coordinator},
	{"remove a mark from a host that is there", node("id-a", annotation("lockkeeper.dev/cordon", "null")), coordinator},
	{"remove a host's word", node("id-a", annotation("lockkeeper.dev/host", "null")), coordinator},
	{"uncordon", node("id-a", `{"spec":{"unschedulable":false}}`), coordinator},
	{"cordon", node("id-c", `{"spec":{"unschedulable":true}}`), coordinator},
	{"taint", node("id-a", `{"spec":{"taints":[{"key":"x","effect":"NoSchedule"}]}}`), coordinator},
	{"label", node("id-a", label("example.com/rack", `"7"`)), coordinator},
	{"unlabel", node("id-a", label("kubernetes.io/hostname", "null")), coordinator},
	{"annotate", node("id-a", annotation("example.com/x", `"7"`)), coordinator},
	{"remove an annotation", node("id-b", annotation("example.com/keep", "null")), coordinator},
	{"pause", node("id-b", annotation("lockkeeper.dev/paused", `"forever"`)), coordinator},
	{"lift a pause without an end", node("id-c", annotation("lockkeeper.dev/paused", "null")), coordinator},
	{"lift a pause without an end, and claim that it has ended", nodeAs(kube.FieldManager("coordinator"), "id-c",
		`{"metadata":{"annotations":{"lockkeeper.dev/paused":null,"lockkeeper.dev/expired":"now"}}}`), coordinator},
	{"take a detached node back", node("id-b", annotation("lockkeeper.dev/detached", "null")), coordinator},
	{"manage", node("id-a", label("lockkeeper.dev/managed", `"true"`)), coordinator},
	{"request a reboot", node("id-b", annotation("lockkeeper.dev/request", `"reboot"`)), coordinator},
	{"request a reboot outside of windows", node("id-b", annotation("lockkeeper.dev/request-now", `"reboot"`)), coordinator},
	{"clear", node("id-a", annotation("lockkeeper.dev/retry", `"t1"`)), coordinator},
	{"confirm a hook", node("id-a", annotation("hook.lockkeeper.dev/backup", `"t2"`)), coordinator},
	{"hold a Node's deletion up", node("id-a", `{"metadata":{"finalizers":["example.com/x"]}}`), coordinator},
	{"have a Node deleted by the garbage collector", node("id-a", owned), owners},
	{"have a tool end a pause", node("id-c", prepared), coordinator},
	{"lift the emergency stop", changeLease(func(l *coordinationv1.Lease) { delete(l.Annotations, v1alpha1.AnnotationStop) }), lease},
	{"have the Lease deleted by the garbage collector", changeLease(func(l *coordinationv1.Lease) {
		l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "gone", UID: "gone"}}
	}), lease},
	{"keep the Lease from being deleted", changeLease(func(l *coordinationv1.Lease) { l.Finalizers = []string{"example.com/x"} }), lease},
	{"label the Lease", changeLease(func(l *coordinationv1.Lease) { l.Labels = map[string]string{"a": "b"} }), lease},
	{"get a token for fifty years", mint(v1alpha1.CoordinatorServiceAccount, 50*365*24*time.Hour), token},
	{"get a token for another system", mint(v1alpha1.CoordinatorServiceAccount, time.Hour, "sts.example.com"), token},
	{"get a token for another system beside the API server", mint(v1alpha1.CoordinatorServiceAccount, time.Hour, "https://kubernetes.default.svc", "sts.example.com"), token},
	{"get a token for a year", mint(v1alpha1.CoordinatorServiceAccount, 365*24*time.Hour), ""},
	{"get a token for the API server by its name", mint(v1alpha1.CoordinatorServiceAccount, time.Hour, "https://kubernetes.default.svc"), ""},

	{"write a Node's status", status("id-a", `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`), rbac},
	{"replace a Node", replaceNode("id-a"), rbac},
	{"delete a Node", deleteNode("id-a"), rbac},
	{"create a Node", create(newNode("id-x", nil, nil)), rbac},
	{"list pods", listPods(""), rbac},
	{"evict a pod", evict("on-id-a"), rbac},
	{"read secrets", listSecrets, rbac},
	{"make a Lease", createLease, rbac},
	{"delete the Lease", deleteLease, rbac},
	{"patch the Lease", patchLease, rbac},
	{"unbind the policies", deleteBinding, rbac},
	{"make a policy", createPolicy, rbac},
	{"become an administrator", widenRole, rbac},
	{"renew its own token", mint(v1alpha1.CoordinatorServiceAccount, 90*24*time.Hour), ""},
	{"get a token of another service account", mintToken(controlplane.LockkeeperNamespace, "default"), rbac},
	{"get a token of another namespace's", mintToken("kube-system", "default"), rbac},
}

// certificateActs are tried with a client certificate of the coordinator's group, which is bound like the service account except for
// the renewal: no one can take a certificate back, so it must not get a token that outlives it.
var certificateActs = []act{
	{"say why it holds a node", nodeAs(kube.FieldManager("coordinator"), "id-a", label("lockkeeper.dev/held", `"Budget"`)), ""},
	{"take the Lease", updateLease, ""},
	{"speak for a host", node("id-a", label("lockkeeper.dev/wants", `"nothing"`)), coordinator},
	{"get a token of the service account", mintToken(controlplane.LockkeeperNamespace, v1alpha1.CoordinatorServiceAccount), rbac},
	{"get a token of another service account", mintToken(controlplane.LockkeeperNamespace, "default"), rbac},
}

// adminActs are tried by a member of system:masters.
var adminActs = []act{
	{"pause", node("id-b", annotation("lockkeeper.dev/paused", `"x"`)), ""},
	{"resume", node("id-a", annotation("lockkeeper.dev/paused", "null")), ""},
	{"detach", node("id-a", annotation("lockkeeper.dev/detached", `"x"`)), ""},
	{"request a reboot", node("id-b", annotation("lockkeeper.dev/request", `"reboot"`)), ""},
	{"request a reboot outside of windows", node("id-b", annotation("lockkeeper.dev/request-now", `"reboot"`)), ""},
	{"clear", node("id-a", annotation("lockkeeper.dev/retry", `"t1"`)), ""},
	{"take a node out", node("id-a", label("lockkeeper.dev/managed", `"false"`)), ""},
	{"confirm a hook", node("id-a", annotation("hook.lockkeeper.dev/backup", `"t2"`)), ""},
	{"cordon", node("id-b", `{"spec":{"unschedulable":true}}`), ""},
	{"label", node("id-a", label("example.com/rack", `"7"`)), ""},
	{"write a Node's status", status("id-a", `{"status":{"conditions":[{"type":"Drained","status":"False"}]}}`), ""},
	{"delete a Node", deleteNode("id-a"), ""},
	{"have a Node deleted by the garbage collector", node("id-a", owned), ""},
	{"create a Node that is not to be managed", create(newNode("id-x", map[string]string{v1alpha1.LabelManaged: "false"}, nil)), ""},
	{"remove a state", node("id-a", label("lockkeeper.dev/state", "null")), ""},
	{"remove all that lockkeeper wrote, and take the node out", node("id-a", `{"metadata":{"labels":{"lockkeeper.dev/state":null,"lockkeeper.dev/wants":null,"lockkeeper.dev/managed":"false"},"annotations":{"lockkeeper.dev/grant":null,"lockkeeper.dev/cordon":null}}}`), ""},

	{"forge a state", node("id-a", label("lockkeeper.dev/state", `"idle"`)), keys},
	{"forge a state through status", status("id-a", label("lockkeeper.dev/state", `"idle"`)), keys},
	{"pause through status", status("id-b", annotation("lockkeeper.dev/paused", `"x"`)), keys},
	{"remove a state through status", status("id-a", label("lockkeeper.dev/state", "null")), keys},
	{"confirm a hook through status", status("id-a", annotation("hook.lockkeeper.dev/backup", `"t2"`)), keys},
	{"confirm through status a hook that the turn does not wait for", status("id-a", annotation("hook.lockkeeper.dev/other", `"t2"`)), prefixes},
	{"forge a state where there is none", node("id-c", label("lockkeeper.dev/state", `"idle"`)), keys},
	{"create a Node with a state", create(newNode("id-x", map[string]string{v1alpha1.LabelState: "idle"}, nil)), keys},
	{"forge a grant", node("id-a", annotation("lockkeeper.dev/grant", `"{}"`)), keys},
	{"speak for a host", node("id-a", label("lockkeeper.dev/wants", `"nothing"`)), keys},
	{"mark a cordon", node("id-b", annotation("lockkeeper.dev/cordon", `"mine"`)), keys},
	{"write a later version's key of a host", node("id-a", annotation("lockkeeper.dev/host-next", `"x"`)), prefixes},
	{"write a later version's key of the coordinator", node("id-a", annotation("lockkeeper.dev/coordinator-next", `"x"`)), prefixes},
	{"mistype an annotation", node("id-a", annotation("lockkeeper.dev/puased", `"x"`)), prefixes},
	{"mistype a label", node("id-a", label("lockkeeper.dev/manged", `"false"`)), prefixes},
	{"take an annotation for a label", node("id-a", label("lockkeeper.dev/paused", `"x"`)), prefixes},
}

// personActs are tried by a user who may patch Nodes and nothing else.
var personActs = []act{
	{"label", node("id-a", label("example.com/rack", `"7"`)), ""},
	{"cordon", node("id-c", `{"spec":{"unschedulable":true}}`), ""},
	{"pause", node("id-b", annotation("lockkeeper.dev/paused", `"x"`)), keys},
	{"change a pause", node("id-a", annotation("lockkeeper.dev/paused", `"x"`)), keys},
	{"resume", node("id-a", annotation("lockkeeper.dev/paused", "null")), keys},
	{"detach", node("id-a", annotation("lockkeeper.dev/detached", `"x"`)), keys},
	{"attach", node("id-b", annotation("lockkeeper.dev/detached", "null")), keys},
	{"take a node out", node("id-a", label("lockkeeper.dev/managed", `"false"`)), keys},
	{"request a reboot", node("id-b", annotation("lockkeeper.dev/request", `"reboot"`)), keys},
	{"request a reboot outside of windows", node("id-b", annotation("lockkeeper.dev/request-now", `"reboot"`)), keys},
	{"withdraw a request", node("id-a", annotation("lockkeeper.dev/request", "null")), keys},
	{"clear a failure", node("id-a", annotation("lockkeeper.dev/retry", `"t1"`)), keys},
	{"confirm a hook", node("id-a", annotation("hook.lockkeeper.dev/backup", `"t2"`)), keys},
	{"take a confirmation back", node("id-a", annotation("hook.lockkeeper.dev/backup", "null")), keys},
	{"confirm a hook that the turn does not wait for", node("id-a", annotation("hook.lockkeeper.dev/other", `"t2"`)), prefixes},
	{"remove a state", node("id-a", label("lockkeeper.dev/state", "null")), keys},
	{"remove a mark", node("id-a", annotation("lockkeeper.dev/cordon", "null")), keys},
	{"forge a state", node("id-a", label("lockkeeper.dev/state", `"idle"`)), keys},
	{"forge a state through status", status("id-a", label("lockkeeper.dev/state", `"idle"`)), rbac},
	{"have a Node deleted by the garbage collector", node("id-a", owned), owners},
	{"lift the emergency stop", patchLease, rbac},
}

// agentActs are tried by an agent that may write the status of Nodes, as node-problem-detector and many network plugins are. It is
// given every verb for intents, so that the subresource alone refuses it.
var agentActs = []act{
	{"report a condition", status("id-a", `{"status":{"conditions":[{"type":"KernelDeadlock","status":"False"}]}}`), ""},
	{"annotate a Node", status("id-a", annotation("example.com/network", `"x"`)), ""},
	{"pause", status("id-b", annotation("lockkeeper.dev/paused", `"x"`)), keys},
	{"resume", status("id-c", annotation("lockkeeper.dev/paused", "null")), keys},
	{"detach", status("id-a", annotation("lockkeeper.dev/detached", `"x"`)), keys},
	{"take a node out", status("id-a", label("lockkeeper.dev/managed", `"false"`)), keys},
	{"request a reboot", status("id-b", annotation("lockkeeper.dev/request", `"reboot"`)), keys},
	{"request a reboot outside of windows", status("id-b", annotation("lockkeeper.dev/request-now", `"reboot"`)), keys},
	{"clear a failure", status("id-a", annotation("lockkeeper.dev/retry", `"t1"`)), keys},
	{"confirm a hook", status("id-a", annotation("hook.lockkeeper.dev/backup", `"t2"`)), keys},
	{"confirm a hook that the turn does not wait for", status("id-a", annotation("hook.lockkeeper.dev/other", `"t2"`)), prefixes},
	{"speak for a host", status("id-a", label("lockkeeper.dev/wants", `"nothing"`)), keys},
	{"remove a state", status("id-a", label("lockkeeper.dev/state", "null")), keys},
	{"have a Node deleted by the garbage collector", status("id-a", owned), owners},
	{"pause through the Node itself", node("id-b", annotation("lockkeeper.dev/paused", `"x"`)), rbac},
}

// operatorActs are tried by a user with the ClusterRole lockkeeper-operator of the manifests who may also patch Nodes.
var operatorActs = []act{
	{"pause", node("id-b", annotation("lockkeeper.dev/paused", `"x"`)), ""},
	{"resume", node("id-a", annotation("lockkeeper.dev/paused", "null")), ""},
	{"detach", node("id-a", annotation("lockkeeper.dev/detached", `"x"`)), ""},
	{"attach", node("id-b", annotation("lockkeeper.dev/detached", "null")), ""},
	{"take a node out", node("id-a", label("lockkeeper.dev/managed", `"false"`)), ""},
	{"request a reboot", node("id-b", annotation("lockkeeper.dev/request", `"reboot"`)), ""},
	{"request a reboot outside of windows", node("id-b", annotation("lockkeeper.dev/request-now", `"reboot"`)), keys},
	{"clear a failure", node("id-a", annotation("lockkeeper.dev/retry", `"t1"`)), ""},
	{"all at once", node("id-a", `{"metadata":{"labels":{"lockkeeper.dev/managed":"true"},"annotations":{"lockkeeper.dev/paused":null,"lockkeeper.dev/detached":"x","lockkeeper.dev/request":null,"lockkeeper.dev/retry":"t1"}}}`), ""},
	{"confirm a hook", node("id-a", annotation("hook.lockkeeper.dev/backup", `"t2"`)), keys},
	{"remove a state", node("id-a", label("lockkeeper.dev/state", "null")), keys},
	{"lift the emergency stop", patchLease, rbac},
}

// verbsActs are tried by a user with that ClusterRole alone: it is no leave to patch Nodes.
var verbsActs = []act{
	{"pause", node("id-b", annotation("lockkeeper.dev/paused", `"x"`)), rbac},
	{"pause through status", status("id-b", annotation("lockkeeper.dev/paused", `"x"`)), rbac},
}

// hookActs are tried by a hook's program, with the ClusterRole lockkeeper-hook of the manifests and leave to patch Nodes.
var hookActs = []act{
	{"confirm", node("id-a", annotation("hook.lockkeeper.dev/backup", `"t2"`)), ""},
	{"take a confirmation back", node("id-a", annotation("hook.lockkeeper.dev/backup", "null")), ""},
	{"pause", node("id-b", annotation("lockkeeper.dev/paused", `"x"`)), keys},
	{"clear a failure", node("id-a", annotation("lockkeeper.dev/retry", `"t1"`)), keys},
}

// teamActs are tried by a user with the ClusterRole lockkeeper-rules-editor of the manifests.
var teamActs = []act{
	{"add rules", createPolicyAs("mine", teamsRules), ""},
	{"add rules on some nodes, with the lowest priority", createPolicyAs("mine", `{"rulesOnly":true,"priority":-999,"nodeSelector":{"matchLabels":{"pool":"web"}}}`), ""},
	{"change its rules", patchPolicyAs("team", `{"spec":{"priority":-20,"rules":[{"source":"Unit","unit":"a.service","actions":[{"type":"Reboot"}]}]}}`), ""},
	{"delete its policy", deletePolicyAs("team"), ""},
	{"write a policy that decides rollouts", createPolicyAs("mine", `{"priority":-10}`), policyWriters},
	{"turn its policy into one that decides rollouts", patchPolicyAs("team", `{"spec":{"rulesOnly":false}}`), policyWriters},
	{"turn the policy of others into one that does not decide", patchPolicyAs("theirs", `{"spec":{"rulesOnly":true,"priority":-10}}`), policyWriters},
	{"widen the rollout of others", patchPolicyAs("theirs", `{"spec":{"rollout":{"maxUnavailable":"100%"}}}`), policyWriters},
	{"have the policy of others deleted by the garbage collector", patchPolicyAs("theirs", owned), policyWriters},
	{"keep the policy of others from being deleted", patchPolicyAs("theirs", `{"metadata":{"finalizers":["example.com/keep"]}}`), policyWriters},
	{"delete the policy of others", deletePolicyAs("theirs"), policyWriters},
	{"delete the default policy", deletePolicyAs(v1alpha1.DefaultPolicyName), policyWriters},
	{"outrank the rules of others", patchPolicyAs("team", `{"spec":{"priority":0}}`), policyWriters},
	{"take over rules that outrank", patchPolicyAs("ranked", `{"spec":{"priority":-10}}`), policyWriters},
	{"stop OS updates", createPolicyAs("mine", `{"rulesOnly":true,"priority":-10,"rules":[{"source":"OSUpdate","actions":[{"type":"None"}]}]}`), policyWriters},
	{"ignore a sentinel", createPolicyAs("mine", `{"rulesOnly":true,"priority":-10,"rules":[{"source":"Sentinel","path":"/run/reboot-required","actions":[{"type":"None"}]}]}`), policyWriters},
	{"ignore requests", patchPolicyAs("team", `{"spec":{"rules":[{"source":"Request","actions":[{"type":"None"}]}]}}`), policyWriters},
	{"let a version through that is held back", deletePolicyAs("held-back"), policyWriters},
	{"hold every node with a selector that is not valid", patchPolicyAs("team", `{"spec":{"nodeSelector":{"matchLabels":{"pool":"web 2"}}}}`), policyWriters},
	{"write the status of its policy", patchPolicyAs("team/status", `{"status":{"observedGeneration":9}}`), rbac},
}

// policyWriterActs are tried by a user whom RBAC lets change and delete every policy, but who lacks the verb rollout.
var policyWriterActs = []act{
	{"delete all policies at once", deletePolicyAs(""), policyWriters},
	{"pause the rollout of others", patchPolicyAs("theirs", `{"spec":{"paused":true}}`), policyWriters},
	{"delete the policy of a team", deletePolicyAs("team"), ""},
}

// rolloutActs are tried by a user who has that verb as well.
var rolloutActs = []act{
	{"write a policy that decides rollouts", createPolicyAs("mine", `{"priority":1000}`), ""},
	{"turn rulesOnly on", patchPolicyAs("theirs", `{"spec":{"rulesOnly":true}}`), ""},
	{"turn rulesOnly off", patchPolicyAs("team", `{"spec":{"rulesOnly":false}}`), ""},
	{"delete a policy", deletePolicyAs("theirs"), ""},
}

// overriderActs are tried by the same with the verb override.
var overriderActs = []act{
	{"remove a state", node("id-a", label("lockkeeper.dev/state", "null")), ""},
	{"remove a mark", node("id-a", annotation("lockkeeper.dev/cordon", "null")), ""},
	{"forge a state", node("id-a", label("lockkeeper.dev/state", `"idle"`)), keys},
}

// kubeletActs are tried by the kubelet of id-new, which has no Node yet.
var kubeletActs = []act{
	{"join", create(newNode("id-new", nil, nil)), ""},
	{"join with --node-labels", create(newNode("id-new", map[string]string{v1alpha1.LabelManaged: "true", "example.com/rack": "7"}, nil)), ""},
	{"join with a mistyped label", create(newNode("id-new", map[string]string{v1alpha1.Prefix + "manged": "true"}, nil)), ""},
	{"join in a state", create(newNode("id-new", map[string]string{v1alpha1.LabelState: "idle"}, nil)), keys},
	{"join with a state beside what it may", create(newNode("id-new", map[string]string{v1alpha1.LabelManaged: "true", v1alpha1.LabelState: "idle"}, nil)), keys},
	{"join with an intent", create(newNode("id-new", nil, map[string]string{v1alpha1.AnnotationDetached: "x"})), keys},
	{"join as another", create(newNode("id-other", nil, nil)), restriction},
	{"join with an owner", create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "id-new", OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "Node", Name: "gone", UID: "gone"}}}}), owners},
}
