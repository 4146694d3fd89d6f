#!/bin/sh
# A hook of before-reboot and of before-uncordon: it posts {"node":…,"stage":…,"turn":…} to a URL, and the turn goes on when the
# server has answered with success. It tries until then. A stage can be told of twice, so the receiver should go by turn and stage.
#
# In a pod of the DaemonSet it confirms with the turn's id. As a unit of the host (with STAGE) its end is the confirmation.
# It needs a POSIX shell and curl, and in a pod kubectl, and is told:
#   WEBHOOK_URL   where to post
#   NODE_NAME     this node; a host asks lockkeeper
#   STAGE         the stage whose unit this is; none in a pod, which asks the Node
#   POLL_SECONDS  how long to wait between two tries
set -u
: "${WEBHOOK_URL:?is to be the URL to post to}"
NODE_NAME=${NODE_NAME-} STAGE=${STAGE-} POLL_SECONDS=${POLL_SECONDS:-10}

say() { echo "$*" >&2; }
pause() { sleep "$POLL_SECONDS" & wait $!; }

# post tells of node, stage and turn, none of which holds a character that JSON minds. The URL may hold a secret and is kept
# from the list of processes.
post() {
	printf 'url = "%s"\n' "$WEBHOOK_URL" |
		curl --config - --silent --show-error --fail --max-time 10 --output /dev/null --header 'Content-Type: application/json' \
			--data "{\"node\":\"$NODE_NAME\",\"stage\":\"$state\",\"turn\":\"$turn\"}" &&
		say "told of $NODE_NAME in $state of turn $turn"
}

if [ -n "$STAGE" ]; then
	field() { lockkeeper status --output json | sed -n "s/^ *\"$1\": \"\([^\"]*\)\",*\$/\1/p" | head -n 1; }
	state=$(field state) turn=$(field turn)
	NODE_NAME=${NODE_NAME:-$(field node)}
	if [ "$state" != "$STAGE" ]; then
		say "this host is in ${state:-no state}, not in $STAGE: there is nothing to tell of"
		exit 1
	fi
	until post; do pause; done
	exit 0
fi

# A shell that is process 1 of its container ends at a signal only if it says so, and hears it only while it waits.
trap 'exit 0' TERM INT

: "${NODE_NAME:?is to be the name of this node}"
ask() { kubectl --request-timeout=10s "$@"; }

# look reads where the node is in its turn, and what the hook of that stage has said.
look() {
	# shellcheck disable=SC2016 # the dollars are the template's
	node=$(ask get node "$NODE_NAME" --output 'go-template={{with .metadata}}{{$state := or (index .labels "lockkeeper.dev/state") "-"}}{{.resourceVersion}} {{$state}} {{or (index .annotations "lockkeeper.dev/turn") "-"}} {{or (index .annotations (printf "hook.lockkeeper.dev/notify-%s" $state)) "-"}}{{end}}') || return
	read -r version state turn said <<-END
		$node
	END
}

# confirm says that the hook's work is done, of the Node that was looked at and of no later one: the turn may have ended since.
confirm() {
	ask patch node "$NODE_NAME" --type merge --patch \
		"{\"metadata\":{\"resourceVersion\":\"$version\",\"annotations\":{\"hook.lockkeeper.dev/notify-$state\":\"$turn\"}}}" >/dev/null &&
		say "confirmed for turn $turn"
}

# One process, one stage of one turn: whatever comes later, a process that is started then looks after it.
until look; do pause; done
mine=$state/$turn posted=
case $state in
before-reboot | before-uncordon)
	while [ "$state/$turn" = "$mine" ]; do
		if [ "$said" != "$turn" ]; then
			[ -n "$posted" ] || ! post || posted=yes
			[ -z "$posted" ] || ! look || [ "$state/$turn" != "$mine" ] || confirm
		fi
		pause
		until look; do pause; done
	done
	;;
esac
say "$mine is over, or no stage to tell of: the node is in $state"
pause
