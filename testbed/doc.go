// Package testbed is the root of a module that tests lockkeeper on real parts. README.md says what is where, and where a test belongs.
// The package has no code. Nothing that is shipped imports the module.
package testbed
