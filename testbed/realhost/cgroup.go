package realhost

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// makeCgroups creates a cgroup in every hierarchy and returns the directories. Without their own cgroups, two
// containers that are not registered with machined would share cgroups, and the systemd of one would kill the processes
// of the other.
func makeCgroups(name string) ([]string, error) {
	mounts, err := os.ReadFile("/proc/mounts")
	if err != nil {
		return nil, fmt.Errorf("finding cgroups: %w", err)
	}
	var made []string
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if len(fields) < 3 || fields[2] != "cgroup" && fields[2] != "cgroup2" {
			continue
		}
		dir := filepath.Join(fields[1], name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("creating a cgroup: %w", err)
		}
		if err := inheritCpuset(dir); err != nil {
			return nil, fmt.Errorf("creating a cgroup: %w", err)
		}
		made = append(made, dir)
	}
	if len(made) == 0 {
		return nil, fmt.Errorf("creating a cgroup: no cgroup hierarchy is mounted")
	}
	return made, nil
}

// inheritCpuset copies the CPUs and memory nodes of the parent. The cpuset controller of version 1 does not inherit
// them, and accepts no process without them.
func inheritCpuset(dir string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		own, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || len(bytes.TrimSpace(own)) > 0 {
			continue
		}
		parents, err := os.ReadFile(filepath.Join(filepath.Dir(dir), name))
		if err != nil || len(bytes.TrimSpace(parents)) == 0 {
			continue // the root of version 2 has no such file and needs none
		}
		if err := os.WriteFile(filepath.Join(dir, name), parents, 0o644); err != nil {
			return err
		}
	}
	return nil
}
