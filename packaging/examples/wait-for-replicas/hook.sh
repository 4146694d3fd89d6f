#!/bin/sh
# A hook of before-drain: no drain begins while a Deployment or StatefulSet that has a pod on this node lacks replicas
# elsewhere. Of three replicas, one of them here, two have to be available on other nodes.
#
# In a pod of the DaemonSet it confirms with the turn's ID. As a unit of the host (without HOOK) its exit is the confirmation.
# It needs a POSIX shell, awk and kubectl. Its environment:
#   NODE_NAME     this node's name
#   SELECTOR      the label selector of the Deployments and StatefulSets that count; "" selects all
#   HOOK          the hook's name in the policy; not set on a host
#   POLL_SECONDS  the pause between two reads
set -u
: "${NODE_NAME:?must be the name of this node}"
SELECTOR=${SELECTOR-} HOOK=${HOOK-} POLL_SECONDS=${POLL_SECONDS:-10}

say() { echo "$*" >&2; }
ask() { kubectl --request-timeout=10s "$@"; }
pause() { sleep "$POLL_SECONDS" & wait $!; }

# Pods that terminate and pods that have finished do not count as replicas.
# shellcheck disable=SC2016 # the dollars are the template's
PODS='{{range .items}}{{$pod := .metadata}}{{$conditions := .status.conditions}}{{if not $pod.deletionTimestamp -}}
{{range $pod.ownerReferences}}{{if and .controller (or (eq .kind "ReplicaSet") (eq .kind "StatefulSet")) -}}
pod {{$pod.namespace}} {{.kind}} {{.name}} {{or (index $pod.labels "pod-template-hash") "-"}}{{range $conditions}}{{if eq .type "Ready"}} {{.status}}{{end}}{{end}}
{{end}}{{end}}{{end}}{{end}}'
WORKLOADS='{{range .items -}}
workload {{.metadata.namespace}} {{.kind}} {{.metadata.name}} {{.spec.replicas}} {{or .status.availableReplicas 0}} {{.metadata.generation}} {{or .status.observedGeneration 0}}
{{end}}'

# lacking prints the workloads that have too few replicas elsewhere. It fails if it cannot read them.
lacking() {
	here=$(ask get pods --all-namespaces --output "go-template=$PODS" \
		--field-selector "spec.nodeName=$NODE_NAME,status.phase!=Succeeded,status.phase!=Failed") || return
	workloads=$(ask get deployments,statefulsets --all-namespaces --selector "$SELECTOR" --output "go-template=$WORKLOADS") || return
	printf '%s\n%s\n' "$here" "$workloads" | awk '
		$1 == "pod" {
			if ($3 == "ReplicaSet") { # a Deployment names its ReplicaSets after itself and the hash of the template
				$3 = "Deployment"
				sub("-" $5 "$", "", $4)
			}
			here[$2, $3, $4]++
			if ($6 == "True") ready[$2, $3, $4]++
		}
		$1 == "workload" && here[$2, $3, $4] {
			need = $5 - here[$2, $3, $4]
			elsewhere = $6 - ready[$2, $3, $4]
			if (elsewhere < 0) elsewhere = 0
			if ($7 != $8) print $3 " " $2 "/" $4 " has just been changed"
			else if (elsewhere < need) print $3 " " $2 "/" $4 " has " elsewhere " of " need " replicas available elsewhere"
		}'
}

# ready reports whether all workloads have enough replicas elsewhere, and logs each change.
logged=
ready() {
	if ! lack=$(lacking); then
		say "cannot read the replicas; tries again in $POLL_SECONDS s"
		return 1
	fi
	[ "$lack" = "$logged" ] || say "waiting: ${lack:-all replicas are available again}"
	logged=$lack
	[ -z "$lack" ]
}

if [ -z "$HOOK" ]; then
	until ready; do pause; done
	exit 0
fi

# Process 1 of a container ignores signals for which it has no handler, and a shell runs a handler only while it waits.
trap 'exit 0' TERM INT

# read_node reads the node's state and turn, and for which turn this hook has confirmed.
read_node() {
	node=$(ask get node "$NODE_NAME" --output "go-template={{with .metadata}}{{.resourceVersion}} {{or (index .labels \"lockkeeper.dev/state\") \"-\"}} {{or (index .annotations \"lockkeeper.dev/turn\") \"-\"}} {{or (index .annotations \"hook.lockkeeper.dev/$HOOK\") \"-\"}}{{end}}") || return
	read -r version state turn confirmed <<-END
		$node
	END
}

# confirm confirms the hook, unless the Node has changed since read_node: the turn may have ended.
confirm() {
	ask patch node "$NODE_NAME" --type merge --patch \
		"{\"metadata\":{\"resourceVersion\":\"$version\",\"annotations\":{\"hook.lockkeeper.dev/$HOOK\":\"$turn\"}}}" >/dev/null &&
		say "confirmed for turn $turn"
}

# This process handles one turn. The next turn has a process of its own.
until read_node; do pause; done
mine=$turn
while [ "$turn" = "$mine" ] && [ "$state" = before-drain ]; do
	if [ "$confirmed" != "$mine" ] && ready && read_node && [ "$turn" = "$mine" ] && [ "$state" = before-drain ]; then
		confirm
	fi
	pause
	until read_node; do pause; done
done
say "turn $mine is not in before-drain, or no longer: the node is in $state"
pause
