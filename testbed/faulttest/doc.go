// Package faulttest lets faults meet rollouts, in campaigns that a seed makes: of the wire (every process of every host is behind
// a proxy), of the control plane, of what runs beside lockkeeper on a host, of the hosts themselves, of people. The referee
// watches. When all faults are lifted the whole fleet has to come to rest, updated.
//
// LOCKKEEPER_SEED makes other campaigns, LOCKKEEPER_SOAK says how many, LOCKKEEPER_CAMPAIGN plays one of them alone. A seed
// repeats what is done and when, as states of the rollout; what it meets there to the millisecond depends on the machine.
package faulttest
