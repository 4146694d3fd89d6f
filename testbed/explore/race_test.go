//go:build race

package explore

// raced: the race detector makes the search about eight times slower, and
// finds nothing in what runs on one goroutine.
const raced = true
