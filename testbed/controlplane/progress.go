package controlplane

import (
	"fmt"
	"io"
	"os"
	"strings"
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

// LastLines returns the end of a log or of a command's output: at most n lines and 8 KiB.
func LastLines(text string, n int) string {
	const limit = 8 << 10
	text = strings.TrimRight(text, "\n")
	text = text[max(0, len(text)-limit):]
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
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
	return LastLines(string(data), 20)
}
