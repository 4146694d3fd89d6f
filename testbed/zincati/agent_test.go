package zincati

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

var errFailed = errors.New("failed")

// With a jitter of 10 %, a refresh period is 5m30s.
func TestAsksAgainAfterTheRefreshPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &host{jitter: 10, steady: []int{500, 0, 204}, staged: []bool{false, false, true}, pre: []int{423, 0, 200}}
		h.run(t, t.Context(), h.agent(), nil, `
			0s steady-state 500
			5m30s steady-state 0
			11m0s steady-state 204
			11m0s staged false
			16m30s staged false
			22m0s staged true
			22m0s pre-reboot 423
			27m30s pre-reboot 0
			33m0s pre-reboot 200
			33m0s finalize <nil>
			33m0s reboot <nil>`)
	})
}

func TestSteadyStateRefusedIndefinitely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 29*time.Minute)
		defer cancel()
		h := &host{steady: []int{500}}
		h.run(t, ctx, h.agent(), context.DeadlineExceeded, `
			0s steady-state 500
			5m0s steady-state 500
			10m0s steady-state 500
			15m0s steady-state 500
			20m0s steady-state 500
			25m0s steady-state 500`)
		if ran := time.Since(h.start); ran != 29*time.Minute {
			t.Errorf("Run returned after %v, want 29m", ran)
		}
	})
}

func TestSessionsPostponeTenTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &host{jitter: 10, steady: []int{200}, pre: []int{200}, sessions: []bool{true}}
		h.run(t, t.Context(), h.agent(), nil, `
			0s steady-state 200
			0s staged true
			0s pre-reboot 200
			1m0s pre-reboot 200
			2m0s pre-reboot 200
			3m0s pre-reboot 200
			4m0s pre-reboot 200
			5m0s pre-reboot 200
			6m0s pre-reboot 200
			7m0s pre-reboot 200
			8m0s pre-reboot 200
			9m0s pre-reboot 200
			10m0s pre-reboot 200
			10m0s finalize <nil>
			10m0s reboot <nil>`)
	})
}

func TestSessionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &host{steady: []int{200}, pre: []int{200}, sessions: []bool{true, false}}
		h.run(t, t.Context(), h.agent(), nil, `
			0s steady-state 200
			0s staged true
			0s pre-reboot 200
			1m0s pre-reboot 200
			1m0s finalize <nil>
			1m0s reboot <nil>`)
	})
}

func TestRefusalResetsThePostponements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &host{steady: []int{200}, pre: []int{200, 200, 423, 200}, sessions: []bool{true}}
		a := h.agent()
		a.Postponements, a.Postponement, a.Refresh = 3, 7*time.Second, 100*time.Second
		h.run(t, t.Context(), a, nil, `
			0s steady-state 200
			0s staged true
			0s pre-reboot 200
			7s pre-reboot 200
			14s pre-reboot 423
			1m54s pre-reboot 200
			2m1s pre-reboot 200
			2m8s pre-reboot 200
			2m15s pre-reboot 200
			2m15s finalize <nil>
			2m15s reboot <nil>`)
	})
}

func TestFinalizeFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &host{steady: []int{200}, pre: []int{200}, finalize: []error{errFailed, errFailed, nil}}
		h.run(t, t.Context(), h.agent(), nil, `
			0s steady-state 200
			0s staged true
			0s pre-reboot 200
			0s finalize failed
			5m0s pre-reboot 200
			5m0s finalize failed
			10m0s pre-reboot 200
			10m0s finalize <nil>
			10m0s reboot <nil>`)
	})
}

// After a postponement, the agent tries again each minute until a refusal.
func TestFinalizeFailsAfterPostponement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &host{steady: []int{200}, pre: []int{200, 200, 200, 500, 200}, sessions: []bool{true, false},
			finalize: []error{errFailed, errFailed, errFailed, nil}}
		h.run(t, t.Context(), h.agent(), nil, `
			0s steady-state 200
			0s staged true
			0s pre-reboot 200
			1m0s pre-reboot 200
			1m0s finalize failed
			2m0s pre-reboot 200
			2m0s finalize failed
			3m0s pre-reboot 500
			8m0s pre-reboot 200
			8m0s finalize failed
			13m0s pre-reboot 200
			13m0s finalize <nil>
			13m0s reboot <nil>`)
	})
}
