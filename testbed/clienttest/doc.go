// Package clienttest holds the tests of lockkeeper's rooms that talk to the API server, node/object, coordinator and node,
// against a real one, through a wire that records every request and can do it harm.
package clienttest
