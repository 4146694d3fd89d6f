package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// DisruptionPolicy says what changes cost on the nodes that it selects, and how
// fast those nodes may roll.
//
// A node's rules are the union over all policies that select it, the rule of a
// higher priority replacing one with an equal key. Everything else (rollout,
// hooks, drain, timeouts, mode, paused) comes from the one of the highest
// priority; of two with the same priority, from the one whose name comes first.
// Policies with rulesOnly add rules, and never decide anything else.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=dp
// +kubebuilder:metadata:labels={"app.kubernetes.io/name=lockkeeper","app.kubernetes.io/part-of=lockkeeper","app.kubernetes.io/component=api"}
// +kubebuilder:printcolumn:name="Priority",type=integer,JSONPath=".spec.priority"
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=".spec.mode"
// +kubebuilder:printcolumn:name="Selected",type=integer,JSONPath=".status.nodes.selected"
// +kubebuilder:printcolumn:name="UpToDate",type=integer,JSONPath=".status.nodes.upToDate"
// +kubebuilder:printcolumn:name="InTurn",type=integer,JSONPath=".status.nodes.inTurn"
// +kubebuilder:printcolumn:name="Allowed",type=integer,JSONPath=".status.nodes.allowed"
// +kubebuilder:printcolumn:name="Failed",type=integer,JSONPath=".status.nodes.failed",priority=1
// +kubebuilder:printcolumn:name="Wanting",type=integer,JSONPath=".status.nodes.wanting",priority=1
// +kubebuilder:printcolumn:name="Unavailable",type=integer,JSONPath=".status.nodes.unavailable",priority=1
// +kubebuilder:printcolumn:name="Paused",type=boolean,JSONPath=".spec.paused",priority=1
// +kubebuilder:printcolumn:name="RulesOnly",type=boolean,JSONPath=".spec.rulesOnly",priority=1
// +kubebuilder:printcolumn:name="Valid",type=string,JSONPath=".status.conditions[?(@.type=='Valid')].status"
// +kubebuilder:printcolumn:name="Progressing",type=string,JSONPath=".status.conditions[?(@.type=='Progressing')].reason"
// +kubebuilder:printcolumn:name="Halted",type=string,JSONPath=".status.conditions[?(@.type=='Halted')].status",priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp"
// +kubebuilder:validation:XValidation:rule="self.spec.priority > -1000 || self.metadata.name == 'lockkeeper-default'",message="expected more than -1000, the priority of lockkeeper-default",fieldPath=".spec.priority"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.rollout) || !has(self.spec.rollout.after) || self.spec.rollout.after.all(a, a.policy != self.metadata.name)",message="the policy waits for itself; expected the name of another policy",fieldPath=".spec.rollout.after"
type DisruptionPolicy struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// Spec is written by an admin.
	Spec DisruptionPolicySpec `json:"spec"`
	// Status is written by the coordinator.
	//
	// +optional
	Status DisruptionPolicyStatus `json:"status,omitzero"`
}

// DisruptionPolicyList is a list of policies.
//
// +kubebuilder:object:root=true
type DisruptionPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []DisruptionPolicy `json:"items"`
}

// DefaultPolicyName is the policy in the manifests, of the lowest priority.
const DefaultPolicyName = "lockkeeper-default"

// MinPriority and MaxPriority bound a policy's priority.
const (
	MinPriority = -1000
	MaxPriority = 1000
)

