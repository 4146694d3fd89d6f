package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeGo puts a fake go command on PATH. The test provides what `go build` does, as a shell script: $out is the output file, and the shell
// function binary writes it. All other tests of this package use the real command, through Start.
func fakeGo(t *testing.T, build string) {
	t.Helper()
	script := fmt.Sprintf(`#!/bin/sh
case "$1" in
env) echo go1.99 linux amd64 ;;
list) echo v1.2.3 ;;
build)
	while [ "$1" != -o ]; do shift; done
	out=$2
	binary() { echo built >"$out"; chmod +x "$out"; }
	%s ;;
esac
`, build)
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "go"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
}

// newBuilder returns a builder for a module with the given go.mod and an empty cache.
func newBuilder(t *testing.T, gomod string, log *bytes.Buffer) builder {
	t.Helper()
	src := t.TempDir()
	for name, data := range map[string]string{"go.mod": gomod, "go.sum": ""} {
		if err := os.WriteFile(filepath.Join(src, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b := builder{tools: tools, what: "the control plane's binaries", cache: filepath.Join(t.TempDir(), "cache"), src: src, newest: src, log: newProgress(nil), every: 10 * time.Millisecond}
	if log != nil {
		b.log = newProgress(log)
	}
	return b
}

func TestBuildOnceForAll(t *testing.T) {
	count := filepath.Join(t.TempDir(), "count")
	fakeGo(t, "echo built >>"+count+"; sleep 0.05; binary")
	b := newBuilder(t, "module a", nil)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			dir, err := b.build(t.Context())
			if err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(binariesIn(dir).Etcd); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	builds := func() int { data, _ := os.ReadFile(count); return strings.Count(string(data), "built") / len(tools) }
	if builds() != 1 {
		t.Errorf("four at once have built %d times, want once", builds())
	}
	must(b.build(t.Context()))(t)
	if builds() != 1 {
		t.Error("built an existing entry again")
	}
	if err := os.WriteFile(filepath.Join(b.src, "go.mod"), []byte("module b"), 0o644); err != nil {
		t.Fatal(err)
	}
	dir := must(b.build(t.Context()))(t)
	if builds() != 2 {
		t.Error("another go.mod did not cause another build")
	}
	if err := os.Remove(binariesIn(dir).Kwok); err != nil {
		t.Fatal(err)
	}
	must(b.build(t.Context()))(t)
	if builds() != 3 {
		t.Error("a directory that lacks a binary counts as complete")
	}
}

func TestBuildReportsProgress(t *testing.T) {
	var said bytes.Buffer
	fakeGo(t, "sleep 0.1; binary")
	must(newBuilder(t, "module a", &said).build(t.Context()))(t)
	for _, want := range []string{
		"building the control plane's binaries of Kubernetes v1.2.3 into ", "building etcd (1 of 6)\n", "building kube-apiserver (2 of 6)\n",
		"still building kube-apiserver (2 of 6), ", "building kwok (6 of 6)\n", "built the control plane's binaries in",
	} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, said.String())
		}
	}
}

func TestBuildThatFails(t *testing.T) {
	fakeGo(t, "binary; echo it does not compile >&2; exit 1")
	b := newBuilder(t, "module a", nil)
	_, err := b.build(t.Context())
	if err == nil || !strings.Contains(err.Error(), "it does not compile") || !strings.Contains(err.Error(), "etcd (1 of 6)") {
		t.Errorf("error %v, want one with the part and the compiler's message", err)
	}
	wantOnlyLock(t, b.cache)
}

func TestBuildCancelled(t *testing.T) {
	pidFile := filepath.Join(t.TempDir(), "pid")
	// The processes that go build itself has started ignore the interrupt.
	fakeGo(t, `sh -c 'trap "" INT; echo $$ >`+pidFile+`.new; mv `+pidFile+`.new `+pidFile+`; exec sleep 60' & wait`)
	b := newBuilder(t, "module a", nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	gaveUp := errors.New("gave up")
	done := make(chan error, 1)
	go func() {
		_, err := b.build(ctx)
		done <- err
	}()
	var pid int
	for deadline := time.Now().Add(time.Minute); pid == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the build does not start")
		}
		if data, err := os.ReadFile(pidFile); err == nil {
			fmt.Sscan(string(data), &pid)
		}
	}
	// Another process that waits for the build can give up too.
	waiting, stopWaiting := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stopWaiting()
	if _, err := b.build(waiting); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting for another build: %v, want the deadline", err)
	}
	cancel(gaveUp)
	if err := <-done; !errors.Is(err, gaveUp) {
		t.Errorf("a cancelled build: %v, want %v", err, gaveUp)
	}
	waitGone(t, pid)
	wantOnlyLock(t, b.cache)
}

func TestCacheIsPruned(t *testing.T) {
	fakeGo(t, "binary")
	b := newBuilder(t, "module a", nil)
	make := func(name string, age time.Duration, whole bool) {
		dir := filepath.Join(b.cache, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, tl := range tools {
			if !whole {
				break
			}
			if err := os.WriteFile(filepath.Join(dir, tl.name), nil, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		when := time.Now().Add(-age)
		if err := os.Chtimes(dir, when, when); err != nil {
			t.Fatal(err)
		}
	}
	make("today-1", time.Hour, true)
	make("today-2", 2*time.Hour, true)
	make("today-3", 3*time.Hour, true)
	make("last-week", 7*24*time.Hour, true)
	make("half", time.Hour, false)
	make(unfinished+"1", time.Hour, true)
	dir := must(b.build(t.Context()))(t)
	for name, want := range map[string]bool{
		filepath.Base(dir): true,
		"today-1":          true, "today-2": true, "today-3": true,
		"last-week": false, "half": false, unfinished + "1": false,
	} {
		if _, err := os.Stat(filepath.Join(b.cache, name)); (err == nil) != want {
			t.Errorf("%s: %v, want it there: %t", name, err, want)
		}
	}
}

func wantOnlyLock(t *testing.T, cache string) {
	t.Helper()
	for _, e := range must(os.ReadDir(cache))(t) {
		if e.Name() != "lock" {
			t.Errorf("%s is left in the cache", e.Name())
		}
	}
}
