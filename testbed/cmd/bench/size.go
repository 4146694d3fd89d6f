package main

import (
	"context"
	"fmt"
	"os"
	"strings"
)

// sizes prints the size of the binary and the number of its modules.
func (b *bench) sizes(ctx context.Context) error {
	section("size", `Bytes of the file, static and stripped (-s -w), and the modules linked into it (go version -m).
		The peer gets and follows one Node, with client-go's clients for Nodes and Leases, leaderelection and urfave/cli. The
		floor is the peer with the other libraries of lockkeeper, of which it uses little. kubectl is the one of the control plane here.`)
	rows := [][]string{{"binary", "size", "to the peer", "modules"}}
	base, err := os.Stat(b.peer)
	if err != nil {
		return err
	}
	for _, p := range []struct{ name, path string }{{"lockkeeper", b.binary}, {"peer", b.peer}, {"floor", b.floor}, {"kubectl", b.bins.Kubectl}} {
		info, err := os.Stat(p.path)
		if err != nil {
			return err
		}
		out, err := goOutput(ctx, ".", "version", "-m", p.path)
		if err != nil {
			return err
		}
		rows = append(rows, []string{p.name, mebibytes(info.Size()), times(float64(info.Size()), float64(base.Size())),
			fmt.Sprint(strings.Count(string(out), "\n\tdep\t"))})
	}
	table(rows)
	return nil
}