// DisruptionPolicySpec is the part of a policy that an admin writes.
//
// +kubebuilder:validation:XValidation:rule="!self.rulesOnly || self.mode == 'Act'",message="a policy with rulesOnly adds rules and decides nothing else; leave mode out, or leave rulesOnly out",fieldPath=".mode",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="!self.rulesOnly || !self.paused",message="a policy with rulesOnly adds rules and decides nothing else; leave paused out, or leave rulesOnly out",fieldPath=".paused",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="!self.rulesOnly || self.rollout.maxUnavailable == 1 && !has(self.rollout.maxUnavailableTotal) && self.rollout.maxFailed == 0 && self.rollout.order == ['LastTurn', 'Zone', 'OldestBoot'] && self.rollout.maxTurnsPerDay == 6 && duration(self.rollout.settle) == duration('1m') && duration(self.rollout.backoff) == duration('1m') && duration(self.rollout.backoffMax) == duration('1h') && duration(self.rollout.expectedDuration) == duration('15m') && (!has(self.rollout.windows) || self.rollout.windows.size() == 0) && (!has(self.rollout.blackouts) || self.rollout.blackouts.size() == 0) && self.rollout.onClose == 'Finish' && (!has(self.rollout.gates) || self.rollout.gates.size() == 0) && (!has(self.rollout.after) || self.rollout.after.size() == 0)",message="a policy with rulesOnly adds rules and decides nothing else; leave rollout out, or leave rulesOnly out",fieldPath=".rollout",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="!self.rulesOnly || (!has(self.hooks.beforeDrain) || self.hooks.beforeDrain.size() == 0) && (!has(self.hooks.beforeReboot) || self.hooks.beforeReboot.size() == 0) && (!has(self.hooks.beforeUncordon) || self.hooks.beforeUncordon.size() == 0) && !self.hooks.waitForVolumeDetach",message="a policy with rulesOnly adds rules and decides nothing else; leave hooks out, or leave rulesOnly out",fieldPath=".hooks",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="!self.rulesOnly || duration(self.drain.timeout) == duration('1h') && self.drain.onTimeout == 'Abort' && (!has(self.drain.skip) || self.drain.skip.size() == 0) && (!has(self.drain.block) || self.drain.block.size() == 0) && self.drain.unmanaged == 'Evict' && self.drain.emptyDir == 'Evict' && !has(self.drain.blockTimeout) && self.drain.onBlockTimeout == 'Hold' && !self.drain.excludeFromLoadBalancers && duration(self.drain.loadBalancerDelay) == duration('30s') && !self.drain.disableScaleDown && !self.drain.excludeFromRemediation",message="a policy with rulesOnly adds rules and decides nothing else; leave drain out, or leave rulesOnly out",fieldPath=".drain",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="!self.rulesOnly || duration(self.timeouts.seen) == duration('2m') && duration(self.timeouts.hostHooks) == duration('30m') && duration(self.timeouts.rebooting) == duration('30m') && duration(self.timeouts.applying) == duration('15m') && duration(self.timeouts.uncordoning) == duration('5m')",message="a policy with rulesOnly adds rules and decides nothing else; leave timeouts out, or leave rulesOnly out",fieldPath=".timeouts",reason=FieldValueForbidden
// +kubebuilder:object:generate=true
type DisruptionPolicySpec struct {
	// NodeSelector selects nodes by their labels; the empty one selects all.
	//
	// +optional
	// +kubebuilder:default={}
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In', 'NotIn'] ? has(e.values) && e.values.size() > 0 : e.operator in ['Exists', 'DoesNotExist'] && (!has(e.values) || e.values.size() == 0))",message="expected matchExpressions with the operator In or NotIn and values, or Exists or DoesNotExist and none"
	NodeSelector metav1.LabelSelector `json:"nodeSelector,omitzero"`
	// Priority of this policy over others that select the same node: -1000 to
	// 1000, the higher wins.
	//
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=-1000
	// +kubebuilder:validation:Maximum=1000
	Priority int32 `json:"priority"`
	// RulesOnly is whether the policy adds its rules and decides nothing else about
	// the nodes that it selects, whatever its priority. Such a policy sets only
	// nodeSelector, priority and rules; its priority ranks its rules.
	//
	// +optional
	// +kubebuilder:default=false
	RulesOnly bool `json:"rulesOnly,omitempty"`
	// Mode is Act or Observe. A policy in mode Observe grants no turns, and shows which
	// nodes would get one now.
	//
	// +optional
	// +kubebuilder:default=Act
	Mode PolicyMode `json:"mode"`
	// Paused is whether the policy grants no turns. Turns under way continue.
	//
	// +optional
	// +kubebuilder:default=false
	Paused bool `json:"paused,omitempty"`

	// Rules say what changes cost. A change that no rule names costs a reboot of
	// a drained node; of files and units, hosts watch only those that rules name.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:XValidation:rule="self.all(r, self.exists_one(o, o.source == r.source && has(o.path) == has(r.path) && (!has(o.path) || o.path == r.path) && has(o.unit) == has(r.unit) && (!has(o.unit) || o.unit == r.unit)))",message="two rules have the same source and the same path or unit; expected one rule for each: put their actions together"
	Rules []Rule `json:"rules,omitempty"`
	// Rollout is how fast the nodes may roll.
	//
	// +optional
	// +kubebuilder:default={}
	Rollout RolloutSpec `json:"rollout"`
	// Hooks are the work of other programs that turns wait for.
	//
	// +optional
	// +kubebuilder:default={}
	Hooks HooksSpec `json:"hooks,omitzero"`
	// Drain is how nodes are drained.
	//
	// +optional
	// +kubebuilder:default={}
	Drain DrainSpec `json:"drain"`
	// Timeouts are when the stages of a turn are overdue.
	//
	// +optional
	// +kubebuilder:default={}
	Timeouts PolicyTimeouts `json:"timeouts"`
}

// PolicyMode is whether a policy acts.
//
// +kubebuilder:validation:Enum=Act;Observe
type PolicyMode string

// The modes.
const (
	PolicyModeAct     PolicyMode = "Act"
	PolicyModeObserve PolicyMode = "Observe"
)

