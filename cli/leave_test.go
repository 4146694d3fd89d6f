package cli

import (
	"context"
	"strings"
	"testing"
	"time"
	"unicode"

	"lockkeeper.dev/lockkeeper/node/local"
)

// TestLeavePrintsNoEscapeSequence checks what root reads while a host leaves that is paused: another user wrote the reason.
func TestLeavePrintsNoEscapeSequence(t *testing.T) {
	dir := t.TempDir()
	if err := local.Write(dir, local.Status{Line: "Paused: \x1b]0;owned\a\x1b[2J", Host: local.Host{Node: "n1"}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second/10)
	defer cancel()
	var said []string
	if _, err := waitUntilLeft(ctx, dir, func(line string) { said = append(said, line) }); err == nil || len(said) != 1 {
		t.Fatalf("%v, %q", err, said)
	}
	if strings.ContainsFunc(said[0], func(r rune) bool { return !unicode.IsPrint(r) }) {
		t.Errorf("it prints %q", said[0])
	}
}
