package zincati

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// The agent waits or asks at the time of each cancellation, and must do nothing afterwards.
func TestCancellationEndsEachWait(t *testing.T) {
	for name, test := range map[string]struct {
		host host
		want string
	}{
		"steady-state refused": {host{steady: []int{500}}, `
			0s steady-state 500`},
		"nothing staged": {host{steady: []int{200}, staged: []bool{false}}, `
			0s steady-state 200
			0s staged false`},
		"pre-reboot refused": {host{steady: []int{200}, pre: []int{423}}, `
			0s steady-state 200
			0s staged true
			0s pre-reboot 423`},
		"session": {host{steady: []int{200}, pre: []int{200}, sessions: []bool{true}}, `
			0s steady-state 200
			0s staged true
			0s pre-reboot 200`},
		"finalize failed": {host{steady: []int{200}, pre: []int{200}, finalize: []error{errFailed}}, `
			0s steady-state 200
			0s staged true
			0s pre-reboot 200
			0s finalize failed`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(59*time.Second, cancel)
				h := &test.host
				h.run(t, ctx, h.agent(), context.Canceled, test.want)
				if ran := time.Since(h.start); ran != 59*time.Second {
					t.Errorf("Run returned after %v, want 59s", ran)
				}
			})
		})
	}
}

// A slot that is granted while the service stops is not used.
func TestCancellationDuringRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		h := &host{steady: []int{200}, pre: []int{200}}
		a := h.agent()
		staged := a.Staged
		a.Staged = func() bool { cancel(); return staged() }
		h.run(t, ctx, a, context.Canceled, `
			0s steady-state 200
			0s staged true
			0s pre-reboot 200`)
	})
}

func TestRandomJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := map[time.Duration]bool{}
		a := (&host{}).agent()
		a.Jitter = nil
		for range 1000 {
			start := time.Now()
			if err := a.waitRefresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			seen[time.Since(start)] = true
		}
		for _, want := range []string{"5m0s", "5m3s", "5m6s", "5m9s", "5m12s", "5m15s", "5m18s", "5m21s", "5m24s", "5m27s", "5m30s"} {
			if period, err := time.ParseDuration(want); err != nil || !seen[period] {
				t.Errorf("no period of 1000 was %s", want)
			}
		}
		if len(seen) != 11 {
			t.Errorf("the periods are %v, want 11 different ones", seen)
		}
	})
}

func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &host{steady: []int{423, 200}, pre: []int{0, 200}, sessions: []bool{true, false},
			finalize: []error{errFailed, nil}, reboot: []error{errFailed}}
		a := h.agent()
		var lines []string
		a.Log = func(line string) { lines = append(lines, line) }
		if err := a.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		compare(t, lines, `
			initialized, reporting steady state
			steady-state refused: code 423, lock_held: busy
			steady, waiting for a staged update
			update staged, asking for a reboot slot
			pre-reboot failed: send request: Post "http://server/v1/pre-reboot": connection refused
			slot granted, postponed for a session, 9 postponements left
			slot granted, finalizing the update
			finalize failed: failed
			slot granted, finalizing the update
			update finalized, rebooting
			reboot failed, not trying again: failed`)
	})
}

func TestRebootIsCalledOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &host{steady: []int{200}, pre: []int{200}, reboot: []error{errFailed}}
		a := h.agent()
		want := `
			0s steady-state 200
			0s staged true
			0s pre-reboot 200
			0s finalize <nil>
			0s reboot failed`
		h.run(t, t.Context(), a, nil, want)
		time.Sleep(24 * time.Hour)
		compare(t, h.trace, want)
		h.run(t, t.Context(), a, nil, want) // zincati.service restarts
	})
}

func TestRequestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := Client{BaseURL: "http://h/", Identity: identity, HTTP: &http.Client{Transport: roundTrip(
			func(r *http.Request) (*http.Response, error) {
				<-r.Context().Done()
				return nil, r.Context().Err()
			})}}
		start := time.Now()
		_, err := client.PreReboot(t.Context())
		if waited := time.Since(start); waited != 30*time.Minute || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("PreReboot returned %v after %v, want a timeout after 30m", err, waited)
		}
	})
}
