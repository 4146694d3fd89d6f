// Package e2e contains only tests, which run lockkeeper like users do. They build the release package, install it with
// dpkg on real hosts (package realhost), and start it with the hosts' systemd. lockkeeper uses the hosts' system bus
// and logind, and the credentials of real kubelets. Hosts roll through updates with real reboots, and through faults,
// while the referee watches.
//
// There is one difference from a user's installation: a drop-in for the unit, see dropIn. It disables the part of the
// sandbox that does not work in a container, and shortens the times that would only delay a test: settle, min_uptime,
// the Lease's duration.
//
// One host of the fleet runs the newest release of the operating system, Debian trixie with systemd 257, if its
// packages can be downloaded. The others run bookworm with systemd 252. With LOCKKEEPER_RELEASE=trixie all hosts run
// trixie.
//
// LOCKKEEPER_SEED selects the sampled faults to run. LOCKKEEPER_SOAK runs all of them, and those that take minutes.
// LOCKKEEPER_E2E_PACKAGES names a directory with packages that were built before, to save the build.
package e2e
