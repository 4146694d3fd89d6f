// Package killtest kills processes at their writes: for every write that a host and a coordinator send to the API server in a
// turn, right before it is sent, after it was carried out and before its writer knows, and right after the answer. The turn has
// to end as if nothing had happened, with one reboot, and the referee has to be content.
//
// Every write that a run shows has a class in a table that is written by hand; one that has none fails the run. So who adds
// a write to lockkeeper has to say here what it is, and it is killed at as well.
package killtest
