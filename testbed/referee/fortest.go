package referee

import "context"

// TB is the part of *testing.T that [ForTest] uses.
type TB interface {
	Helper()
	Cleanup(func())
	Context() context.Context
	Log(args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// ForTest starts a referee for one test and logs every transition. When the test ends, after the cleanup functions that were registered later than
// this call, ForTest fails the test for every violation and for every unused declaration: a test that declares an act and does not perform it does
// not test what it claims.
func ForTest(t TB, cluster Cluster, opts Options) *Referee {
	t.Helper()
	if opts.OnEvent == nil {
		opts.OnEvent = func(text string) { t.Log(text) }
	}
	r, err := Start(t.Context(), cluster, opts)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		report, err := r.Close()
		if err != nil || len(report.Unused) > 0 {
			t.Errorf("the referee: %s", report.String())
		} else {
			t.Log("the referee: " + report.String())
		}
	})
	return r
}