// Rule says what a change costs. Its key is its source together with path or
// unit; one policy has at most one rule for a key.
//
// +kubebuilder:validation:XValidation:rule="self.source != 'File' || has(self.path)",message="missing; expected the absolute path of a file or directory in a rule for File",fieldPath=".path",reason=FieldValueRequired
// +kubebuilder:validation:XValidation:rule="self.source in ['File', 'Sentinel'] || !has(self.path)",message="a rule for this source has no path; expected one only with File and Sentinel",fieldPath=".path",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="self.source != 'Unit' || has(self.unit)",message="missing; expected a unit's full name such as containerd.service in a rule for Unit",fieldPath=".unit",reason=FieldValueRequired
// +kubebuilder:validation:XValidation:rule="self.source == 'Unit' || !has(self.unit)",message="a rule for this source has no unit; expected one only with Unit",fieldPath=".unit",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="self.source == 'OSUpdate' || !has(self.holdBack)",message="a rule for this source holds nothing back; expected holdBack only with OSUpdate",fieldPath=".holdBack",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="self.source != 'FleetLock' || self.actions.exists(a, a.type in ['Reboot', 'None'])",message="no Reboot; expected Reboot in a rule for FleetLock, since its client reboots the host; or None, which gives it no permission",fieldPath=".actions"
// +kubebuilder:validation:XValidation:rule="!has(self.drain) || !self.actions.exists(a, a.type == 'Drain')",message="the rule has the action Drain and drain: Never; leave one of them out",fieldPath=".drain"
// +kubebuilder:object:generate=true
type Rule struct {
	// Source of the changes.
	//
	// +kubebuilder:validation:Enum=OSUpdate;Sentinel;File;Unit;Request;FleetLock
	Source Source `json:"source"`
	// Path of a File rule: a file, or a directory for all that is below it. Of a
	// Sentinel rule: the sentinel; without it the rule is for all sentinels.
	// Absolute and clean. The rule of the longest path wins.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule=`self == '/' || self.matches(r'^(/[^/\p{Cc}]+)+$') && !self.matches('/[.][.]?(/|$)')`,message="expected an absolute and clean path such as /etc/containerd: no //, no . or .. between slashes, no / at its end, no control characters"
	Path string `json:"path,omitempty"`
	// Unit of a Unit rule: the name of the systemd unit whose files, drop-ins
	// included, are watched.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^[A-Za-z0-9:_.@\\-]+[.](service|socket|device|mount|automount|swap|target|path|timer|slice|scope)$') && !self.matches(r'^@|@[.][a-z]+$')`,message="expected a unit's full name such as containerd.service; of a template, an instance"
	Unit string `json:"unit,omitempty"`
	// HoldBack, of an OSUpdate rule, is a pattern (as of a shell: * and ?) of OS
	// versions that no node is to be rebooted into.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule=`!self.matches(r'[\[\]\\]')`,message="expected a pattern of OS versions such as 4081.*, where * and ? are all that is special"
	HoldBack string `json:"holdBack,omitempty"`
	// Actions are what the change costs; None is the only entry of its list.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.size() > 0",message="empty; expected at least one action: a change that is to cost nothing has None"
	// +kubebuilder:validation:XValidation:rule="self.size() < 2 || !self.exists(a, a.type == 'None')",message="None is listed with other actions; expected None alone"
	Actions []Action `json:"actions"`
	// Drain Never: a Reboot of this rule needs no drain.
	//
	// +optional
	Drain DrainMode `json:"drain,omitempty"`
}

// DrainMode is whether a rule's reboot drains.
//
// +kubebuilder:validation:Enum=Never
type DrainMode string

// DrainNever: the rule needs no drain.
const DrainNever DrainMode = "Never"

// ActionType is a kind of disruption.
//
// +kubebuilder:validation:Enum=None;Drain;DaemonReload;Reload;Restart;Reboot
type ActionType string

// The actions, in the order in which they are carried out.
const (
	ActionNone         ActionType = "None"
	ActionDrain        ActionType = "Drain"
	ActionDaemonReload ActionType = "DaemonReload"
	ActionReload       ActionType = "Reload"
	ActionRestart      ActionType = "Restart"
	ActionReboot       ActionType = "Reboot"
)

// Action is one disruption.
//
// +kubebuilder:validation:XValidation:rule="!(self.type in ['Reload', 'Restart']) || has(self.unit)",message="missing; expected the full name of the unit to reload or restart",fieldPath=".unit",reason=FieldValueRequired
// +kubebuilder:validation:XValidation:rule="self.type in ['Reload', 'Restart'] || !has(self.unit)",message="this action has no unit; expected one only with Reload and Restart",fieldPath=".unit",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="!has(self.unit) || !(self.unit in ['reboot.target', 'poweroff.target', 'halt.target', 'kexec.target', 'soft-reboot.target', 'exit.target', 'systemd-reboot.service', 'systemd-poweroff.service', 'systemd-halt.service', 'systemd-kexec.service', 'systemd-soft-reboot.service', 'systemd-exit.service', 'runlevel0.target', 'runlevel6.target', 'shutdown.target', 'umount.target', 'final.target', 'ctrl-alt-del.target', 'kbrequest.target', 'sigpwr.target', 'systemd-sysupdate-reboot.service', 'systemd-validatefs.service', 'systemd-battery-check.service'])",message="this unit shuts down or reboots the host without a drain; expected the action Reboot, which drains the node and waits for its turn",fieldPath=".unit"
// +kubebuilder:validation:XValidation:rule="!has(self.unit) || !(self.unit in ['sleep.target', 'suspend.target', 'hibernate.target', 'hybrid-sleep.target', 'suspend-then-hibernate.target', 'systemd-suspend.service', 'systemd-hibernate.service', 'systemd-hybrid-sleep.service', 'systemd-suspend-then-hibernate.service', 'systemd-hibernate-resume.service'])",message="this unit suspends the host; expected another unit: a suspended node is not Ready, and no plan wakes it up",fieldPath=".unit"
// +kubebuilder:validation:XValidation:rule="!has(self.unit) || !(self.unit in ['rescue.target', 'rescue.service', 'emergency.target', 'emergency.service', 'runlevel1.target', 'local-fs.target', 'systemd-fsck-root.service', 'system-update.target', 'system-install.target', 'systemd-sysinstall.service', 'factory-reset.target', 'systemd-factory-reset.service', 'storage-target-mode.target', 'systemd-storagetm.service', 'initrd.target'] || self.unit.startsWith('system-update-') || self.unit.startsWith('factory-reset-') || self.unit.startsWith('systemd-factory-reset-') || self.unit.startsWith('initrd-') || self.unit.startsWith('breakpoint-'))",message="this unit takes the host to a rescue, update, installation or initrd state; expected another unit, or the action Reboot, which drains the node and waits for its turn",fieldPath=".unit"
// +kubebuilder:validation:XValidation:rule="!has(self.unit) || self.unit != 'sysinit.target'",message="this unit is required by nearly every unit of the host, and they would all be restarted with it; expected the units that are meant, or the action Reboot, which drains the node and waits for its turn",fieldPath=".unit"
// +kubebuilder:validation:XValidation:rule="!has(self.unit) || !(self.type == 'Restart' && self.unit in ['dbus.service', 'dbus.socket', 'dbus-broker.service'])",message="this unit carries the host's message bus, and its restart disconnects logind and every other service; expected Reload of dbus.service, or the action Reboot, which drains the node and waits for its turn",fieldPath=".unit"
// +kubebuilder:object:generate=true
type Action struct {
	// Type of the disruption: what happens to the node or the unit.
	Type ActionType `json:"type"`
	// Unit is the systemd unit of Reload and Restart.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^[A-Za-z0-9:_.@\\-]+[.](service|socket|device|mount|automount|swap|target|path|timer|slice|scope)$') && !self.matches(r'^@|@[.][a-z]+$')`,message="expected a unit's full name such as containerd.service; of a template, an instance"
	Unit string `json:"unit,omitempty"`
}

