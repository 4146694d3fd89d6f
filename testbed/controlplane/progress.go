package controlplane

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
)

// progress writes progress messages. A nil writer discards them. It is safe for concurrent use.
type progress struct {
	mu sync.Mutex
	w  io.Writer
}

func newProgress(w io.Writer) *progress { return &progress{w: w} }

func (p *progress) printf(format string, args ...any) {
	if p.w == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.w, "controlplane: "+format+"\n", args...)
}

// lastLines returns the end of a command's output: at most n lines and 8 KiB.
func lastLines(data []byte, n int) string {
	const limit = 8 << 10
	data = bytes.TrimRight(data, "\n")
	if len(data) > limit {
		data = data[len(data)-limit:]
	}
	lines := bytes.Split(data, []byte("\n"))
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return string(bytes.Join(lines, []byte("\n")))
}

// tail returns the end of a log file, for error messages.
func tail(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return "(no log: " + err.Error() + ")"
	}
	if len(data) == 0 {
		return "(its log is empty)"
	}
	return lastLines(data, 20)
}
