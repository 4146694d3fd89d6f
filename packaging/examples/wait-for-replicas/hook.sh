#!/bin/sh
# A hook of before-drain: no drain begins while a Deployment or StatefulSet that has a pod on this node lacks replicas
# elsewhere. Of three replicas, one of them here, two have to be available on other nodes.
#
# In a pod of the DaemonSet it confirms with the turn's id. As a unit of the host (without HOOK) its end is the confirmation.
# It needs a POSIX shell, awk and kubectl, and is told:
#   NODE_NAME     this node
#   SELECTOR      the label selector of the Deployments and StatefulSets that count; "" is all
#   HOOK          the hook's name in the policy; none on a host
#   POLL_SECONDS  how long to wait between two looks
set -u
: "${NODE_NAME:?is to be the name of this node}"
SELECTOR=${SELECTOR-} HOOK=${HOOK-} POLL_SECONDS=${POLL_SECONDS:-10}

say() { echo "$*" >&2; }
ask() { kubectl --request-timeout=10s "$@"; }
pause() { sleep "$POLL_SECONDS" & wait $!; }

# Pods that are going, and those that have run to their end, are nobody's replicas any more.
# shellcheck disable=SC2016 # the dollars are the template's
PODS='{{range .items}}{{$pod := .metadata}}{{$conditions := .status.conditions}}{{if not $pod.deletionTimestamp -}}
{{range $pod.ownerReferences}}{{if and .controller (or (eq .kind "ReplicaSet") (eq .kind "StatefulSet")) -}}
pod {{$pod.namespace}} {{.kind}} {{.name}} {{or (index $pod.labels "pod-template-hash") "-"}}{{range $conditions}}{{if eq .type "Ready"}} {{.status}}{{end}}{{end}}
{{end}}{{end}}{{end}}{{end}}'
WORKLOADS='{{range .items -}}
workload {{.metadata.namespace}} {{.kind}} {{.metadata.name}} {{.spec.replicas}} {{or .status.availableReplicas 0}} {{.metadata.generation}} {{or .status.observedGeneration 0}}
{{end}}'

# lacking prints what has too few replicas elsewhere. It fails when that cannot be told.
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

# ready reports whether nothing is lacking, and tells when that changes.
told=
ready() {
	if ! lack=$(lacking); then
		say "cannot tell how the replicas are: that is looked at again in $POLL_SECONDS s"
		return 1
	fi
	[ "$lack" = "$told" ] || say "waiting: ${lack:-nothing is lacking any more}"
	told=$lack
	[ -z "$lack" ]
}

if [ -z "$HOOK" ]; then
	until ready; do pause; done
	exit 0
fi

# A shell that is process 1 of its container ends at a signal only if it says so, and hears it only while it waits.
trap 'exit 0' TERM INT

# look reads where the node is in its turn, and what this hook has said.
look() {
	node=$(ask get node "$NODE_NAME" --output "go-template={{with .metadata}}{{.resourceVersion}} {{or (index .labels \"lockkeeper.dev/state\") \"-\"}} {{or (index .annotations \"lockkeeper.dev/turn\") \"-\"}} {{or (index .annotations \"hook.lockkeeper.dev/$HOOK\") \"-\"}}{{end}}") || return
	read -r version state turn said <<-END
		$node
	END
}

# confirm says that the hook's work is done, of the Node that was looked at and of no later one: the turn may have ended since.
confirm() {
	ask patch node "$NODE_NAME" --type merge --patch \
		"{\"metadata\":{\"resourceVersion\":\"$version\",\"annotations\":{\"hook.lockkeeper.dev/$HOOK\":\"$turn\"}}}" >/dev/null &&
		say "confirmed for turn $turn"
}

# One process, one turn: whatever comes later, a process that is started then looks after it.
until look; do pause; done
mine=$turn
while [ "$turn" = "$mine" ] && [ "$state" = before-drain ]; do
	if [ "$said" != "$mine" ] && ready && look && [ "$turn" = "$mine" ] && [ "$state" = before-drain ]; then
		confirm
	fi
	pause
	until look; do pause; done
done
say "turn $mine is not in before-drain, or not any more: the node is in $state"
pause
