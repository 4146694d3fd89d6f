// Package installtest has only tests: it installs lockkeeper as docs/install.md tells, command by command, on a real control
// plane. Simulated hosts stand for the real ones, so that installing the package is starting lockkeeper here.
package installtest