// RolloutSpec is how fast the nodes of a policy may roll.
//
// +kubebuilder:validation:XValidation:rule="!has(self.backoff) || !has(self.backoffMax) || !self.backoff.matches('^([0-9]{1,6}([.][0-9]{1,9})?(h|m|s|ms)){1,4}$') || !self.backoffMax.matches('^([0-9]{1,6}([.][0-9]{1,9})?(h|m|s|ms)){1,4}$') || duration(self.backoff) > duration('24h') || duration(self.backoffMax) >= duration(self.backoff)",message="shorter than backoff; expected backoff or more, up to 24h",fieldPath=".backoffMax"
// +kubebuilder:validation:XValidation:rule="!has(self.expectedDuration) || !self.expectedDuration.matches('^([0-9]{1,6}([.][0-9]{1,9})?(h|m|s|ms)){1,4}$') || !has(self.windows) || self.windows.all(w, !w.duration.matches('^([0-9]{1,6}([.][0-9]{1,9})?(h|m|s|ms)){1,4}$') || duration(w.duration) >= duration(self.expectedDuration))",message="a window is shorter than expectedDuration, so no turn would ever begin in it; expected longer windows or a shorter expectedDuration",fieldPath=".windows"
// +kubebuilder:object:generate=true
type RolloutSpec struct {
	// MaxUnavailable is how many of the policy's nodes may be unavailable at
	// once, for any reason: a number of 1 to 10000, or a percentage of 1%
	// to 100%, rounded down to no less than one node.
	//
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 && self <= 10000 : self.matches('^([1-9][0-9]?|100)%$')",message="expected a number of 1 to 10000, or a percentage of \"1%\" to \"100%\""
	MaxUnavailable intstr.IntOrString `json:"maxUnavailable"`
	// MaxUnavailableTotal is the same for all nodes of all policies; the
	// smallest value of all policies applies.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 && self <= 10000 : self.matches('^([1-9][0-9]?|100)%$')",message="expected a number of 1 to 10000, or a percentage of \"1%\" to \"100%\""
	MaxUnavailableTotal *intstr.IntOrString `json:"maxUnavailableTotal,omitempty"`
	// MaxFailed is how many failed nodes, not cleared by retry, are tolerated:
	// with one more, the policy grants no turns. 0 to 10000.
	//
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	MaxFailed int32 `json:"maxFailed"`
	// Order decides whose turn is next; the first key counts most. If LastTurn is
	// not among the keys, it comes before them. The coordinator's own host comes
	// last in any order.
	//
	// +optional
	// +kubebuilder:default={LastTurn,Zone,OldestBoot}
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4
	Order []OrderKey `json:"order"`
	// MaxTurnsPerDay is the most turns that a node is granted within 24 hours,
	// whatever their results. A node that has had that many is held with TurnLimit
	// until 24 hours after the first of them began. 1 to 48.
	//
	// +optional
	// +kubebuilder:default=6
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=48
	MaxTurnsPerDay int32 `json:"maxTurnsPerDay"`
	// Settle is the least time from the end of a turn, or the creation of a
	// Node, to the next grant. 0s to 24h.
	//
	// +optional
	// +kubebuilder:default="1m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(h|m|s|ms)){1,4}$') && duration(self) <= duration('24h')",message="expected a duration of 0s to 24h, such as 90s or 1h30m"
	Settle metav1.Duration `json:"settle"`
	// Backoff is how long a node that was backed out waits; it doubles each
	// time, up to backoffMax. 1s to 24h.
	//
	// +optional
	// +kubebuilder:default="1m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(h|m|s|ms)){1,4}$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="expected a duration of 1s to 24h, such as 90s or 1h30m"
	Backoff metav1.Duration `json:"backoff"`
	// BackoffMax is the longest that such a node waits: backoff to 24h.
	//
	// +optional
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(h|m|s|ms)){1,4}$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="expected a duration of 1s to 24h, such as 90s or 1h30m"
	BackoffMax metav1.Duration `json:"backoffMax"`

	// ExpectedDuration is how long a turn takes: one begins only if that fits
	// into the window. 1m to 24h.
	//
	// +optional
	// +kubebuilder:default="15m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(h|m|s|ms)){1,4}$') && duration(self) >= duration('1m') && duration(self) <= duration('24h')",message="expected a duration of 1m to 24h, such as 15m or 1h30m"
	ExpectedDuration metav1.Duration `json:"expectedDuration"`
	// Windows are when turns may begin; without any, turns may begin at any time.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Windows []Window `json:"windows,omitempty"`
	// Blackouts are when no turn begins, whatever the windows say. As at the end of a
	// window, a turn begins only if expectedDuration fits in before a blackout. At
	// most 50.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=50
	Blackouts []Blackout `json:"blackouts,omitempty"`
	// OnClose is what happens to a turn when the last open window closes, or a blackout
	// begins.
	//
	// +optional
	// +kubebuilder:default=Finish
	OnClose OnClose `json:"onClose"`
	// Gates must all be open for a turn to begin.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Gates []Gate `json:"gates,omitempty"`
	// After are the policies whose nodes come first. A node is granted a turn for an OS
	// version only when all nodes of each of these policies have run that version for the
	// given time. At most 8.
	//
	// +optional
	// +listType=map
	// +listMapKey=policy
	// +kubebuilder:validation:MaxItems=8
	After []AfterPolicy `json:"after,omitempty"`
}

