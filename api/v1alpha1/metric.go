package v1alpha1

import (
	"fmt"
	"strings"
)

// Metric is the name of a metric of lockkeeper's, as Prometheus has it. What
// each means is in [MetricDocs]; a process serves all of them and no others.
type Metric string

// The metrics.
const (
	MetricBuildInfo        Metric = "lockkeeper_build_info"                             // of every process
	MetricHealthy          Metric = "lockkeeper_healthy"                                // what /healthz says
	MetricHostState        Metric = "lockkeeper_host_state"                             // one series
	MetricHostWants        Metric = "lockkeeper_host_wants"                             // one series
	MetricHostWaiting      Metric = "lockkeeper_host_waiting"                           // one series
	MetricHostTransition   Metric = "lockkeeper_host_last_transition_timestamp_seconds" // of what it does now
	MetricHostTurn         Metric = "lockkeeper_host_turn_start_timestamp_seconds"      // during a turn
	MetricHostStage        Metric = "lockkeeper_host_stage_start_timestamp_seconds"     // during a turn
	MetricHostBlockers     Metric = "lockkeeper_host_blockers"                          // of a host
	MetricHostBlocked      Metric = "lockkeeper_host_blocked_since_timestamp_seconds"   // of a host
	MetricStageDuration    Metric = "lockkeeper_host_stage_duration_seconds"            // of this process
	MetricHostTurns        Metric = "lockkeeper_host_turns_total"                       // of this process
	MetricHostEvictions    Metric = "lockkeeper_host_evictions_total"                   // of this process
	MetricFleetLock        Metric = "lockkeeper_host_fleetlock_requests_total"          // of this process
	MetricUpdateEngine     Metric = "lockkeeper_host_update_engine"                     // at most one series
	MetricAPIRequests      Metric = "lockkeeper_api_requests_total"                     // of this process
	MetricAPIContact       Metric = "lockkeeper_api_last_contact_timestamp_seconds"     // by identity
	MetricCredentialExpiry Metric = "lockkeeper_credential_expiry_timestamp_seconds"    // by identity
	MetricCredentialRefuse Metric = "lockkeeper_credential_refused"                     // by identity
	MetricRenewals         Metric = "lockkeeper_coordinator_credential_renewals_total"  // of this process
	MetricCandidate        Metric = "lockkeeper_coordinator_candidate"                  // 0 or 1
	MetricLeader           Metric = "lockkeeper_coordinator_leader"                     // 0 or 1
	MetricTerms            Metric = "lockkeeper_coordinator_terms_total"                // of this process
	MetricStopped          Metric = "lockkeeper_coordinator_stopped"                    // a leader's alone
	MetricNodes            Metric = "lockkeeper_coordinator_nodes"                      // a leader's alone
	MetricManagedNodes     Metric = "lockkeeper_coordinator_managed_nodes"              // a leader's alone
	MetricReportingNodes   Metric = "lockkeeper_coordinator_reporting_nodes"            // a leader's alone
	MetricHeldNodes        Metric = "lockkeeper_coordinator_held_nodes"                 // a leader's alone
	MetricUnavailable      Metric = "lockkeeper_coordinator_unavailable_nodes"          // a leader's alone
	MetricSlot             Metric = "lockkeeper_coordinator_slot_info"                  // a leader's alone
	MetricBudget           Metric = "lockkeeper_coordinator_budget_nodes"               // a leader's alone
	MetricFailed           Metric = "lockkeeper_coordinator_failed_nodes"               // a leader's alone
	MetricUnsettled        Metric = "lockkeeper_coordinator_unsettled_nodes"            // a leader's alone
	MetricPolicies         Metric = "lockkeeper_coordinator_policies"                   // a leader's alone
	MetricPolicyNodes      Metric = "lockkeeper_coordinator_policy_nodes"               // a leader's alone
	MetricPolicyHalted     Metric = "lockkeeper_coordinator_policy_halted"              // a leader's alone
	MetricDecision         Metric = "lockkeeper_coordinator_decision_duration_seconds"  // of this process
	MetricNotifications    Metric = "lockkeeper_coordinator_notifications_total"        // of this process

	// MetricOldestPending is a leader's alone.
	MetricOldestPending Metric = "lockkeeper_coordinator_oldest_pending_change_timestamp_seconds"
)

// UpdateOperations returns the operations of Flatcar's update_engine, without the prefix UPDATE_STATUS_. The engine of 2026
// never sets VERIFYING.
func UpdateOperations() []string {
	return []string{
		"IDLE", "CHECKING_FOR_UPDATE", "UPDATE_AVAILABLE", "DOWNLOADING", "VERIFYING", "FINALIZING", "UPDATED_NEED_REBOOT", "REPORTING_ERROR_EVENT",
	}
}

