// Package e2e has only tests: lockkeeper the way users have it. The package that we ship is built, installed by dpkg on real hosts
// (package realhost), started by their systemd, and talks to their system bus and logind with the credential of their real
// kubelets. Hosts roll through updates with real reboots, and through faults, while the referee watches.
//
// What is not as users have it: a drop-in next to the unit, see dropIn. It leaves a part of the sandbox off that a container
// cannot have, and cuts short what would only keep a test waiting: settle, min_uptime, the Lease's duration.
//
// One host of the fleet runs the newest release of the operating system, Debian trixie with systemd 257, where its packages can
// be fetched; the others run bookworm with systemd 252. With LOCKKEEPER_RELEASE=trixie all hosts run trixie.
//
// LOCKKEEPER_SEED chooses which of the sampled faults run; LOCKKEEPER_SOAK runs all of them, and those that take minutes.
// LOCKKEEPER_E2E_PACKAGES names a directory with packages that were built before, to save their build.
package e2e
