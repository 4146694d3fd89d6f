package rollout_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the logs in testdata anew")

const logMark = "-- log --\n"

// TestScripts runs testdata/*.txt: commands and hand-written expectations,
// then, below the mark, the log that the run leaves. See testdata/README.md.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "*.txt"))
	if err != nil || len(files) < 20 {
		t.Fatalf("%d scripts: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			script, want, _ := strings.Cut(string(text), logMark)
			if !strings.Contains(script, "\nexpect ") {
				t.Error("the script expects nothing")
			}
			c := newCluster()
			for nr, line := range strings.Split(script, "\n") {
				line, _, _ = strings.Cut(line, "#")
				if args := strings.Fields(line); len(args) > 0 {
					if err := c.command(args); err != nil {
						t.Fatalf("%s:%d: %s: %v\n%s", file, nr+1, strings.Join(args, " "), err, strings.Join(c.log, "\n"))
					}
				}
				for _, b := range c.broken {
					t.Errorf("%s:%d: promise broken: %s", file, nr+1, b)
				}
				c.broken = nil
			}
			got := strings.Join(c.log, "\n") + "\n"
			if *update {
				if err := os.WriteFile(file, []byte(script+logMark+got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != want {
				t.Errorf("the log differs (rewrite with: go test ./coordinator/rollout -run TestScripts -args -update, and read it)\ngot:\n%s\nexpected:\n%s", got, want)
			}
		})
	}
}

// command carries out one line.
func (c *cluster) command(args []string) error {
	name := ""
	if len(args) > 1 {
		name = args[1]
	}
	rest := strings.Join(args[min(2, len(args)):], " ")
	n, h := c.nodes[name], c.hosts[name]
	switch args[0] {
	case "policy":
		return c.setPolicy(args[1:])
	case "node":
		return c.addNode(name, args[2:])
	case "leader":
		if c.leads && c.lease.Holder != "" {
			c.ledUntil = c.now
		}
		c.leads = name != "none"
		if c.leads {
			c.lease.Holder = name
			c.logf("%s leads", name)
		}
		return nil
	case "gate":
		c.gate(args[1], args[2], args[3])
		return nil
	case "stop", "go":
		c.lease.Stopped = args[0] == "stop"
		c.logf("%s", args[0])
		return nil
	case "lease":
		if c.lease.Exists = name != "gone"; !c.lease.Exists {
			c.leads, c.ledUntil = false, time.Time{} // the manifests' Lease has no renewal
		}
		return nil
	case "advance":
		d, err := time.ParseDuration(name)
		if err != nil {
			return err
		}
		c.run(d, nil)
		return nil
	case "run":
		return c.runUntil(args[1:])
	case "expect":
		return c.expect(name, args[2:])
	case "snapshot":
		c.taken[name] = c.snapshot(name)
		return nil
	case "late":
		return c.late(name, args[2])
	}
	if h == nil {
		return fmt.Errorf("no such command or host")
	}
	c.logf("# %s", strings.Join(args, " "))
	return c.onHost(args[0], n, h, rest)
}
