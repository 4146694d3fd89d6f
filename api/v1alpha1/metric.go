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
	MetricBuildInfo        Metric = "lockkeeper_build_info"                            // of every process
	MetricHealthy          Metric = "lockkeeper_healthy"                               // what /healthz says
	MetricHostState        Metric = "lockkeeper_host_state"                            // one series
	MetricHostWants        Metric = "lockkeeper_host_wants"                            // one series
	MetricHostWaits        Metric = "lockkeeper_host_waits"                            // one series
	MetricHostSince        Metric = "lockkeeper_host_since_timestamp_seconds"          // of what it does now
	MetricHostTurn         Metric = "lockkeeper_host_turn_seconds"                     // 0 outside of one
	MetricHostStage        Metric = "lockkeeper_host_stage_seconds"                    // 0 outside of a turn
	MetricHostBlockers     Metric = "lockkeeper_host_blockers"                         // of a host
	MetricHostBlocked      Metric = "lockkeeper_host_blocked_since_timestamp_seconds"  // of a host
	MetricStageDuration    Metric = "lockkeeper_host_stage_duration_seconds"           // of this process
	MetricHostTurns        Metric = "lockkeeper_host_turns_total"                      // of this process
	MetricHostEvictions    Metric = "lockkeeper_host_evictions_total"                  // of this process
	MetricUpdateEngine     Metric = "lockkeeper_host_update_engine"                    // at most one series
	MetricAPIRequests      Metric = "lockkeeper_api_requests_total"                    // of this process
	MetricAPIContact       Metric = "lockkeeper_api_last_contact_timestamp_seconds"    // by identity
	MetricCredentialExpiry Metric = "lockkeeper_credential_expiry_timestamp_seconds"   // by identity
	MetricCredentialRefuse Metric = "lockkeeper_credential_refused"                    // by identity
	MetricRenewals         Metric = "lockkeeper_coordinator_credential_renewals_total" // of this process
	MetricCandidate        Metric = "lockkeeper_coordinator_candidate"                 // 0 or 1
	MetricLeader           Metric = "lockkeeper_coordinator_leader"                    // 0 or 1
	MetricTerms            Metric = "lockkeeper_coordinator_terms_total"               // of this process
	MetricStopped          Metric = "lockkeeper_coordinator_stopped"                   // a leader's alone
	MetricNodes            Metric = "lockkeeper_coordinator_nodes"                     // a leader's alone
	MetricManagedNodes     Metric = "lockkeeper_coordinator_managed_nodes"             // a leader's alone
	MetricReportingNodes   Metric = "lockkeeper_coordinator_reporting_nodes"           // a leader's alone
	MetricHeldNodes        Metric = "lockkeeper_coordinator_held_nodes"                // a leader's alone
	MetricUnavailable      Metric = "lockkeeper_coordinator_unavailable_nodes"         // a leader's alone
	MetricSlot             Metric = "lockkeeper_coordinator_slot"                      // a leader's alone
	MetricBudget           Metric = "lockkeeper_coordinator_budget_nodes"              // a leader's alone
	MetricFailed           Metric = "lockkeeper_coordinator_failed_nodes"              // a leader's alone
	MetricUnsettled        Metric = "lockkeeper_coordinator_unsettled_nodes"           // a leader's alone
	MetricPolicies         Metric = "lockkeeper_coordinator_policies"                  // a leader's alone
	MetricPolicyNodes      Metric = "lockkeeper_coordinator_policy_nodes"              // a leader's alone
	MetricPolicyHalted     Metric = "lockkeeper_coordinator_policy_halted"             // a leader's alone
	MetricDecision         Metric = "lockkeeper_coordinator_decision_seconds"          // of this process
	MetricNotifications    Metric = "lockkeeper_coordinator_notifications_total"       // of this process

	// MetricOldestPending is a leader's alone.
	MetricOldestPending Metric = "lockkeeper_coordinator_oldest_pending_timestamp_seconds"
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

