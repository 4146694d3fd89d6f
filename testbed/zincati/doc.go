// Package zincati behaves like Zincati 0.0.32 with the strategy fleet_lock, towards a FleetLock server: what it sends, when it
// asks again, and when it reboots.
//
// The package is written from the documentation and the sources of Zincati. It must not know of lockkeeper's server, so that
// the two can disagree.
//
// It leaves out what a server cannot see: the update graph, the messages to logged-in users, metrics, and the variables
// ("${group}") that Zincati replaces in its base URL.
package zincati
