package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// record is one line of the history file. It holds ratios only: absolute times mean nothing on another machine.
type record struct {
	Date    string             `json:"date"`
	Commit  string             `json:"commit"`
	Machine string             `json:"machine"`
	Load    string             `json:"load"` // average over the last minute of the run
	Ratios  map[string]float64 `json:"ratios"`
}

// worse is from which growth on a ratio is printed as changed.
const worse = 1.1

// keep appends this run to the history file, and prints which ratios have changed since the runs before it on a machine of the
// same kind.
func keep(path, commit string) error {
	before, err := history(path)
	if err != nil {
		return err
	}
	now := record{time.Now().UTC().Format(time.DateOnly), commit, machine(), load(), measured}
	last, of := map[string]float64{}, map[string]string{}
	for _, r := range before {
		if r.Machine == now.Machine {
			maps.Copy(last, r.Ratios)
			for name := range r.Ratios {
				of[name] = r.Commit
			}
		}
	}
	fmt.Printf("\nChanges of more than %.0f%% since the last run on such a machine (%s):\n", 100*(worse-1), now.Machine)
	for _, name := range slices.Sorted(maps.Keys(measured)) {
		was, is := last[name], measured[name]
		if was > 0 && is > 0 && max(was/is, is/was) > worse {
			fmt.Printf("    %s: ×%.2f at %s, ×%.2f now\n", name, was, of[name], is)
		}
	}
	line, err := json.Marshal(now)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// history reads the runs of a history file, the oldest first. A file that is not there has none.
func history(path string) (all []record, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, len(all)+1, err)
		}
		all = append(all, r)
	}
	return all, lines.Err()
}

// machine returns the kind of this machine: its processor and how many CPUs it has.
func machine() string {
	model := runtime.GOARCH
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	return fmt.Sprintf("%d × %s", runtime.NumCPU(), model)
}