// Labels of metrics whose values are not words defined elsewhere.
const (
	IdentityHost        = "host"        // the kubelet's credential
	IdentityCoordinator = "coordinator" // the second kubeconfig

	AnswerAccepted = "accepted" // 2xx and 3xx
	AnswerBusy     = "busy"     // 429: too many requests, or a PodDisruptionBudget that allows none
	AnswerRefused  = "refused"  // every other 4xx
	AnswerError    = "error"    // 5xx, or none at all

	// WaitsForNothing is the reason of a host that waits for none.
	WaitsForNothing = "None"
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
	{MetricHostWaits, Gauge, "", []string{"reason"}, false, "1 while this host waits for something, else 0; the label is the reason, or None"},
	{MetricHostSince, Gauge, "seconds since 1970", nil, false, "Since when this host does or waits for what it does now"},
	{MetricHostTurn, Gauge, "seconds", nil, false, "How long this host's present turn has lasted, 0 outside of a turn"},
	{MetricHostStage, Gauge, "seconds", nil, false, "How long this host has been in the present state of its turn, 0 outside of a turn"},
	{MetricHostBlockers, Gauge, "", []string{"kind"}, false, "How many things of this kind block this host: " + blockerKinds()},
	{MetricHostBlocked, Gauge, "seconds since 1970", []string{"kind", "name", "pod"}, false, fmt.Sprintf("Since when this has blocked this host. At most %d series, those that block longest", MaxUpdateBlockers)},
	{MetricStageDuration, Histogram, "seconds", []string{"state"}, false, "How long the stages of this host's turns took that ended while this process ran, by the state. A stage that ends right before the reboot is lost if nothing scrapes the process in between"},
	{MetricHostTurns, Counter, "", []string{"result"}, false, "Turns of this host that ended while this process ran, by their result"},
	{MetricHostEvictions, Counter, "", []string{"answer"}, false, "Evictions that this process asked for, by the API server's answer; busy is 429, which a PodDisruptionBudget says too"},
	{MetricUpdateEngine, Gauge, "", []string{"operation"}, false, "Always 1; the label is what the update engine does, by its own name for it: " + strings.Join(UpdateOperations(), ", ") + "; unknown if it does not answer. Not there if the engine is off, or not on this host"},
	{MetricAPIRequests, Counter, "", []string{"identity", "answer"}, false, "Requests of this process to the API server, by the identity that asked and by the answer"},
	{MetricAPIContact, Gauge, "seconds since 1970", []string{"identity"}, false, "When the API server last answered a request of this identity with anything but 401, 429 or 5xx, or sent more of such an answer; 0 is never. An idle host's watch brings something every minute or so"},
	{MetricCredentialExpiry, Gauge, "seconds since 1970", []string{"identity"}, false, "When the credential ends: the coordinator's, and the host's if it is a certificate; not there where the file does not tell"},
	{MetricCredentialRefuse, Gauge, "", []string{"identity"}, false, "1 while the API server refuses the credential with 401, else 0"},
	{MetricRenewals, Counter, "", []string{"result"}, false, "How often this process renewed the coordinator's credential, or failed to: renewed, failed"},
	{MetricCandidate, Gauge, "", nil, false, "1 while this process stands for election or leads, else 0"},
	{MetricLeader, Gauge, "", nil, false, "1 while this process holds the Lease, else 0; two of them at one moment are no harm"},
	{MetricTerms, Counter, "", nil, false, "Terms as the leader that this process began. The increase over all processes is the number of failovers"},
	{MetricStopped, Gauge, "", nil, true, "1 while the emergency stop is set, else 0"},
	{MetricNodes, Gauge, "nodes", []string{"state"}, true, "Nodes by state, as the leader saw them when it last decided"},
	{MetricManagedNodes, Gauge, "nodes", nil, true, "Nodes that lockkeeper manages: they have a state"},
	{MetricReportingNodes, Gauge, "nodes", nil, true, "Managed nodes whose host has reported in the Node's present boot"},
	{MetricOldestPending, Gauge, "seconds since 1970", nil, true, "Since when the oldest pending change of the fleet has been pending, by its host's clock. Not there if nothing is pending"},
	{MetricHeldNodes, Gauge, "nodes", []string{"reason"}, true, "Nodes that do not move, by the reason"},
	{MetricUnavailable, Gauge, "nodes", []string{"use"}, true, "Nodes that take a slot of the budget, by what makes them unavailable: " + slotUses()},
	{MetricSlot, Gauge, "", []string{"node", "use"}, true, fmt.Sprintf("Always 1; the labels name a node that takes a slot of the budget, and why. At most %d nodes, those in their turn last", MaxSlotSeries)},
	{MetricBudget, Gauge, "nodes", nil, true, "How many nodes may be unavailable"},
	{MetricFailed, Gauge, "nodes", nil, true, "Nodes that failed and are not cleared"},
	{MetricUnsettled, Gauge, "nodes", nil, true, "Nodes for which the outcome of a write has been unknown for a minute; the leader grants nothing while there is one"},
	{MetricPolicies, Gauge, "", []string{"valid"}, true, "DisruptionPolicies by whether they can be understood: true, false"},
	{MetricPolicyNodes, Gauge, "nodes", []string{"policy", "count"}, true, fmt.Sprintf("What the policy's status counts: selected, up_to_date, wanting, in_turn, unavailable, failed and allowed, which is maxUnavailable as a number. Of the %d policies that win first", MaxPolicySeries)},
	{MetricPolicyHalted, Gauge, "", []string{"policy"}, true, "1 while more nodes of the policy have failed than its maxFailed allows, else 0. Of the same policies"},
	{MetricDecision, Histogram, "seconds", nil, false, "How long the leader took to decide about all nodes, each time"},
	{MetricNotifications, Counter, "", []string{"result"}, false, "Notifications by what happened to them: sent; failed, because the receiver did not accept them; lost, because the queue was full or the process ended"},
}

// MetricDocs are all metrics, in the order of the documentation. docs/metrics.md
// is rendered from it, and what a process serves is made of it.
func MetricDocs() []MetricDoc { return metricDocs }
