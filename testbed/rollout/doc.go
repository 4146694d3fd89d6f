// Package rollout tests whole rollouts, with one policy or several: the real binary on simulated hosts, a real control
// plane, and the referee, which watches every rollout. A real Prometheus answers the gates of policies and scrapes
// lockkeeper for the monitoring pack (packaging/monitoring). Package turns tests how one policy controls the turn of
// one node.
package rollout
