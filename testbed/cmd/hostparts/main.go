// Command hostparts runs on a real host of package realhost. It replaces two components that a testbed cannot have, a
// container runtime and an update engine, both as services. It also detects shutdowns.
//
//   - hostparts runtime SOCKET: a container runtime that records containers but runs nothing
//   - hostparts engine ROOT STATE: a simulated update_engine on the system bus
//   - hostparts watch WHO: reports shutdowns on standard output, and delays them until it gets an answer
//
// [engine.KnobPath] on the bus is an interface to stage an update. The engine writes the version of the next boot into
// the directory STATE.
//
// The command knows nothing of lockkeeper.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch {
	case len(args) == 2 && args[0] == "runtime":
		err = runRuntime(ctx, args[1])
	case len(args) == 3 && args[0] == "engine":
		err = runEngine(ctx, args[1], args[2])
	case len(args) == 2 && args[0] == "watch":
		err = runWatch(ctx, args[1])
	default:
		fmt.Fprintln(os.Stderr, "hostparts: usage: hostparts runtime SOCKET | engine ROOT STATE | watch WHO")
		return 64
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "hostparts:", err)
		return 1
	}
	return 0
}