// MetricType is how a metric's value behaves.
type MetricType string

// The types.
const (
	Gauge     MetricType = "gauge"     // goes up and down
	Counter   MetricType = "counter"   // goes up, from 0 at the process's start
	Histogram MetricType = "histogram" // counts by size, from the process's start
)

// Values of the labels of metrics.
const (
	IdentityHost        = "host"        // the kubelet's credential
	IdentityCoordinator = "coordinator" // the second kubeconfig

	RequestSuccess = "success"           // 2xx and 3xx
	RequestTooMany = "too_many_requests" // 429, also if a PodDisruptionBudget allows no eviction
	RequestRefused = "refused"           // every other 4xx
	RequestError   = "error"             // 5xx, or no answer

	FleetLockPermitted = "permitted" // the client may reboot the host
	FleetLockSteady    = "steady"    // its report that it is up to date was accepted
	FleetLockNotYet    = "not_yet"   // it is not the host's turn, or the host is not drained yet
	FleetLockRefused   = "refused"   // the request is not valid, or another client's

	// WaitsForNothing is the reason of a host that waits for none. WaitsForUnknown is that of one
	// that waits for a reason that lockkeeper does not know.
	WaitsForNothing = "None"
	WaitsForUnknown = "unknown"
	// PolicyValid and PolicyInvalid: whether a policy can be understood.
	PolicyValid   = "true"
	PolicyInvalid = "false"

	// CountSelected and the others are what [MetricPolicyNodes] counts of a
	// policy's nodes; they are the fields of PolicyNodes.
	CountSelected    = "selected"
	CountUpToDate    = "up_to_date"
	CountWanting     = "wanting"
	CountInTurn      = "in_turn"
	CountUnavailable = "unavailable"
	CountFailed      = "failed"
	CountAllowed     = "allowed"

	// MaxPolicySeries is how many policies have metrics of their own, those that
	// win first: each makes eight series.
	MaxPolicySeries = 100
	// MaxSlotSeries is how many nodes that take a slot have a series of their own.
	MaxSlotSeries = 20

	// WantsUnknown is what a host wants that has not read all its sources.
	WantsUnknown = "unknown"
	// OperationUnknown is the operation of an update engine that does not answer, or
	// that names an operation that lockkeeper does not know.
	OperationUnknown = "unknown"
)

// MetricDoc is a metric with all there is to know of it.
type MetricDoc struct {
	Name   Metric
	Type   MetricType
	Unit   string // "" for a plain number
	Labels []string
	// Leader: only a process that holds the Lease serves it.
	Leader bool
	Help   string // one line without a full stop
}

