package referee

import "context"

// TB is what [ForTest] needs of a *testing.T.
type TB interface {
	Helper()
	Cleanup(func())
	Context() context.Context
	Log(args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// ForTest starts a referee for one test, which logs every transition. When the test ends, the cleanups that were registered after this
// call first, it fails the test for every violation, and for every declaration that nothing came of: a test that declares
// what it does not do tests something else than it says.
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
