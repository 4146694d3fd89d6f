// Package walkthrough runs the commands of a document as they are written, so that what users are told to type is what was
// tested. The shell is bash and the commands are the real ones, but ssh and scp: those go to whatever stands for a host, a
// simulated one or a real one.
//
// A document's commands are its fenced blocks marked "sh". A block of nothing but assignments holds for all that follow.
//
// It knows documents and shells. It does not know what a command does, nor what is to come of it: that is the test's.
package walkthrough