// MaxAfter is the maximum number of [RolloutSpec.After].
const MaxAfter = 8

// AfterPolicy is a policy whose nodes run an OS version first: the canaries.
//
// +kubebuilder:object:generate=true
type AfterPolicy struct {
	// Policy is the name of another policy, which must decide about at least one node.
	//
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="expected the name of a policy: lower-case letters, digits, - and ."
	Policy string `json:"policy"`
	// For is how long each node of that policy must have run the OS version: since it
	// booted it, was Ready and was in no turn. 0s to 720h.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(h|m|s|ms)){1,4}$') && duration(self) <= duration('720h')",message="expected a duration of 0s to 720h, such as 24h or 1h30m"
	For metav1.Duration `json:"for"`
}

// OrderKey is what nodes are put in order by.
//
// +kubebuilder:validation:Enum=LastTurn;Zone;OldestBoot;Name
type OrderKey string

// The keys.
const (
	// OrderLastTurn: nodes that had a turn within the last 24 hours come after
	// all others; of these, the one whose turn ended first comes first. A host
	// that always wants another turn cannot keep the others waiting.
	OrderLastTurn OrderKey = "LastTurn"
	// OrderZone: by the label topology.kubernetes.io/zone, zone after zone.
	OrderZone OrderKey = "Zone"
	// OrderOldestBoot: the host that says that it booted longest ago comes first.
	OrderOldestBoot OrderKey = "OldestBoot"
	// OrderName: by the Node's name.
	OrderName OrderKey = "Name"
)

// MaxTurnsPerDay is the maximum of [RolloutSpec.MaxTurnsPerDay].
const MaxTurnsPerDay = 48

// OnClose is what happens to turns under way when a window closes or a blackout begins.
//
// +kubebuilder:validation:Enum=Finish;Cancel
type OnClose string

// What can become of them.
const (
	// OnCloseFinish: they continue.
	OnCloseFinish OnClose = "Finish"
	// OnCloseCancel: those that have not committed to a reboot or apply are
	// backed out.
	OnCloseCancel OnClose = "Cancel"
)

// Day is a day of the week.
//
// +kubebuilder:validation:Enum=Mon;Tue;Wed;Thu;Fri;Sat;Sun
type Day string

// The days.
const (
	Monday    Day = "Mon"
	Tuesday   Day = "Tue"
	Wednesday Day = "Wed"
	Thursday  Day = "Thu"
	Friday    Day = "Fri"
	Saturday  Day = "Sat"
	Sunday    Day = "Sun"
)

// Window is a time in each week.
//
// +kubebuilder:object:generate=true
type Window struct {
	// Days on which the window opens; without any, every day. A window that crosses
	// midnight belongs to the day on which it opens.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=7
	Days []Day `json:"days,omitempty"`
	// Start is the local time in timeZone at which the window opens, 00:00 to 23:59.
	//
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^([01][0-9]|2[0-3]):[0-5][0-9]$')",message="expected a time of the day, 00:00 to 23:59"
	Start string `json:"start"`
	// Duration is how long the window is open, in elapsed time: 10m to 24h.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(h|m|s|ms)){1,4}$') && duration(self) >= duration('10m') && duration(self) <= duration('24h')",message="expected a duration of 10m to 24h, such as 4h or 90m"
	Duration metav1.Duration `json:"duration"`
	// TimeZone is a name of the IANA time zone database.
	//
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self != 'Local' && self != 'localtime' && self != 'posixrules' && self.matches('^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$')",message="expected a name of the IANA time zone database, such as Europe/Berlin or UTC"
	TimeZone string `json:"timeZone"`
}

// MaxBlackouts is how many blackouts a policy may have, and MaxBlackoutReason how long the
// reason of one may be, in characters.
const (
	MaxBlackouts      = 50
	MaxBlackoutReason = 200
)

