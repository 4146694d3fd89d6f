package notify

import (
	"encoding/json"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Message is one notification. Its JSON is the generic format. Fields without a
// value are left out.
type Message struct {
	// Time is when the coordinator noticed the occasion, in UTC.
	Time time.Time `json:"time"`
	// Cluster is `notify.cluster` of the coordinator's file.
	Cluster string `json:"cluster,omitempty"`
	// Occasion says what happened: one of the occasions in docs/notifications.md.
	Occasion v1alpha1.Occasion `json:"occasion"`
	// Nodes lists the nodes that the message is about, at most ten.
	Nodes []string `json:"nodes,omitempty"`
	// More is how many other nodes the message is about.
	More int `json:"more,omitempty"`
	// Policy is the policy that decides about the node, or that is halted.
	Policy string `json:"policy,omitempty"`
	// Turn is the ID of the node's turn.
	Turn string `json:"turn,omitempty"`
	// Result is how the turn ended: Done, Cancelled, BackedOut or Failed.
	Result v1alpha1.Result `json:"result,omitempty"`
	// Reason is one of the reasons in docs/reasons.md or docs/events.md. A message about several
	// nodes has it if all of them have the same reason.
	Reason v1alpha1.Reason `json:"reason,omitempty"`
	// Text is the whole message for people, in one line.
	Text string `json:"message"`
}

// bound truncates all texts, because other people wrote some of them.
func (m *Message) bound() {
	m.Text = v1alpha1.OneLine(m.Text, MaxText)
	for _, field := range []*string{&m.Cluster, &m.Policy, &m.Turn, (*string)(&m.Result), (*string)(&m.Reason)} {
		*field = v1alpha1.OneLine(*field, maxField)
	}
	if len(m.Nodes) > MaxNames {
		m.More += len(m.Nodes) - MaxNames
		m.Nodes = m.Nodes[:MaxNames]
	}
	nodes := make([]string, len(m.Nodes))
	for i, name := range m.Nodes {
		nodes[i] = v1alpha1.OneLine(name, maxField)
	}
	m.Nodes = nodes
}

// line returns the text for a chat room. It begins with the cluster's name, because a room
// may receive messages of several clusters.
func (m *Message) line() string {
	if m.Cluster == "" {
		return m.Text
	}
	return m.Cluster + ": " + m.Text
}

// slackMessage is what an incoming webhook of Slack takes:
// https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks
type slackMessage struct {
	Text        string `json:"text"`
	Mrkdwn      bool   `json:"mrkdwn"` // false: Slack does not read the text as markup
	UnfurlLinks bool   `json:"unfurl_links"`
	UnfurlMedia bool   `json:"unfurl_media"`
}

// slackEscapes escapes the three characters that Slack interprets in every text. For
// example, `<!channel>` would notify everyone in the channel.
// https://docs.slack.dev/messaging/formatting-message-text
var slackEscapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// teamsMessage is what the trigger "When a Teams webhook request is received"
// takes: a message with an adaptive card.
type teamsMessage struct {
	Type        string            `json:"type"`
	Attachments []teamsAttachment `json:"attachments"`
}

type teamsAttachment struct {
	ContentType string    `json:"contentType"`
	Content     teamsCard `json:"content"`
}

type teamsCard struct {
	Schema  string       `json:"$schema"`
	Type    string       `json:"type"`
	Version string       `json:"version"`
	Body    []teamsBlock `json:"body"`
}

// teamsBlock is a RichTextBlock: unlike a TextBlock, it does not read Markdown.
// https://learn.microsoft.com/adaptive-cards/authoring-cards/text-features
type teamsBlock struct {
	Type    string     `json:"type"`
	Inlines []teamsRun `json:"inlines"`
}

type teamsRun struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// encode returns the body of a request.
func encode(m *Message, format v1alpha1.NotifyFormat) ([]byte, error) {
	switch format {
	case v1alpha1.NotifySlack:
		return json.Marshal(slackMessage{Text: slackEscapes.Replace(m.line())})
	case v1alpha1.NotifyTeams:
		return json.Marshal(teamsMessage{Type: "message", Attachments: []teamsAttachment{{
			ContentType: "application/vnd.microsoft.card.adaptive",
			Content: teamsCard{
				Schema: "http://adaptivecards.io/schemas/adaptive-card.json", Type: "AdaptiveCard", Version: "1.4",
				Body: []teamsBlock{{Type: "RichTextBlock", Inlines: []teamsRun{{Type: "TextRun", Text: m.line()}}}},
			},
		}}})
	}
	return json.Marshal(m)
}
