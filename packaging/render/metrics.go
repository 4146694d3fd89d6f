package render

import (
	"fmt"
	"strings"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Metrics returns docs/metrics.md.
func Metrics() string {
	var b strings.Builder
	b.WriteString(`# Metrics and health

` + generated + `Every host's service serves two pages at ` + "`127.0.0.1:9477`" + `, or where ` + "`[metrics] listen`" + ` in its [file](configuration.md) says; ` + "`\"\"`" + `
is off. They are there from the service's start on, before there is an API server. They need no credential and tell no secret, but
they name what a host waits for: give them an address that others reach only where that is nobody's harm.

- ` + "`/metrics`" + `: what is below, for Prometheus.
- ` + "`/healthz`" + `: 200 and ` + "`ok`" + `, or 503 and what a user has to fix **on this host**: it has not started yet, a loop of it is stuck,
  the API server refuses one of its credentials, a credential has expired or cannot be read, or the host's credential plugin gives
  none. A problem of a file or a plugin counts once it has lasted ten seconds. That there is no file yet does not count:
  the host has not joined. An API server that is away, and a turn that waits, are no ill health of the host's; lines below the first tell of both.

lockkeeper serves at most 32 clients at the same time; the others wait. Each connection serves one request. lockkeeper cuts off a
client that takes more than 5 s to send its request, or more than 15 s to read the answer. So clients that hold their connections
open only delay the next scrape: by 5 s for each 32 connections that wait before it.

| metric | type | unit | labels | meaning |
| --- | --- | --- | --- | --- |
`)
	for _, d := range v1alpha1.MetricDocs() {
		labels, unit, help := "-", "-", d.Help
		if len(d.Labels) > 0 {
			labels = "`" + strings.Join(d.Labels, "`, `") + "`"
		}
		if d.Unit != "" {
			unit = d.Unit
		}
		if d.Leader {
			help += ". Served by the leader alone"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s. |\n", d.Name, d.Type, unit, labels, help)
	}
	fmt.Fprintf(&b, `
States are those of [the table](node-states.md), reasons are [these words](reasons.md), results %s. `+"`identity`"+` is %s or %s, `+"`answer`"+`
%s (2xx, 3xx), %s (429), %s (every other 4xx) or %s (5xx, or no answer).

Alerts, a dashboard and how to scrape are in [monitoring.md](monitoring.md).
`, codes("Done", "Cancelled", "BackedOut", "Failed"), codes(v1alpha1.IdentityHost), codes(v1alpha1.IdentityCoordinator),
		codes(v1alpha1.RequestSuccess), codes(v1alpha1.RequestTooMany), codes(v1alpha1.RequestRefused), codes(v1alpha1.RequestError))
	return b.String()
}

// codes lists words as Markdown code.
func codes(words ...string) string { return "`" + strings.Join(words, "`, `") + "`" }
