// Package walkthrough runs the commands of a document as they are written, so that the tests cover exactly what users type.
// The shell is bash. The commands are the real ones except ssh and scp, which reach the [Host] that the test provides: a
// simulated host or a real one.
//
// A document's commands are its fenced blocks marked "sh". A block that contains only assignments applies to all blocks
// after it.
//
// The package knows documents and shells. It does not know what a command does or what its result must be; the test does.
package walkthrough
