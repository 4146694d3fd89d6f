#!/bin/sh
# A hook of before-reboot and of before-uncordon. It posts {"node":…,"stage":…,"turn":…} to a URL until the server answers with
# success. Then the turn continues. The server may receive the same stage twice, and can tell by turn and stage.
#
# In a pod of the DaemonSet it confirms with the turn's ID. As a unit of the host (with STAGE) its exit is the confirmation.
# It needs a POSIX shell and curl, and in a pod kubectl. Its environment:
#   WEBHOOK_URL   the URL to post to
#   NODE_NAME     this node's name; on a host, lockkeeper knows it
#   STAGE         on a host: the stage of this unit. In a pod it is not set, and the script reads the Node
#   POLL_SECONDS  the pause between two attempts
set -u
: "${WEBHOOK_URL:?must be the URL to post to}"
NODE_NAME=${NODE_NAME-} STAGE=${STAGE-} POLL_SECONDS=${POLL_SECONDS:-10}

say() { echo "$*" >&2; }
pause() { sleep "$POLL_SECONDS" & wait $!; }

# post sends node, stage and turn. None of them contains a character that JSON has to escape. The URL may contain a secret, so
# it is not an argument, which the list of processes would show.
post() {
	printf 'url = "%s"\n' "$WEBHOOK_URL" |
		curl --config - --silent --show-error --fail --max-time 10 --output /dev/null --header 'Content-Type: application/json' \
			--data "{\"node\":\"$NODE_NAME\",\"stage\":\"$state\",\"turn\":\"$turn\"}" &&
		say "posted that $NODE_NAME is in $state of turn $turn"
}

if [ -n "$STAGE" ]; then
	field() { lockkeeper status --output json | sed -n "s/^ *\"$1\": \"\([^\"]*\)\",*\$/\1/p" | head -n 1; }
	state=$(field state) turn=$(field turn)
	NODE_NAME=${NODE_NAME:-$(field node)}
	if [ "$state" != "$STAGE" ]; then
		say "this host is in ${state:-no state}, not in $STAGE: there is nothing to post"
		exit 1
	fi
	until post; do pause; done
	exit 0
fi

# Process 1 of a container ignores signals for which it has no handler, and a shell runs a handler only while it waits.
trap 'exit 0' TERM INT

: "${NODE_NAME:?must be the name of this node}"
ask() { kubectl --request-timeout=10s "$@"; }

# read_node reads the node's state and turn, and for which turn the stage's hook has confirmed.
read_node() {
	# shellcheck disable=SC2016 # the dollars are the template's
	node=$(ask get node "$NODE_NAME" --output 'go-template={{with .metadata}}{{$state := or (index .labels "lockkeeper.dev/state") "-"}}{{.resourceVersion}} {{$state}} {{or (index .annotations "lockkeeper.dev/turn") "-"}} {{or (index .annotations (printf "hook.lockkeeper.dev/notify-%s" $state)) "-"}}{{end}}') || return
	read -r version state turn confirmed <<-END
		$node
	END
}

# confirm confirms the hook, unless the Node has changed since read_node: the turn may have ended.
confirm() {
	ask patch node "$NODE_NAME" --type merge --patch \
		"{\"metadata\":{\"resourceVersion\":\"$version\",\"annotations\":{\"hook.lockkeeper.dev/notify-$state\":\"$turn\"}}}" >/dev/null &&
		say "confirmed for turn $turn"
}

# This process handles one stage of one turn. The next stage has a process of its own.
until read_node; do pause; done
mine=$state/$turn posted=
case $state in
before-reboot | before-uncordon)
	while [ "$state/$turn" = "$mine" ]; do
		if [ "$confirmed" != "$turn" ]; then
			[ -n "$posted" ] || ! post || posted=yes
			[ -z "$posted" ] || ! read_node || [ "$state/$turn" != "$mine" ] || confirm
		fi
		pause
		until read_node; do pause; done
	done
	;;
esac
say "$mine is over, or is no stage to post: the node is in $state"
pause
