// Package install tests what users install and follow.
//
//   - The artifacts of `make release`, for a sample of the platforms, built from this tree: what is in them, what linters report, that
//     a second build gives the same bytes, and what installing, upgrading and removing them does in a root of its own, from files and
//     from the repositories that a web server on the loopback has. Nothing is booted here.
//   - The Helm chart and the kustomize base, which have to give the objects that `lockkeeper manifests` prints.
//   - docs/install.md and the pages next to it: their commands, one by one, on a real control plane. Simulated hosts stand for the real ones, so installing the
//     package means starting lockkeeper here.
//   - The examples of hooks, as they are shipped. The real kubectl applies their objects, the real controllers run their DaemonSets,
//     and their scripts run in the real /bin/sh with no programs but those that they ask for, each with a token of the very pod
//     that runs there. The tests play the coordinator that moves nodes into their stages.
package install
