// Package e2e contains only tests, which run lockkeeper like users do. They build two releases, install their packages
// on real hosts (package realhost), and start them with the hosts' systemd. lockkeeper uses the hosts' system bus and
// logind, and the credentials of real kubelets. Hosts roll through updates with real reboots, and through faults, while
// the referee watches.
//
// TestPackage installs the deb from a release's repository, and the rpm, and takes both through their lives; TestSysext
// does the same with the image for Flatcar. The fleets of the other tests install the deb with dpkg.
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
// LOCKKEEPER_E2E_PACKAGES names a directory with releases that were built before, to save the build:
// 0.9.0 and 0.9.1, signed with the same key and built for the address of docs/download.md.
package e2e
