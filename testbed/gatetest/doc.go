// Package gatetest has policies' gates asked of a real Prometheus, which scrapes
// a number that the test sets.
package gatetest
