// Package updateengine reads one thing: what this host's update_engine says about itself, over D-Bus. Beside it stands
// the file in which whoever coordinates the host's reboots says so to the engine's other users ([CoordinatorFile]).
//
// It asks, it never orders: no method that changes the engine is called, the engine is never started, and a host
// on which the engine does not run is an answer (Absent), not a fault. What the reading costs a host, and when,
// is other rooms' business; this one must not know of Kubernetes, of turns or of states.
//
// The truth is GetStatus, asked at the start, at every poll interval, and soon after the engine's StatusUpdate
// signal or a change of the name's owner. The poll is not a fallback: a cancel (ResetStatus) sends no signal, so
// the poll interval is how late a cancel may be seen. Signals are hints only; their bodies are never read.
package updateengine