// Blackout is a period in which no turn begins, from a day or time to another one.
//
// +kubebuilder:validation:XValidation:rule="!(self.start.size() in [10, 16]) || !(self.end.size() in [10, 16]) || (self.start.size() > 10 ? self.start : self.start + 'T00:00') < (self.end.size() > 10 ? self.end : self.end + 'T24:00')",message="not after start; expected the last day of the blackout, or a later time",fieldPath=".end"
// +kubebuilder:object:generate=true
type Blackout struct {
	// Start is the first day, such as 2026-12-20, or the local time in timeZone at which
	// the blackout begins, such as 2026-12-24T18:00. Of a time that the clock shows
	// twice, it is the first.
	//
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^20[0-9][0-9]-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))(T([01][0-9]|2[0-3]):[0-5][0-9])?$|^20([02468][048]|[13579][26])-02-29(T([01][0-9]|2[0-3]):[0-5][0-9])?$')",message="expected a day such as 2026-12-24, or a time such as 2026-12-24T18:00, of the years 2000 to 2099"
	Start string `json:"start"`
	// End is the last day, which the blackout includes, or the local time in timeZone at
	// which the blackout ends. Of a time that the clock shows twice, it is the second.
	//
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^20[0-9][0-9]-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))(T([01][0-9]|2[0-3]):[0-5][0-9])?$|^20([02468][048]|[13579][26])-02-29(T([01][0-9]|2[0-3]):[0-5][0-9])?$')",message="expected a day such as 2026-12-24, or a time such as 2026-12-24T18:00, of the years 2000 to 2099"
	End string `json:"end"`
	// TimeZone is a name of the IANA time zone database.
	//
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self != 'Local' && self != 'localtime' && self != 'posixrules' && self.matches('^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$')",message="expected a name of the IANA time zone database, such as Europe/Berlin or UTC"
	TimeZone string `json:"timeZone"`
	// Reason is for people: one line of at most 200 characters.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=200
	// +kubebuilder:validation:XValidation:rule=`!self.matches(r'[\p{C}\x{2028}\x{2029}]')`,message="expected one line of printable characters"
	Reason string `json:"reason,omitempty"`
}

// Gate is a query that must return nothing.
//
// +kubebuilder:object:generate=true
type Gate struct {
	// Name of the gate, for people: a DNS label.
	//
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?$')",message="expected a DNS label: lower-case letters, digits and -, with a letter or digit at both ends"
	Name string `json:"name"`
	// Query is a Prometheus query for the server that the coordinators' files
	// name. The gate is open while the answer is an empty vector. A query that
	// fails closes it.
	//
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self.trim() != ''",message="empty; expected a query of Prometheus that returns nothing while turns may begin"
	Query string `json:"query"`
}

// HooksSpec is the work of other programs that a turn waits for. A name is in one
// stage only.
//
// +kubebuilder:validation:XValidation:rule="!has(self.beforeDrain) || !has(self.beforeReboot) || self.beforeDrain.all(a, !self.beforeReboot.exists(b, a.name == b.name))",message="beforeDrain and beforeReboot have the same name; expected each name in one stage only: rename one of them",fieldPath=".beforeReboot"
// +kubebuilder:validation:XValidation:rule="!has(self.beforeDrain) || !has(self.beforeUncordon) || self.beforeDrain.all(a, !self.beforeUncordon.exists(b, a.name == b.name))",message="beforeDrain and beforeUncordon have the same name; expected each name in one stage only: rename one of them",fieldPath=".beforeUncordon"
// +kubebuilder:validation:XValidation:rule="!has(self.beforeReboot) || !has(self.beforeUncordon) || self.beforeReboot.all(a, !self.beforeUncordon.exists(b, a.name == b.name))",message="beforeReboot and beforeUncordon have the same name; expected each name in one stage only: rename one of them",fieldPath=".beforeUncordon"
// +kubebuilder:object:generate=true
type HooksSpec struct {
	// BeforeDrain are the hooks that a turn waits for before any pod is evicted.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	BeforeDrain []HookSpec `json:"beforeDrain,omitempty"`
	// BeforeReboot are the hooks that a turn waits for when the node is drained, before
	// it reboots.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	BeforeReboot []HookSpec `json:"beforeReboot,omitempty"`
	// BeforeUncordon are the hooks that a turn waits for before pods may come back. If a
	// turn is backed out, they undo what the other hooks did.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	BeforeUncordon []UncordonHookSpec `json:"beforeUncordon,omitempty"`
	// WaitForVolumeDetach: no reboot before the Node's status.volumesAttached
	// is empty.
	//
	// +optional
	// +kubebuilder:default=false
	WaitForVolumeDetach bool `json:"waitForVolumeDetach,omitempty"`
}

// HookSpec is a hook of before-drain or before-reboot.
//
// +kubebuilder:object:generate=true
type HookSpec struct {
	// Name of the hook; the annotation hook.lockkeeper.dev/<name> confirms.
	//
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$')",message="expected the part of an annotation key after the slash: letters, digits, _ . and -, with a letter or digit at both ends"
	Name string `json:"name"`
	// Timeout is 1s to 168h.
	//
	// +optional
	// +kubebuilder:default="30m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(h|m|s|ms)){1,4}$') && duration(self) >= duration('1s') && duration(self) <= duration('168h')",message="expected a duration of 1s to 168h, such as 15m or 1h30m"
	Timeout metav1.Duration `json:"timeout"`
	// OnTimeout is what happens after the timeout: Wait, Continue or Abort.
	//
	// +optional
	// +kubebuilder:default=Abort
	// +kubebuilder:validation:Enum=Wait;Continue;Abort
	OnTimeout OnTimeout `json:"onTimeout"`
}

