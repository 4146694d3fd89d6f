package cli

import (
	"context"
	"flag"
	"io"
	"slices"
	"strings"
	"time"

	urfave "github.com/urfave/cli/v2"

	"lockkeeper.dev/lockkeeper/cli/cluster"
)

// completeTimeout bounds the time for which a shell waits for names from the cluster.
const completeTimeout = 2 * time.Second

// argumentNames returns what the last of the words can be, if the command takes an argument there:
// names of nodes or of hooks that a node's turn waits for, or a fixed word. words follow the command.
func argumentNames(c *urfave.Context, cmd *urfave.Command, words []string) []string {
	flags, args, err := split(cmd.Flags, words[:len(words)-1])
	usage := strings.Fields(cmd.ArgsUsage)
	if err != nil || len(usage) == 0 || isFlag(words[len(words)-1]) {
		return nil
	}
	expected := usage[min(len(args), len(usage)-1)]
	if len(args) >= len(usage) && !strings.Contains(expected, "…") {
		return nil
	}
	switch strings.Trim(expected, "[…]") {
	case "NODE":
		names := clusterNames(c, cmd, flags, func(ctx context.Context, s *cluster.Source) ([]string, error) { return s.NodeNames(ctx) })
		return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(args, name) })
	case "HOOK":
		return clusterNames(c, cmd, flags, func(ctx context.Context, s *cluster.Source) ([]string, error) { return s.HookNames(ctx, args[0]) })
	}
	if strings.ToLower(expected) == expected && !strings.HasPrefix(expected, "[") {
		return []string{expected}
	}
	return nil
}

// policyNames returns the names of all policies. words follow the command.
func policyNames(c *urfave.Context, cmd *urfave.Command, words []string) []string {
	flags, _, err := split(cmd.Flags, words[:len(words)-2])
	if err != nil {
		return nil
	}
	return clusterNames(c, cmd, flags, func(ctx context.Context, s *cluster.Source) ([]string, error) { return s.PolicyNames(ctx) })
}

// clusterNames reads names from the cluster that the flags on the command line select. Without an
// answer in time it returns none, because a shell cannot show an error.
func clusterNames(c *urfave.Context, cmd *urfave.Command, flags []string, read func(context.Context, *cluster.Source) ([]string, error)) []string {
	set := flag.NewFlagSet("", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	for _, f := range cmd.Flags {
		if f.Apply(set) != nil {
			return nil
		}
	}
	if set.Parse(flags) != nil {
		return nil
	}
	app := *c.App
	app.ErrWriter = io.Discard
	ctx, cancel := context.WithTimeout(c.Context, completeTimeout)
	defer cancel()
	found := make(chan []string, 1)
	go func() { // a credential plugin may ignore the context
		defer close(found)
		s, err := source(urfave.NewContext(&app, set, nil))
		if err != nil {
			return
		}
		if names, err := read(ctx, s); err == nil {
			found <- names
		}
	}()
	select {
	case <-ctx.Done():
		return nil
	case names := <-found:
		return names
	}
}
