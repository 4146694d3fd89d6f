// Package object is how lockkeeper reads and writes the API server's objects, the
// same way for a host and its own Node and for a leader and all Nodes: what is watched
// (see package kube), and patches that carry the resourceVersion of the Node that was
// decided on.
//
// It must not know what is decided, nor by which part.
package object