// UncordonHookSpec is a hook of before-uncordon, where turns that are aborted go.
//
// +kubebuilder:object:generate=true
type UncordonHookSpec struct {
	// Name of the hook; the annotation hook.lockkeeper.dev/<name> confirms.
	//
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$')",message="expected the part of an annotation key after the slash: letters, digits, _ . and -, with a letter or digit at both ends"
	Name string `json:"name"`
	// Timeout is 1s to 168h.
	//
	// +optional
	// +kubebuilder:default="30m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(h|m|s|ms)){1,4}$') && duration(self) >= duration('1s') && duration(self) <= duration('168h')",message="expected a duration of 1s to 168h, such as 15m or 1h30m"
	Timeout metav1.Duration `json:"timeout"`
	// OnTimeout is what happens after the timeout: Wait or Continue.
	//
	// +optional
	// +kubebuilder:default=Wait
	// +kubebuilder:validation:Enum=Wait;Continue
	OnTimeout OnTimeout `json:"onTimeout"`
}

// DrainSpec is how nodes are drained, and which programs leave them alone meanwhile.
//
// +kubebuilder:validation:XValidation:rule="!has(self.onBlockTimeout) || self.onBlockTimeout != 'Evict' || has(self.blockTimeout)",message="missing; expected a duration of 1m to 168h with onBlockTimeout: Evict",fieldPath=".blockTimeout",reason=FieldValueRequired
// +kubebuilder:validation:XValidation:rule="!has(self.excludeFromLoadBalancers) || !self.excludeFromLoadBalancers || !has(self.loadBalancerDelay) || !has(self.timeout) || duration(self.loadBalancerDelay) < duration(self.timeout)",message="the delay is not shorter than the timeout of the drain, of which it is a part; expected a shorter loadBalancerDelay or a longer timeout",fieldPath=".loadBalancerDelay"
// +kubebuilder:object:generate=true
type DrainSpec struct {
	// Timeout is 1s to 168h.
	//
	// +optional
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(h|m|s|ms)){1,4}$') && duration(self) >= duration('1s') && duration(self) <= duration('168h')",message="expected a duration of 1s to 168h, such as 15m or 1h30m"
	Timeout metav1.Duration `json:"timeout"`
	// OnTimeout is what happens after the timeout: Wait, Abort, or Force, which
	// deletes the pods that cannot be evicted, whatever PodDisruptionBudgets say.
	//
	// +optional
	// +kubebuilder:default=Abort
	// +kubebuilder:validation:Enum=Wait;Abort;Force
	OnTimeout OnTimeout `json:"onTimeout"`
	// BlockTimeout is how long pods that block may keep a node from its turn, 1m to 168h;
	// without it, indefinitely. The time begins when the host finds such pods, and begins
	// again when there were none in between. OnBlockTimeout says what follows.
	//
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(h|m|s|ms)){1,4}$') && duration(self) >= duration('1m') && duration(self) <= duration('168h')",message="expected a duration of 1m to 168h, such as 24h or 90m"
	BlockTimeout *metav1.Duration `json:"blockTimeout,omitempty"`
	// OnBlockTimeout is what happens after blockTimeout: Hold, which changes nothing, or
	// Evict: in the node's next turn, block and the value Block are ignored, and the pods
	// are evicted like others.
	//
	// +optional
	// +kubebuilder:default=Hold
	OnBlockTimeout OnBlockTimeout `json:"onBlockTimeout,omitempty"`
	PodRules       `json:",inline"`
	Exclusions     `json:",inline"`
}

// OnBlockTimeout is what happens when pods have blocked a node for longer than the policy
// allows. "" is Hold.
//
// +kubebuilder:validation:Enum=Hold;Evict
type OnBlockTimeout string

// The values of OnBlockTimeout.
const (
	// OnBlockTimeoutHold: the pods continue to block.
	OnBlockTimeoutHold OnBlockTimeout = "Hold"
	// OnBlockTimeoutEvict: no pod blocks in the node's next turn.
	OnBlockTimeoutEvict OnBlockTimeout = "Evict"
)

// PodRules are the pods that a drain does not simply evict. A pod that Block selects blocks,
// whatever else is said of it; then Skip counts, then Unmanaged and EmptyDir: Block in one of
// them comes before Skip in the other.
//
// +kubebuilder:object:generate=true
type PodRules struct {
	// Skip are pods that stay on the node, as a DaemonSet's do.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Skip []PodSelector `json:"skip,omitempty"`
	// Block are pods that are never evicted. A node gets no turn that drains until they are
	// gone by themselves, and a drain that has begun waits for those that come later.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Block []PodSelector `json:"block,omitempty"`
	// Unmanaged is what happens to pods that no controller creates again: Evict,
	// Block or Skip. With Skip they stay on the node, and its kubelet ends and
	// restarts them with the reboot.
	//
	// +optional
	// +kubebuilder:default=Evict
	Unmanaged PodRule `json:"unmanaged,omitempty"`
	// EmptyDir is what happens to pods with emptyDir volumes: Evict, Block or
	// Skip. An eviction deletes their data. A reboot does not, except for data
	// in memory (medium: Memory).
	//
	// +optional
	// +kubebuilder:default=Evict
	EmptyDir PodRule `json:"emptyDir,omitempty"`
}

// PodRule is what a drain does with pods of one kind. "" is Evict.
//
// +kubebuilder:validation:Enum=Evict;Block;Skip
type PodRule string

