// Package simhost runs simulated hosts: each is the real lockkeeper binary, as a process of its own, on a private
// dbus-daemon, with stand-ins for update_engine, logind and the kubelet that keep to what the real ones do, odd as that may
// be. A reboot takes all of it down and brings it up again under a new boot id. It is what lockkeeper's tests and its demo
// roll through.
//
// It needs Linux, Debian's package dbus-daemon and a control plane of package controlplane; no root.
//
// It knows how a host behaves, not how lockkeeper does: it starts the binary as its contract says, shows it a bus, a root
// and a kubeconfig, and imports nothing of lockkeeper's but the published words.
//
// Time on a simulated host is short: a shutdown and a boot take half a second unless asked otherwise. What is simulated and
// what is left out:
//
//   - update_engine: the three methods, StatusUpdate, the marker file below the host's root, which goes with a reboot.
//     ResetStatus is silent and does not take back what the next boot will boot. A restarted daemon with a reboot pending
//     has forgotten the version. It never checks by itself.
//   - logind: reboots, delay inhibitors, sessions, on real terminals if someone logs in on one. There is no systemd on the bus, which a host may lack, until a test says
//     how a unit stands ([Units]); it runs none, and every job of one is done at once unless a test holds it.
//   - the kubelet: registration, its Lease every other second, its Node when something changed and every five minutes. Boot
//     id and Ready go in one status write. What its pods do is KWOK's part, see [controlplane.PodsLabel].
//   - a Node that went silent is called so by the real controller manager, after its real grace period; only a kubelet that is
//     told to end (a shutdown through logind) calls its own Node not ready.
package simhost
