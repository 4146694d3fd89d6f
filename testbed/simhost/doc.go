// Package simhost runs simulated hosts. Each host runs the real lockkeeper binary in its own process on a private
// dbus-daemon, with simulated versions of update_engine, logind and the kubelet that behave like the real ones,
// including their quirks. A reboot ends all of these and starts them again with a new boot ID. The tests of lockkeeper
// and its demo use these hosts.
//
// It needs Linux, Debian's package dbus-daemon and a control plane of package controlplane. It does not need root.
//
// The package knows how a host behaves, not how lockkeeper works. It starts the binary as its contract requires and
// gives it a bus, a root directory and a kubeconfig. It imports only lockkeeper's published API types.
//
// Time on a simulated host is short: by default, a shutdown and a boot take half a second. This is what each part simulates and what it
// leaves out:
//
//   - update_engine: the three methods, StatusUpdate, and the marker file below the host's root, which a reboot removes.
//     ResetStatus sends no signal and does not change what the next boot will boot. A daemon that restarts while a reboot is
//     pending has forgotten the version. It never checks for updates on its own.
//   - logind: reboots, delay inhibitors, and sessions, on real terminals if a user logs in on one. systemd is on the
//     bus only after a test has set the state of a unit ([Units]), because a host may lack it. It runs no units, and
//     finishes every job of a unit at once unless a test holds the job.
//   - the kubelet: registration, its Lease every two seconds, and its Node after each change and every five minutes. It
//     writes the boot ID and Ready in one status write. KWOK simulates its pods, see [controlplane.PodsLabel].
//   - the controller manager: the real one marks a silent Node as not ready, after its real grace period. A kubelet
//     marks its own Node as not ready only when a shutdown through logind stops it.
package simhost
