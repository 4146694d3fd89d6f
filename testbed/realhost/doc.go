// Package realhost runs real hosts on this machine, as systemd-nspawn containers: each boots a real systemd with D-Bus, logind
// and networkd, in network and PID namespaces and cgroups of its own, with a real kubelet that has its own credential on a real
// control plane. A reboot through logind is a reboot: another boot id, an empty /run, every service started again. It is what
// lockkeeper's package is installed on and rolled through.
//
// It needs root, Linux with overlayfs, and the programs of Debian's packages named in [Packages]; [Missing] says what is not
// there. Package simhost's hosts need none of that.
//
// A host runs Debian bookworm with systemd 252 or, if its options or LOCKKEEPER_RELEASE say so, trixie with systemd 257.
//
// What is stood in for, by command hostparts in the host: the container runtime (Kubernetes' own fake: pods become Running and
// end when they are asked to, and nothing runs in them) and update_engine (package engine, under Flatcar's D-Bus policy). A
// staged update is a new VERSION_ID in os-release at the next boot, as if the partitions had been switched.
//
// What cannot be done here: a host shares the machine's kernel, clock and disk. Its clock cannot be put wrong.
//
// It knows hosts, kubelets and control planes, nothing of lockkeeper's: what a test wants of lockkeeper on a host it copies in and
// installs.
//
// Everything that it makes on the machine belongs to a [Lab], and a janitor, a small process next to the owner's, removes all of
// it when the lab is closed or its owner is gone, however it ended.
package realhost
