// Package packaging holds the files that turn the binary into an installed service: the
// systemd units, the packages' scripts, the manual pages, the completions and the files
// for Flatcar. It has no code. The packages below it must not know what lockkeeper does:
// packaging/build makes the artifacts of `make packages`, packaging/render makes documents
// from the definitions in code, and packaging/manifests holds the cluster's objects.
package packaging
