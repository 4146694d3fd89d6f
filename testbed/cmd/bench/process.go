package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// usage is the resource usage of a process so far.
type usage struct {
	at       time.Time
	rss, pss int64 // bytes in memory: in total, and with shared pages divided
	anon     int64 // the part of rss without a file
	switches int64 // voluntary context switches of all threads: waits and wake-ups
	cpu      time.Duration
	threads  int
}

// usageOf reads /proc/PID: the memory from smaps_rollup, CPU time and waits from each thread.
func usageOf(pid int) (usage, error) {
	u := usage{at: time.Now()}
	dir := fmt.Sprintf("/proc/%d", pid)
	rollup, err := keys(filepath.Join(dir, "smaps_rollup"))
	if err != nil {
		return u, err
	}
	u.rss, u.pss, u.anon = rollup["Rss"]*kib, rollup["Pss"]*kib, rollup["Pss_Anon"]*kib
	tasks, err := filepath.Glob(filepath.Join(dir, "task", "*"))
	if err != nil || len(tasks) == 0 {
		return u, fmt.Errorf("process %d has no threads: %w", pid, os.ErrProcessDone)
	}
	for _, task := range tasks {
		status, err := keys(filepath.Join(task, "status"))
		if err != nil {
			continue // the thread has just ended
		}
		data, err := os.ReadFile(filepath.Join(task, "schedstat"))
		if err != nil {
			continue
		}
		ns, err := strconv.ParseInt(strings.Fields(string(data))[0], 10, 64)
		if err != nil {
			return u, fmt.Errorf("reading %s/schedstat: %w", task, err)
		}
		u.threads++
		u.switches += status["voluntary_ctxt_switches"]
		u.cpu += time.Duration(ns)
	}
	return u, nil
}

// keys parses a file of "Key: 12 kB" lines.
func keys(path string) (map[string]int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	all := map[string]int64{}
	for line := range strings.Lines(string(data)) {
		key, rest, _ := strings.Cut(line, ":")
		if f := strings.Fields(rest); len(f) > 0 {
			if n, err := strconv.ParseInt(f[0], 10, 64); err == nil {
				all[key] = n
			}
		}
	}
	return all, nil
}

// perMinute returns the rate of a count between two readings.
func perMinute(n float64, from, to usage) float64 { return n / to.at.Sub(from.at).Minutes() }
