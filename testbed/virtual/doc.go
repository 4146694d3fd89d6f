// Package virtual runs a fleet of lockkeeper's real agents in virtual time: the host's loop and the coordinator's loop as
// they are, with client-go, leaderelection, the real drain and the real D-Bus clients. Everything around them is in memory:
// the API server (package apiserver), each host's message bus and services (packages membus and memhost), kubelets, the
// controllers that run pods, and admins. So a run of several hours takes about a second, and a seed can place a fault at
// any request and between any two.
//
// A run is one bubble of testing/synctest. What is not real: the network, the processes (all agents share one; a killed
// agent is cut off from everything before its context ends), and inotify (files are read at intervals). A paused process
// is one whose requests, answers and D-Bus messages wait; its timers go on.
//
// On some hosts of some seeds, a FleetLock client reboots the host: Zincati (package zincati), which reaches the agent through an in-memory
// transport.
//
// The referee's rules judge every write, and at the end of a run every node must have its update.
package virtual
