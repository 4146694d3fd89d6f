// Package gatetest runs a real Prometheus. Policies' gates are asked of one that scrapes a number which the test sets. The
// monitoring pack, packaging/monitoring, is tested on one that scrapes real lockkeeper processes during a rollout.
package gatetest
