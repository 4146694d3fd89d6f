//go:build race

package explore

// raced is true under the race detector. The detector makes the search about eight times slower, and finds nothing in
// code that runs on one goroutine.
const raced = true
