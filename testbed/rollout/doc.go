// Package rollout tests whole rollouts: the real binary on simulated hosts, a real control plane, and the referee watching every one
// of them, with one policy or several. A real Prometheus answers the gates of policies and scrapes lockkeeper for the monitoring pack
// (packaging/monitoring). Package turns tests what one policy makes of one node's turn.
package rollout