var metricDocs = []MetricDoc{
	{MetricBuildInfo, Gauge, "", []string{"version", "protocol"}, false, "Always 1; the labels are lockkeeper's version and the protocol that it speaks"},
	{MetricHealthy, Gauge, "", nil, false, "1 while /healthz answers 200, 0 while it answers 503"},
	{MetricHostState, Gauge, "", []string{"state"}, false, "Always 1; the label is the state of this host's Node as the host sees it"},
	{MetricHostWants, Gauge, "", []string{"wants"}, false, "Always 1; the label is what this host wants, unknown until every source was read in this boot"},
	{MetricHostWaiting, Gauge, "", []string{"reason"}, false, "1 while this host waits for something, otherwise 0; the label is the reason, None, or unknown for a reason that this version does not know"},
	{MetricHostTransition, Gauge, "seconds since 1970", nil, false, "When this host began what it does, or to wait for what it waits for, now"},
	{MetricHostTurn, Gauge, "seconds since 1970", nil, false, "When this host's present turn began, by the coordinator's clock. Absent outside of a turn"},
	{MetricHostStage, Gauge, "seconds since 1970", nil, false, "When the present stage of this host's turn began, by the coordinator's clock. Absent outside of a turn"},
	{MetricHostBlockers, Gauge, "", []string{"kind"}, false, "Number of blockers of this kind on this host: " + blockerKinds()},
	{MetricHostBlocked, Gauge, "seconds since 1970", []string{"kind", "name", "pod"}, false, fmt.Sprintf("When this began to block this host. At most %d series, those that have blocked longest", MaxUpdateBlockers)},
	{MetricStageDuration, Histogram, "seconds", []string{"state"}, false, "Duration of the stages of this host's turns that ended while this process ran, by the state. A stage that ends right before the reboot is lost if no scrape happens in between"},
	{MetricHostTurns, Counter, "", []string{"result"}, false, "Turns of this host that ended while this process ran, by their result"},
	{MetricHostEvictions, Counter, "", []string{"result"}, false, "Evictions that this process requested, by their result; too_many_requests (429) also means that a PodDisruptionBudget does not allow the eviction"},
	{MetricFleetLock, Counter, "", []string{"result"}, false, "Requests of FleetLock clients on this host that were answered, by the answer: permitted, to reboot the host; steady, to a report that it is up to date; not_yet, because it was not the host's turn, or the request ended; refused, because the request was not valid or another client's"},
	{MetricUpdateEngine, Gauge, "", []string{"operation"}, false, "Always 1; the label is the update engine's present operation: " + strings.Join(UpdateOperations(), ", ") + "; unknown if it does not answer. Absent if the engine is off, or not on this host"},
	{MetricAPIRequests, Counter, "", []string{"identity", "result"}, false, "Requests of this process to the API server, by the identity that sent them and by their result"},
	{MetricAPIContact, Gauge, "seconds since 1970", []string{"identity"}, false, "When the API server last answered a request of this identity with anything but 401, 429 or 5xx, or continued such an answer; 0 if it never did. On an idle host, the watch receives something about every minute"},
	{MetricCredentialExpiry, Gauge, "seconds since 1970", []string{"identity"}, false, "When the credential expires: the coordinator's, and the host's if it is a certificate. Absent if the file does not say"},
	{MetricCredentialRefuse, Gauge, "", []string{"identity"}, false, "1 while the API server refuses the credential with 401, otherwise 0"},
	{MetricRenewals, Counter, "", []string{"result"}, false, "Renewals of the coordinator's credential by this process, by their result: success, error"},
	{MetricCandidate, Gauge, "", nil, false, "1 while this process is a candidate for the Lease or holds it, otherwise 0"},
	{MetricLeader, Gauge, "", nil, false, "1 while this process holds the Lease, otherwise 0. For a moment, two processes may report 1; this is harmless"},
	{MetricTerms, Counter, "", nil, false, "Terms of leadership that this process began. The increase over all processes is the number of failovers"},
	{MetricStopped, Gauge, "", nil, true, "1 while the emergency stop is set, otherwise 0"},
	{MetricNodes, Gauge, "nodes", []string{"state"}, true, "Nodes by state, as the leader saw them when it last decided"},
	{MetricManagedNodes, Gauge, "nodes", nil, true, "Nodes that lockkeeper manages: they have a state"},
	{MetricReportingNodes, Gauge, "nodes", nil, true, "Managed nodes whose host has reported in the Node's present boot"},
	{MetricOldestPending, Gauge, "seconds since 1970", nil, true, "When the oldest pending change of the fleet became pending, by its host's clock. Absent if nothing is pending"},
	{MetricHeldNodes, Gauge, "nodes", []string{"reason"}, true, "Nodes that do not move, by the reason"},
	{MetricUnavailable, Gauge, "nodes", []string{"reason"}, true, "Nodes that take a slot of the budget, by the reason why they count as unavailable: " + slotUses()},
	{MetricSlot, Gauge, "", []string{"node", "reason"}, true, fmt.Sprintf("Always 1; the labels are a node that takes a slot of the budget, and the reason. At most %d nodes, those in their turn last", MaxSlotSeries)},
	{MetricBudget, Gauge, "nodes", nil, true, "Number of nodes that may be unavailable"},
	{MetricFailed, Gauge, "nodes", nil, true, "Nodes that failed and are not cleared"},
	{MetricUnsettled, Gauge, "nodes", nil, true, "Nodes for which the outcome of a write has been unknown for a minute; the leader grants nothing while there is one"},
	{MetricPolicies, Gauge, "", []string{"valid"}, true, "DisruptionPolicies, by whether they are valid: true, false"},
	{MetricPolicyNodes, Gauge, "nodes", []string{"policy", "count"}, true, fmt.Sprintf("The counts in the status of the policy: selected, up_to_date, wanting, in_turn, unavailable, failed, and allowed (maxUnavailable as a number). Only of the first %d policies in the order of precedence", MaxPolicySeries)},
	{MetricPolicyHalted, Gauge, "", []string{"policy"}, true, "1 while more nodes of the policy have failed than its maxFailed allows, otherwise 0. Only of the same policies"},
	{MetricDecision, Histogram, "seconds", nil, false, "Duration of each decision of the leader about all nodes"},
	{MetricNotifications, Counter, "", []string{"result"}, false, "Notifications by what happened to them: sent; failed, because the receiver did not accept them; dropped, because the queue was full or the process ended"},
}

// MetricDocs are all metrics, in the order of the documentation. docs/metrics.md
// is rendered from it, and what a process serves is made of it.
func MetricDocs() []MetricDoc { return metricDocs }
