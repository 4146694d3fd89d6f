// Command simulate predicts how long a rollout through a fleet takes, how many nodes it disrupts at once, and where it
// would stop. `make simulate` runs it. It needs no cluster and does not wait; see package simulate and
// docs/simulate.md.
//
// The exit status is 0 if every node that wants something becomes up to date, 3 if the rollout stops before that, 1 for
// an error or a broken limit, and 64 for wrong usage.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"lockkeeper.dev/lockkeeper/testbed/simulate"
)

func main() { os.Exit(run()) }

func run() int {
	seed := flag.Uint64("seed", 0, "the `SEED`, instead of the file's")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: simulate [-seed SEED] FILE...\n\nEach FILE contains YAML documents: one fleet in total, and DisruptionPolicies; see docs/simulate.md.")
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		return 64
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var files []io.Reader
	for _, name := range flag.Args() {
		file, err := os.Open(name)
		if err != nil {
			fmt.Fprintln(os.Stderr, "simulate:", err)
			return 1
		}
		defer file.Close()
		files = append(files, file)
	}
	fleet, err := simulate.Read(files...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "simulate:", err)
		return 1
	}
	if *seed != 0 {
		fleet.Seed = *seed
	}
	report, err := simulate.Run(ctx, fleet)
	fmt.Print(report)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "simulate:", err)
		return 1
	case !report.Done():
		return 3
	}
	return 0
}
