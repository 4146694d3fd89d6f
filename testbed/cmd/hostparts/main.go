// Command hostparts is what a real host of package realhost runs in place of things that a test bed cannot have: a container
// runtime and an update engine, both as services; and what can see a shutdown coming.
//
//	hostparts runtime SOCKET          a container runtime that only claims to run things
//	hostparts engine ROOT STATE       a stand-in for update_engine on the system bus
//	hostparts watch WHO               tells of shutdowns on standard output, and holds them up until it is answered
//
// The engine has a knob on the bus, [engine.KnobPath], to stage an update, and tells in the directory STATE what the next boot boots.
//
// It knows nothing of lockkeeper's.
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
