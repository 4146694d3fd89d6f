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

` + generated + `This page lists every metric, and says what ` + "`/healthz`" + ` reports.

The service on each host serves two pages at ` + "`127.0.0.1:9477`" + `, or where ` + "`[metrics] listen`" + ` in its [file](configuration.md) says; ` + "`\"\"`" + `
is off. It serves them as soon as it starts, before it can reach the API server. They need no
credential and have no secrets, but they name what a host waits for: listen on an address that
others can reach only if that is acceptable.

- ` + "`/metrics`" + `: the metrics below, for Prometheus.
- ` + "`/healthz`" + `: 200 and ` + "`ok`" + `, or 503 and what a user has to fix **on this host**: lockkeeper has not
  started yet, one of its loops is stuck, the API server refuses one of its credentials, a
  credential has expired or cannot be read, or the host's credential plugin fails. A problem with
  a file or a plugin counts after ten seconds. A missing file does not count, because the host has
  not joined its cluster yet. A host that cannot reach the API server, or that waits in a turn, is
  healthy; the lines below the first report both.

lockkeeper serves at most 32 clients at the same time; the others wait. Each connection serves one
request. lockkeeper disconnects a client that takes more than 5 s to send its request, or more than
15 s to read the answer. So clients that hold their connections open only delay the next scrape,
by 5 s for each 32 connections that wait before it.

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
			help += ". Only the leader serves it"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s. |\n", d.Name, d.Type, unit, labels, help)
	}
	fmt.Fprintf(&b, `
States are those of [the table](node-states.md), reasons are those of [reasons](reasons.md),
the results of a turn are %s. `+"`identity`"+` is %s or %s, the `+"`result`"+`
of a request is %s (2xx, 3xx), %s (429), %s (every other 4xx) or %s (5xx, or no answer).

Alerts, a dashboard and how to scrape are in [monitoring.md](monitoring.md).
`, codes("Done", "Cancelled", "BackedOut", "Failed"), codes(v1alpha1.IdentityHost), codes(v1alpha1.IdentityCoordinator),
		codes(v1alpha1.RequestSuccess), codes(v1alpha1.RequestTooMany), codes(v1alpha1.RequestRefused), codes(v1alpha1.RequestError))
	return b.String()
}

// codes lists values as Markdown code.
func codes(values ...string) string { return "`" + strings.Join(values, "`, `") + "`" }
