// Package gatetest runs Prometheus's own programs. Policies' gates are asked of a real Prometheus that scrapes a number which the test
// sets. promtool checks the monitoring pack, packaging/monitoring.
package gatetest
