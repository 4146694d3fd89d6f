// Package systemd is this host's way to its service manager: reboots through logind, what logind and systemd know
// (inhibitors, sessions, units, whether the boot is complete or a shutdown is under way), sd_notify with its
// watchdog, and the log as journald wants it.
//
// Each call does one thing and returns what went wrong; nothing is retried for an effect, nothing is decided here.
// When to reboot, what an inhibitor or a session means for it, is other rooms' business; this one must not know of
// Kubernetes, of turns or of states.
//
// The D-Bus half works with the bus away and back: connections are made when needed, and every call is bounded.
package systemd
