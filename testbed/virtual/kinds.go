package virtual

import (
	"maps"
	"net/http"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Kind is what goes wrong.
type Kind string

// The kinds. The table of [kinds] says what each does.
const (
	// To one request, or to several in a row.
	kindLost       Kind = "lost"        // the request never arrives
	kindDelay      Kind = "delay"       // the request arrives late, if its sender still waits
	kindLate       Kind = "late-write"  // the sender gives up, or a proxy answers, and the request arrives after that
	kindAnswerLost Kind = "answer-lost" // the request arrives, its answer does not
	kindAnswerLate Kind = "answer-late"
	kindProxy      Kind = "proxy"    // a proxy answers in place of the API server; with ",delivered" the API server carried it out
	kindRepeat     Kind = "repeat"   // a proxy sends the request twice
	kindTruncate   Kind = "truncate" // the answer's body ends too early
	kindRefuse     Kind = "refuse"   // the API server itself answers with an error

	// To a process, its network and its watches.
	kindCutOff    Kind = "cut-off" // the host's network is down
	kindDenied    Kind = "denied"  // the API server refuses every request of a class that the host sends
	kindWatchCut  Kind = "watch-cut"
	kindWatchEnd  Kind = "watch-end"
	kindWatchHang Kind = "watch-hang"
	kindWatchLag  Kind = "watch-lag"
	kindKill      Kind = "kill"
	kindRestart   Kind = "restart" // systemctl restart lockkeeper
	kindFreeze    Kind = "freeze"
	kindTwice     Kind = "start-twice"

	// To a host.
	kindCrash         Kind = "crash"
	kindBusDown       Kind = "bus-down"
	kindBusSlow       Kind = "bus-slow"
	kindLogind        Kind = "logind"
	kindLogindRestart Kind = "logind-restart"
	kindInhibit       Kind = "inhibit" // a program inhibits shutdowns
	kindSession       Kind = "session" // a user is logged in
	kindStage         Kind = "stage"
	kindWithdraw      Kind = "withdraw"
	kindNotReady      Kind = "not-ready" // the kubelet reports that it is not Ready
	kindRollback      Kind = "rollback"  // the next boot is of the version that the host runs
	kindFile          Kind = "file"      // a file of the host's service changes
	kindUnit          Kind = "unit"      // the starts of a unit fail or hang
	kindSentinel      Kind = "sentinel"
	kindHostClock     Kind = "host-clock" // the host's clock is off, as far as its coordinator can tell

	// To a host's FleetLock client.
	kindClientRestart Kind = "client-restart"
	kindClientHangUp  Kind = "client-hang-up" // after permission, its answer is lost
	kindClientStop    Kind = "client-stop"

	// To the API server.
	kindOutage     Kind = "outage"
	kindClock      Kind = "clock"
	kindCutWatches Kind = "cut-watches"
	kindCompact    Kind = "compact"
	kindRewind     Kind = "rewind"

	// By people and other programs.
	kindIntent      Kind = "intent"
	kindRetry       Kind = "retry"
	kindConfirm     Kind = "confirm"
	kindStop        Kind = "stop"
	kindLease       Kind = "lease"
	kindPolicy      Kind = "policy"
	kindReplaceNode Kind = "replace-node"
	kindCordon      Kind = "cordon"
	kindUncordon    Kind = "uncordon"
	kindExclude     Kind = "exclude" // an admin sets or removes an exclusion
	kindBudget      Kind = "budget"
	kindPod         Kind = "pod"
	kindJob         Kind = "job"     // a pod runs on the host's node that the policy may block
	kindManager     Kind = "manager" // another reboot manager runs on the host's node

	// By an attacker.
	kindLie   Kind = "lie"
	kindThief Kind = "thief"
)

// kind is what plans know of a kind. [acts] has what the executor does for it.
type kind struct {
	weight      int           // how often a plan has it, relative to the others
	request     bool          // it happens to a request
	cluster     bool          // it happens to no one host
	hostile     bool          // only in plans with attackers
	client      bool          // only on hosts with a FleetLock client
	versioned   bool          // Mode is an OS version
	own         bool          // a request that triggers it is one of the same host's
	classes     []class       // what may trigger it; nil: any request or event, or a time
	modes       []string      // nil: no Mode
	least, most time.Duration // of For; 0: no For
}

// Modes of several kinds.
const (
	modeError  = "error"  // the sender gets an error at once
	modeSilent = "silent" // the sender waits until it gives up
	modeFirst  = "first"  // the answer to the first of two requests is passed on
	modeSecond = "second"
	modeClean  = "clean" // the end looks like the proper end
)

// proxyModes are an HTTP status with options: see [call.proxyAnswer].
var proxyModes = []string{
	"502", "502,delivered", "503", "503,retry", "503,retry,delivered", "504", "504,delivered", "504,retry,delivered",
	"404", "404,delivered", "404,plain", "401", "401,plain", "403", "403,plain", "403,delivered", "429,retry", "429,retry,delivered",
}

// refusals are the answers of an API server that refuses a request, or does not finish it in time: what authentication, authorization, admission
// policies and webhooks, its own limits and etcd make of it. With ",delivered" it is carried out.
var refusals = map[string]metav1.Status{
	"401":           {Code: http.StatusUnauthorized, Reason: metav1.StatusReasonUnauthorized, Message: "Unauthorized"},
	"403,rbac":      {Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: "forbidden: the user cannot do this at the cluster scope"},
	"404":           {Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Message: "the server could not find the requested resource"},
	"403":           {Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: "admission webhook \"virtual\" denied the request"},
	"409":           {Code: http.StatusConflict, Reason: metav1.StatusReasonConflict, Message: "admission webhook \"virtual\" denied the request: conflict"},
	"422":           {Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid, Message: "ValidatingAdmissionPolicy 'virtual' denied request"},
	"429":           {Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests, Message: "too many requests, please try again later"},
	"500":           {Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError, Message: "Internal error occurred: failed calling webhook \"virtual\""},
	"504":           {Code: http.StatusGatewayTimeout, Reason: metav1.StatusReasonTimeout, Message: "Timeout: request did not complete within the allotted timeout"},
	"504,delivered": {Code: http.StatusGatewayTimeout, Reason: metav1.StatusReasonTimeout, Message: "Timeout: request did not complete within the allotted timeout"},
}

// clockModes are by how much a clock is ahead.
var clockModes = []string{"3s", "-3s", "29s", "-29s", "40s", "-40s", "1h", "-1h"}

// deniedModes are one of refusals, and the class of the requests that get it: a credential that has expired, a role that was changed, a resource
// whose definition is gone.
var deniedModes = []string{
	"401:host", "401:coordinator", "403,rbac:host,get,nodes", "403,rbac:host,list,nodes", "403,rbac:host,watch,nodes", "403,rbac:host,patch,nodes",
	"403,rbac:host,get,leases", "403,rbac:host,list,pods", "403,rbac:host,create,pods/eviction", "403,rbac:host,patch,hostupdates",
	"403,rbac:coordinator,list,nodes", "403,rbac:coordinator,patch,nodes", "403,rbac:coordinator,get,leases", "403,rbac:coordinator,update,leases",
	"403,rbac:coordinator,list,disruptionpolicies", "404:host,list,disruptionpolicies", "404:coordinator,list,disruptionpolicies",
}

var kinds = map[Kind]kind{
	kindLost:       {weight: 6, request: true, modes: []string{modeError, modeSilent}},
	kindDelay:      {weight: 6, request: true, least: 100 * time.Millisecond, most: 20 * time.Second},
	kindLate:       {weight: 12, request: true, classes: classesOfLate, modes: []string{modeError, modeSilent, "504", "503,retry"}, least: 10 * time.Millisecond, most: 2 * time.Minute},
	kindAnswerLost: {weight: 12, request: true, modes: []string{modeError, modeSilent}},
	kindAnswerLate: {weight: 6, request: true, least: 100 * time.Millisecond, most: 20 * time.Second},
	kindProxy:      {weight: 12, request: true, modes: proxyModes},
	kindRepeat:     {weight: 6, request: true, classes: classesOfWrites, modes: []string{modeFirst, modeSecond}, least: time.Millisecond, most: 10 * time.Second},
	kindTruncate:   {weight: 3, request: true, classes: classesOfReads, modes: []string{modeError, modeClean}},
	kindRefuse:     {weight: 6, request: true, classes: classesOfWrites, modes: slices.Sorted(maps.Keys(refusals))},

	kindCutOff:    {weight: 4, least: 5 * time.Second, most: 30 * time.Minute},
	kindDenied:    {weight: 4, modes: deniedModes, least: 10 * time.Second, most: 30 * time.Minute},
	kindWatchCut:  {weight: 3},
	kindWatchEnd:  {weight: 2},
	kindWatchHang: {weight: 3, least: 5 * time.Second, most: 10 * time.Minute},
	kindWatchLag:  {weight: 4, least: 100 * time.Millisecond, most: 30 * time.Second},
	kindKill:      {weight: 10},
	kindRestart:   {weight: 5, own: true, classes: classesOfStops},
	kindFreeze:    {weight: 6, least: time.Second, most: 2 * time.Minute},
	kindTwice:     {weight: 3, least: time.Second, most: 5 * time.Minute},

	kindCrash:         {weight: 8, least: 5 * time.Second, most: 10 * time.Minute},
	kindBusDown:       {weight: 3, own: true, classes: classesOfChecks, least: 100 * time.Millisecond, most: time.Minute},
	kindBusSlow:       {weight: 3, own: true, classes: classesOfChecks, modes: []string{"50ms", "1s", "2s", "4s", "8s", "15s"}, least: time.Second, most: 3 * time.Minute},
	kindLogind:        {weight: 4, own: true, classes: classesOfReboots, modes: []string{string(logindRefuses), string(logindLoses), string(logindIgnores), string(logindStalls)}, least: time.Second, most: 5 * time.Minute},
	kindLogindRestart: {weight: 2},
	kindInhibit:       {weight: 3, least: time.Second, most: 2 * time.Hour},
	kindSession:       {weight: 2, least: time.Second, most: 30 * time.Minute},
	kindStage:         {weight: 12, versioned: true},
	kindWithdraw:      {weight: 5, versioned: true, least: time.Second, most: 10 * time.Minute},
	kindNotReady:      {weight: 4, own: true, classes: classesOfReady, least: time.Second, most: 30 * time.Minute},
	kindRollback:      {weight: 3, own: true, classes: classesOfRollbacks},
	kindFile:          {weight: 10, own: true, classes: classesOfApplies, modes: []string{"a", "b", "a,back", "b,back", "a,undo", "b,undo"}},

	kindUnit:      {weight: 8, own: true, classes: classesOfStages, modes: unitModes(), least: 5 * time.Second, most: 20 * time.Minute},
	kindSentinel:  {weight: 3, modes: []string{"removed", "stays"}, least: time.Second, most: 10 * time.Minute},
	kindHostClock: {weight: 2, modes: clockModes, least: time.Second, most: 15 * time.Minute},

	kindClientRestart: {weight: 3, client: true, own: true, classes: classesOfClients},
	kindClientHangUp:  {weight: 3, client: true, own: true, classes: classesOfClients},
	kindClientStop: {
		weight: 4, client: true, own: true, classes: classesOfClients,
		modes: []string{string(clientStopped), string(clientSuspended), string(clientByHand)}, least: 10 * time.Second, most: 30 * time.Minute,
	},

	kindOutage:     {weight: 3, cluster: true, modes: []string{modeError, modeSilent}, least: time.Second, most: 30 * time.Minute},
	kindClock:      {weight: 2, cluster: true, modes: clockModes, least: time.Second, most: 5 * time.Minute},
	kindCutWatches: {weight: 3, cluster: true, modes: []string{"", "nodes", "leases", "pods", "disruptionpolicies"}},
	kindCompact:    {weight: 3, cluster: true},
	kindRewind:     {weight: 1, cluster: true, least: 10 * time.Second, most: 20 * time.Minute},

	kindIntent:      {weight: 16, modes: intentModes, least: time.Second, most: 15 * time.Minute},
	kindRetry:       {weight: 4},
	kindConfirm:     {weight: 3, modes: []string{"right", "stale"}},
	kindStop:        {weight: 5, cluster: true, modes: []string{"annotation", "delete"}, least: time.Second, most: 10 * time.Minute},
	kindLease:       {weight: 2, cluster: true, modes: []string{"blank", "steal"}},
	kindPolicy:      {weight: 6, cluster: true, modes: policyModes, least: time.Second, most: 15 * time.Minute},
	kindReplaceNode: {weight: 2, least: time.Second, most: 3 * time.Minute},
	kindCordon:      {weight: 3, least: time.Second, most: 10 * time.Minute},
	kindUncordon:    {weight: 4, own: true, classes: classesOfCordons},
	kindExclude:     {weight: 3, modes: excludeModes()},
	kindBudget:      {weight: 4, least: 5 * time.Second, most: 15 * time.Minute},
	kindPod:         {weight: 8, own: true, classes: classesOfCommits},
	kindJob:         {weight: 8, own: true, classes: classesOfJobs, modes: jobModes, least: 10 * time.Second, most: 15 * time.Minute},
	kindManager:     {weight: 2, least: time.Minute, most: 10 * time.Minute},

	kindLie:   {weight: 16, hostile: true, modes: lieModes(), least: time.Second, most: 5 * time.Minute},
	kindThief: {weight: 6, hostile: true, cluster: true, modes: theftModes(), least: time.Second, most: 5 * time.Minute},
}

// spec returns what plans know of the kind; nothing for "".
func (k Kind) spec() kind { return kinds[k] }

// kindNames returns all kinds in a fixed order.
func kindNames() []Kind { return slices.Sorted(maps.Keys(kinds)) }

// ahead returns by how much a clock is ahead.
func (f Fault) ahead() time.Duration {
	d, err := time.ParseDuration(f.Mode)
	if err != nil {
		panic("the mode of a clock: " + f.Mode)
	}
	return d
}

// delivered reports whether the API server carries out a request whose answer is another one.
func (f Fault) delivered() bool { return hasOption(f.Mode, "delivered") }
