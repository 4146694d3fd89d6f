package main

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// rounds is how often each of two commits is measured, in turn: what the machine does besides then concerns both.
const rounds = 2

// subject is what is measured: a binary, and the checkout that it was built from.
type subject struct{ name, binary, root string }

// checkOut builds lockkeeper at a commit in a worktree of the repository. The caller calls remove.
func checkOut(ctx context.Context, root, commit, dir string) (s subject, remove func(), err error) {
	s = subject{"commit " + commit, filepath.Join(dir, "bin", "lockkeeper"), dir}
	remove = func() {
		_ = command(context.WithoutCancel(ctx), root, "git", "worktree", "remove", "--force", dir)
	}
	if err := command(ctx, root, "git", "worktree", "add", "--quiet", "--detach", dir, commit); err != nil {
		return s, remove, err
	}
	return s, remove, command(ctx, dir, "make", "--silent", "build")
}

// compare measures two commits in turn, and prints which ratios differ.
func compare(ctx context.Context, base, head subject, window time.Duration, chosen []part) error {
	runs := map[string]*[2][]float64{}
	for range rounds {
		for i, s := range []subject{base, head} {
			fmt.Printf("\n===== %s =====\n", s.name)
			clear(measured)
			if err := benchmark(ctx, s, window, chosen); err != nil {
				return err
			}
			for name, ratio := range measured {
				if runs[name] == nil {
					runs[name] = new([2][]float64)
				}
				runs[name][i] = append(runs[name][i], ratio)
			}
		}
	}
	rows := [][]string{{"", base.name, head.name, "the second to the first"}}
	for _, name := range slices.Sorted(maps.Keys(runs)) {
		was, is := mean(runs[name][0]), mean(runs[name][1])
		measured[name] = is
		if was > 0 && is > 0 && max(was/is, is/was) > worse {
			rows = append(rows, []string{name, ratios(runs[name][0]), ratios(runs[name][1]), times(is, was)})
		}
	}
	section("compared", fmt.Sprintf(`Each commit was measured %d times, in turn. These are the ratios whose means differ by more than %.0f%%; %d others do not.`,
		rounds, 100*(worse-1), len(runs)-len(rows)+1))
	columns(rows)
	return nil
}

func mean(all []float64) float64 {
	sum := 0.0
	for _, x := range all {
		sum += x
	}
	return sum / float64(max(len(all), 1))
}

func ratios(all []float64) string {
	texts := make([]string, len(all))
	for i, x := range all {
		texts[i] = fmt.Sprintf("×%.2f", x)
	}
	return strings.Join(texts, " ")
}
