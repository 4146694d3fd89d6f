package simulate

import "testing"

// read parses the fleet of a test.
func read(t *testing.T, text string) *Fleet {
	t.Helper()
	f, err := Read(File{"fleet.yaml", []byte(text)})
	if err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	return f
}

// roll rolls a fleet. A broken limit ends the test.
func roll(t *testing.T, text string) *Report {
	t.Helper()
	r, err := Run(t.Context(), read(t, text))
	if err != nil {
		t.Fatalf("%v:\n%s", err, r)
	}
	return r
}
