package simulate

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// TestRefusals checks that Read rejects invalid files with a message about the expected value.
func TestRefusals(t *testing.T) {
	good := one(2, monday, tenMinutes, "gates: [{name: g, query: x}]", "  hooks: {beforeDrain: [{name: lb}]}")
	good = strings.Replace(good, "reboot: 5m", "reboot: 5m, hooks: {lb: 1m}", 1)
	read(t, good)
	for _, c := range []struct{ old, new, want string }{
		{"start: " + monday, "", "start: missing"},
		{"count: 2", "count: 0", "count: 0, expected 1 to"},
		{"count: 2", "cuont: 2", `unknown field "cuont"`},
		{"count: 2", "count: 20001", "expected 1 to 20000"},
		{"drain: 5m, ", "", "expected drain and reboot"},
		{"drain: 5m", "drain: 5 minutes", `"5 minutes", expected a duration such as 5m`},
		{"drain: 5m", "drain: 5m..1m", "the shorter one first"},
		{"drain: 5m", `drain: "60% 5m, 60% 1m"`, "more than 100%"},
		{"drain: 5m", `drain: "60% 5m"`, "less than 100%"},
		{"drain: 5m", `drain: "5m, 1m"`, "two parts without a share"},
		{`os: "2"`, `os: "2", request: true`, "expected one of os, file, unit, sentinel, request and fleetLock"},
		{"hooks: {lb: 1m}", "hooks: {}", "nothing of lb, which policy p waits for"},
		{"start:", "gates: [{policy: p, gate: h, closed: []}]\nstart:", "no policy p has a gate h"},
		{"start:", "resolution: 1ms\nstart:", "resolution: 1ms, expected 1s to 1h"},
		{"gates: [{name", "setle: 0s, gates: [{name", "unknown field"},
		{"kind: DisruptionPolicy", "kind: Policy", `kind "Policy", expected a fleet`},
		{"v1alpha1", "v1", "expected a DisruptionPolicy of lockkeeper.dev/v1alpha1"},
		{"---\n", "---\nstart: " + monday + "\n---\n", "fleet.yaml: a second fleet"},
	} {
		text := strings.Replace(good, c.old, c.new, 1)
		if text == good {
			t.Fatalf("%q is not in the file", c.old)
		}
		if _, err := Read(File{"fleet.yaml", []byte(text)}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q instead of %q: %v, expected %s", c.new, c.old, err, c.want)
		}
	}
	if _, err := Read(File{"fleet.yaml", []byte("# nothing\n")}); err == nil || !strings.Contains(err.Error(), "no fleet") {
		t.Errorf("an empty file: %v", err)
	}
}

// TestSpread checks that in many draws each part has about its share, within its range.
func TestSpread(t *testing.T) {
	s, err := ParseSpread("2m..10m, 25% 1h..2h, 5% never")
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 1))
	var short, long, never int
	for range 10_000 {
		switch d, ok := s.draw(r); {
		case !ok:
			never++
		case d >= 2*time.Minute && d <= 10*time.Minute:
			short++
		case d >= time.Hour && d <= 2*time.Hour:
			long++
		default:
			t.Fatalf("%v is not in any of the ranges", d)
		}
	}
	if short < 6700 || short > 7300 || long < 2200 || long > 2800 || never < 400 || never > 600 {
		t.Errorf("%d short, %d long, %d never, expected about 7000, 2500 and 500", short, long, never)
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 90 * time.Second: "1m30s", 10 * time.Minute: "10m", time.Hour: "1h", 61 * time.Minute: "1h1m",
		3600*time.Second + 5*time.Second: "1h0m5s", 48 * time.Hour: "2d", 50*time.Hour + time.Minute: "2d2h1m",
	} {
		if got := span(d); got != want {
			t.Errorf("%v is %s, expected %s", time.Duration(d), got, want)
		}
	}
}
