// Package object is how lockkeeper reads and writes Node objects, the same
// way for a host and its own Node and for a leader and all of them: a view
// that never goes back behind what this process has written itself, and
// patches that carry the resourceVersion of the Node that was decided on.
//
// It must not know what is decided, nor by whom.
package object
