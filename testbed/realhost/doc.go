// Package realhost runs real hosts on this machine, as systemd-nspawn containers. Each boots a real systemd with D-Bus,
// logind and networkd, with its own network and PID namespaces and cgroups, and runs a real kubelet with its own
// credential on a real control plane. A reboot through logind is a real reboot: another boot id, an empty /run, every
// service started again. Tests install lockkeeper's package on these hosts and roll updates through them.
//
// The package needs root, Linux with overlayfs, and the programs of Debian's packages named in [Packages]; [Missing]
// reports what is missing. The hosts of package simhost need none of that.
//
// A host runs Debian bookworm with systemd 252 or, if its options or LOCKKEEPER_RELEASE select it, trixie with systemd
// 257.
//
// The command hostparts runs on the host and replaces two components. The container runtime is Kubernetes' own fake:
// pods become Running and terminate when requested, but run nothing. The update_engine is package engine, under
// Flatcar's D-Bus policy. A staged update is a new VERSION_ID in os-release at the next boot, as if the partitions had
// been switched.
//
// A host shares the machine's kernel, clock and disk, so tests cannot set its clock wrong.
//
// The package knows hosts, kubelets and control planes, but nothing of lockkeeper: a test copies what it needs of
// lockkeeper to a host and installs it.
//
// Everything that the package creates on the machine belongs to a [Lab]. A janitor, a small process next to the owner's
// process, removes all of it when the lab is closed or when its owner has ended in any way.
package realhost
