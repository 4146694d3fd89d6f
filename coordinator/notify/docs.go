package notify

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

const docsHead = `# Notifications

<!-- Rendered from coordinator/notify. Do not edit: make docs -->

This page explains how to have failures and stops reported to a chat room or to a program of yours.

The instance that leads sends the notifications. ` + "`[notify]`" + ` in the [file](configuration.md) of each
host with the coordinator's credential says where to, which ones, and in which format. A change of
` + "`[notify]`" + ` needs a restart.

` + "```toml" + `
[notify]
url = "https://hooks.slack.com/services/T000/B000/XXXX"
format = "slack"
on = ["failed", "halted", "held", "stop"]
held_longer_than = "24h"
cluster = "prod"
` + "```" + `

Anyone who knows the URL of a Slack or Teams webhook can write into that room. Keep it in a
drop-in that only root can read: ` + "`/etc/lockkeeper/config.d/notify.toml`" + `, mode 0600. lockkeeper warns if other users can read
it. The journal shows only its host name; ` + "`lockkeeper check-config --effective`" + ` shows all of it. With
` + "`token_file`" + `, each request has the header ` + "`Authorization: Bearer TOKEN`" + `, with the token that is in
the file at that moment.

## Occasions

| occasion | when |
| --- | --- |
`

const docsDelivery = `
- Each occasion is one message, for the same facts as the [Events](events.md). For held nodes there
  is at most one message every ten minutes, about all nodes that are due at that time. A node is
  reported again only if it was not held in between.
- Without a Lease no instance leads, and none sends messages. So no message reports that the Lease
  was deleted, although that is a stop as well.
- A new leader does not repeat messages of earlier leaders, with two exceptions. It does not know
  since when nodes are held, and counts from its first decision: it may report a node again, and
  later than ` + "`held_longer_than`" + ` says. And it reports again an emergency stop that holds no node.
- A message can be lost: if the leader ends before it is sent, if the outcome of the write that it
  is about was unknown, or in the cases below. The Nodes, the policies and the Lease have the truth;
  nothing depends on a notification.
`

const docsFormats = `
## Formats

Texts that others wrote, such as the reason of a pause, are truncated, put on one line, and stripped
of escape sequences.

- ` + "`slack`" + `: an incoming webhook. ` + "`&`, `<` and `>`" + ` are escaped, so that
  ` + "`<!channel>`" + ` in a text notifies no one, and markup is off.
- ` + "`teams`" + `: the trigger "When a Teams webhook request is received" of a workflow that posts the card.
  The text is in a block in which Markdown has no effect.
- ` + "`generic`" + `: one JSON object. A field without a value is not there.

`

// fields are the documentation of the generic format.
var fields = [][2]string{
	{"time", "when the coordinator noticed the occasion, RFC 3339 in UTC"},
	{"cluster", "`notify.cluster`"},
	{"occasion", "one of the occasions above"},
	{"nodes", fmt.Sprintf("the names of the nodes that it is about, at most %d", MaxNames)},
	{"more", "how many other nodes it is about"},
	{"policy", "the policy that is halted, or that decides about the nodes, if that is the same one for all"},
	{"turn", "the ID of the node's turn"},
	{"result", "how the turn ended: `Done`, `Cancelled`, `BackedOut` or `Failed`"},
	{"reason", "why: one of the [reasons](reasons.md), or `Halted`, `Released`, `Stopped` or `StopLifted`; if it is the same for all nodes"},
	{"message", fmt.Sprintf("all of it for people, one line of at most %d bytes", MaxText)},
}

// Docs renders docs/notifications.md.
func Docs() string {
	var b strings.Builder
	b.WriteString(docsHead)
	for _, d := range v1alpha1.OccasionDocs() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", d.Occasion, d.Means)
	}
	b.WriteString(docsDelivery)
	fmt.Fprintf(&b, `
## Delivery

Decisions never wait for a message: it goes into a queue, and is sent from there, one after the other.

| bound | value |
| --- | --- |
| messages that wait | %d; then the oldest one is dropped |
| one attempt | %s |
| attempts | %d |
| pause between two attempts | %s at first, doubled each time, %s at most; longer if the receiver says so (`+"`Retry-After`"+`) |
| from the occasion to the last repetition | %s |
| answer that is read | %d KiB |

- An answer of 2xx is success. No connection, no answer, 408, 425, 429 and 5xx are tried again; any
  other answer is final. A message that has already waited in the queue for longer than the time to
  the last repetition is tried once.
- Redirects are not followed. The proxy settings in the environment of the service are respected.
  Certificates are checked against the host's certificate authorities.
- The journal has one line for each message that is given up, and one each time the queue becomes
  full. The metric `+"`%s`"+` counts what was sent, failed or was dropped ([metrics](metrics.md)).
`, MaxQueue, short(Timeout), MaxAttempts, short(FirstPause), short(MaxPause), short(MaxAge), maxAnswer>>10, v1alpha1.MetricNotifications)
	b.WriteString(docsFormats)
	b.WriteString("| field | meaning |\n| --- | --- |\n")
	for _, f := range fields {
		fmt.Fprintf(&b, "| `%s` | %s |\n", f[0], f[1])
	}
	example := Message{
		Time: time.Date(2026, 11, 22, 20, 15, 3, 0, time.UTC), Cluster: "prod", Occasion: v1alpha1.OccasionFailed, Nodes: []string{"web-17"}, Policy: "web",
		Turn: "k3vd2ycjq7rsm5wt", Result: v1alpha1.ResultFailed, Reason: v1alpha1.ReasonNotUpdated,
		Text: "Node web-17: Failed: turn k3vd2ycjq7rsm5wt ended Failed (" + string(v1alpha1.ReasonNotUpdated) + ": " + v1alpha1.ReasonNotUpdated.Doc().Means + ")",
	}
	text, _ := json.MarshalIndent(&example, "", "  ") // cannot fail for these types
	fmt.Fprintf(&b, "\n```json\n%s\n```\n", text)
	return b.String()
}

// short formats a duration of whole minutes or seconds without trailing zeros: 10m
// instead of 10m0s.
func short(d time.Duration) string {
	if d%time.Minute == 0 {
		return strings.TrimSuffix(d.String(), "0s")
	}
	return d.String()
}
