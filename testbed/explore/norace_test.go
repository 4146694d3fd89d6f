//go:build !race

package explore

const raced = false
