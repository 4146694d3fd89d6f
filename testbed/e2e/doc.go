// Package e2e has only tests: lockkeeper the way users have it. The package that we ship is built, installed by dpkg on real hosts
// (package realhost), started by their systemd, and talks to their system bus and logind with the credential of their real
// kubelets. Hosts roll through updates with real reboots, and through faults, while the referee watches.
//
// What is not as users have it: a drop-in beside the unit, see dropIn. It leaves a part of the sandbox off that a container
// cannot have, and cuts short what would only keep a test waiting: settle, min_uptime, the Lease's duration.
//
// One fault of issue 4's cannot be made here: hosts share the machine's clock, so none can be wrong by an hour. The tests of
// package coordinator and of simulated hosts have that.
//
// One host of the fleet runs the newest release of the operating system, Debian trixie with systemd 257, where its packages can
// be fetched; the others run bookworm with systemd 252. With LOCKKEEPER_RELEASE=trixie all hosts run trixie.
//
// LOCKKEEPER_SOAK runs the long faults too; LOCKKEEPER_SEED repeats a run's choices. LOCKKEEPER_E2E_PACKAGES names a folder with
// packages that were built before, to save their build.
package e2e