// The rules.
const (
	// PodEvict: the pods are evicted.
	PodEvict PodRule = "Evict"
	// PodBlock: as for the pods in PodRules.Block.
	PodBlock PodRule = "Block"
	// PodSkip: the pods stay on the node.
	PodSkip PodRule = "Skip"
)

// PodSelector selects pods.
//
// +kubebuilder:object:generate=true
type PodSelector struct {
	// Namespace of the pods; if it is missing, pods of all namespaces.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?$')",message="expected the name of a namespace"
	Namespace string `json:"namespace,omitempty"`
	// Selector by labels; the empty one selects all pods.
	//
	// +optional
	// +kubebuilder:default={}
	Selector metav1.LabelSelector `json:"selector,omitzero"`
}

// PolicyTimeouts are how long the stages of a turn may take before they are
// overdue: 1s to 168h.
//
// +kubebuilder:object:generate=true
type PolicyTimeouts struct {
	// Seen is how long a host may take to report that it has seen its turn; after
	// that, the turn is taken back.
	//
	// +optional
	// +kubebuilder:default="2m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(h|m|s|ms)){1,4}$') && duration(self) >= duration('1s') && duration(self) <= duration('168h')",message="expected a duration of 1s to 168h, such as 15m or 1h30m"
	Seen metav1.Duration `json:"seen"`
	// HostHooks is how long the hook units of a host may take in a stage. After that
	// the turn is backed out, except in before-uncordon, where it keeps waiting.
	//
	// +optional
	// +kubebuilder:default="30m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(h|m|s|ms)){1,4}$') && duration(self) >= duration('1s') && duration(self) <= duration('168h')",message="expected a duration of 1s to 168h, such as 15m or 1h30m"
	HostHooks metav1.Duration `json:"hostHooks"`
	// Rebooting is how long a host may take to reboot and to prove its health. After
	// that, a turn whose host has not committed to the reboot is backed out, unless
	// drain.onTimeout is Wait. Otherwise the node is held as Overdue, and the turn
	// keeps waiting.
	//
	// +optional
	// +kubebuilder:default="30m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(h|m|s|ms)){1,4}$') && duration(self) >= duration('1s') && duration(self) <= duration('168h')",message="expected a duration of 1s to 168h, such as 15m or 1h30m"
	Rebooting metav1.Duration `json:"rebooting"`
	// Applying is how long a host may take to reload and restart units. After that,
	// the same happens as in rebooting.
	//
	// +optional
	// +kubebuilder:default="15m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(h|m|s|ms)){1,4}$') && duration(self) >= duration('1s') && duration(self) <= duration('168h')",message="expected a duration of 1s to 168h, such as 15m or 1h30m"
	Applying metav1.Duration `json:"applying"`
	// Uncordoning is how long a host may take to undo its cordon. After that the node
	// is held as Overdue, and the turn keeps waiting.
	//
	// +optional
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(h|m|s|ms)){1,4}$') && duration(self) >= duration('1s') && duration(self) <= duration('168h')",message="expected a duration of 1s to 168h, such as 15m or 1h30m"
	Uncordoning metav1.Duration `json:"uncordoning"`
}

// Conditions of a policy.
const (
	// ConditionValid: the policy can be understood. What is wrong with it is in
	// the message, field by field.
	ConditionValid = "Valid"
	// ConditionProgressing: nodes of the policy want something and get turns. If
	// not, the reason is why not.
	ConditionProgressing = "Progressing"
	// ConditionHalted: more nodes have failed than maxFailed allows.
	ConditionHalted = "Halted"
)

// DisruptionPolicyStatus is how far the nodes are that take their rollout from
// the policy. The coordinator writes it; no decision uses it.
//
// +kubebuilder:object:generate=true
type DisruptionPolicyStatus struct {
	// ObservedGeneration is the metadata.generation that the status is about.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions are Valid, Progressing and Halted.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Nodes are counts of the nodes whose rollout this policy decides.
	//
	// +optional
	Nodes PolicyNodes `json:"nodes,omitzero"`
	// EffectiveRules are the rules in force on those nodes, of this and of other
	// policies, at most 100. Of a policy with rulesOnly, they are those of its own
	// rules that are in force on any managed node.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	EffectiveRules []EffectiveRule `json:"effectiveRules,omitempty"`
}

// PolicyNodes are counts of nodes.
//
// +kubebuilder:object:generate=true
type PolicyNodes struct {
	// Selected is the number of these nodes.
	Selected int32 `json:"selected"`
	// UpToDate want nothing, and are in no turn.
	UpToDate int32 `json:"upToDate"`
	// Wanting want something.
	Wanting int32 `json:"wanting"`
	// InTurn are in a turn.
	InTurn int32 `json:"inTurn"`
	// Unavailable are in a turn, not Ready or cordoned by any user.
	Unavailable int32 `json:"unavailable"`
	// Failed are those whose last turn failed, and was not cleared.
	Failed int32 `json:"failed"`
	// Allowed is maxUnavailable as a number.
	Allowed int32 `json:"allowed"`
}

// EffectiveRule is a rule that is in force on nodes.
//
// +kubebuilder:object:generate=true
type EffectiveRule struct {
	// Key is the rule's key: its source, and its path or unit.
	Key string `json:"key"`
	// Policy that the rule is from.
	Policy string `json:"policy"`
	// Actions in the form "Restart containerd.service".
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Actions []string `json:"actions"`
	// Nodes is the number of nodes on which the rule is in force.
	Nodes int32 `json:"nodes"`
}
