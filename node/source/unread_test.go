package source

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lockkeeper.dev/lockkeeper/updateengine"
)

// TestUnread checks when a source counts as unread: when its reads have failed for ten seconds, from the first to the last of
// them. A single read that failed does not count, however long ago it was. The loop is woken when that begins and ends.
func TestUnread(t *testing.T) {
	// Each source has a function that reads it, which fails if fails is set.
	type bench struct {
		read   func(fails bool)
		unread func() error
		woken  *int
	}
	text := map[string]string{
		"sentinels": "sentinel: ", "managers": "other reboot managers: no answer", "engine": "update_engine: asking the update engine: no answer",
		"an engine's operation": `update_engine: it is in operation "UPDATE_STATUS_SOMETHING", which is not known`,
	}
	for name, newBench := range map[string]func(t *testing.T) bench{
		"sentinels": func(t *testing.T) bench {
			dir, woken := t.TempDir(), new(int)
			s := NewSentinels(Options{Root: dir, Log: slog.New(slog.DiscardHandler), Changed: func() { *woken++ }}, []string{"/run/a"})
			return bench{func(fails bool) {
				run := filepath.Join(dir, "run")
				must(t, os.RemoveAll(run))
				if fails {
					must(t, os.Symlink("run", run)) // it leads to itself
				}
				if err := s.Read(); (err != nil) != fails {
					t.Errorf("sentinels: %v", err)
				}
			}, s.Unread, woken}
		},
		"managers": func(t *testing.T) bench {
			units, woken := &runs{}, new(int)
			m := NewManagers(Options{Root: t.TempDir(), Log: slog.New(slog.DiscardHandler), Changed: func() { *woken++ }}, units, func() (string, error) { return "", nil }, "")
			return bench{func(fails bool) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if units.err = nil; fails {
					units.err = errors.New("no answer")
				}
				_ = m.Read(ctx)
				cancel()
				_ = m.Read(ctx) // that the caller gives up says nothing
			}, m.Unread, woken}
		},
		"engine": func(t *testing.T) bench {
			bus := &engineBus{operation: "UPDATE_STATUS_IDLE"}
			e := NewEngine(updateengine.New(updateengine.Options{Object: bus}), bus)
			return bench{func(fails bool) {
				if bus.err = nil; fails {
					bus.err = errors.New("no answer")
				}
				_ = e.Read(t.Context())
			}, e.Unread, nil} // the engine's source wakes the loop
		},
		"an engine's operation": func(t *testing.T) bench {
			bus := &engineBus{}
			e := NewEngine(updateengine.New(updateengine.Options{Object: bus}), bus)
			return bench{func(fails bool) {
				if bus.operation = "UPDATE_STATUS_IDLE"; fails {
					bus.operation = "UPDATE_STATUS_SOMETHING"
				}
				_ = e.Read(t.Context())
			}, e.Unread, nil}
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			if err := b.unread(); err != nil {
				t.Errorf("%s, not read yet: %v", name, err)
			}
			b.read(false)
			unread := false
			for i, step := range []struct {
				after         time.Duration
				fails, unread bool
			}{
				{0, true, false}, {time.Minute, false, false}, // once
				{time.Second, true, false}, {9 * time.Second, true, false}, {time.Second, true, true}, {time.Hour, true, true}, {time.Second, false, false},
				{time.Second, true, false},
			} {
				time.Sleep(step.after)
				was := b.unread() != nil
				if was != unread {
					t.Errorf("%s, before step %d: unread %t", name, i, was)
				}
				if b.woken != nil {
					*b.woken = 0
				}
				b.read(step.fails)
				err := b.unread()
				if (err != nil) != step.unread || err != nil && !strings.HasPrefix(err.Error(), text[name]) {
					t.Errorf("%s, step %d: %v, expected %t", name, i, err, step.unread)
				}
				if b.woken != nil && (*b.woken > 0) != (was != step.unread) {
					t.Errorf("%s, step %d: woken %d times", name, i, *b.woken)
				}
				unread = step.unread
			}
		})
	}
}
