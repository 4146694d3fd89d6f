// Package packaging holds what makes a program an installed service: the units,
// the packages' scripts, the manual pages, the completions and what Flatcar is
// given. Its Go code is two rooms below it: packaging/build, which makes the
// artefacts of `make packages`, and packaging/render, which renders manual
// pages, completions and the sample configuration from the code's own
// definitions. Neither is part of the binary; nothing here knows what
// lockkeeper does.
package packaging
