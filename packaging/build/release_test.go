package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestReleaseRefuses gives a release what it cannot be made of. Nothing may be made.
func TestReleaseRefuses(t *testing.T) {
	home := t.TempDir()
	t.Setenv("GNUPGHOME", home)
	t.Setenv("SOURCE_DATE_EPOCH", "1789000000")
	const here = "https://downloads.example.com/lockkeeper"
	for _, tc := range []struct{ version, url, platforms, key, want string }{
		{"0123456", here, "linux/amd64", "", `the version "0123456" is not a release's: set VERSION`},
		{"v1.2.3-5-g0123456", here, "linux/amd64", "", `the version "v1.2.3-5-g0123456" is not a release's`},
		{"1.2.3-dirty", here, "linux/amd64", "", `the version "1.2.3-dirty" is not a release's`},
		{"1.2.3", "", "linux/amd64", "", `the address "" is not one at which files can be published: set URL`},
		{"1.2.3", "downloads.example.com", "linux/amd64", "", "set URL"},
		{"1.2.3", "file:///srv", "linux/amd64", "", "set URL"},
		{"1.2.3", here + "/?a=b", "linux/amd64", "", "set URL"},
		{"1.2.3", here + "/a b", "linux/amd64", "", "set URL"},
		{"1.2.3", here, "linux/riscv64", "", `platform "linux/riscv64", expected some of [linux/amd64 linux/arm64 darwin/amd64 darwin/arm64]`},
		{"1.2.3", here, "", "", `platform ""`},
	} {
		out := t.TempDir() + "/dist"
		err := run(t.Context(), []string{"-release", "-version", tc.version, "-url", tc.url, "-platforms", tc.platforms, "-key", tc.key, "-out", out})
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: %v, expected %q", tc, err, tc.want)
		}
		if _, err := os.Stat(out); err == nil {
			t.Errorf("%q: something was made", tc)
		}
	}
	if err := run(t.Context(), []string{"-version", "1.2.3", "-key", "x"}); err == nil || !strings.Contains(err.Error(), "-key is for a release") {
		t.Errorf("a key without a release: %v", err)
	}
}

// TestFindKey names a key that does not exist, one, and one of two.
func TestFindKey(t *testing.T) {
	if _, err := exec.LookPath("gpg"); err != nil {
		t.Skip("left out: gpg is missing: apt-get install gnupg")
	}
	home, err := os.MkdirTemp("", "gpg-") // short: gpg-agent's socket is in it
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("GNUPGHOME", home)
	t.Cleanup(func() {
		_ = exec.Command("gpgconf", "--homedir", home, "--kill", "all").Run()
		os.RemoveAll(home)
	})
	create := func(id string) {
		if out, err := exec.CommandContext(t.Context(), "gpg", "--batch", "--passphrase", "", "--quick-gen-key", id, "ed25519", "sign", "never").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if _, err := findKey(t.Context(), "nobody@example.com"); err == nil || !strings.Contains(err.Error(), `the signing key "nobody@example.com"`) {
		t.Errorf("no key: %v", err)
	}
	create("first@example.com")
	key, err := findKey(t.Context(), "first@example.com")
	if err != nil || len(key) != 40 {
		t.Errorf("one key: %q, %v", key, err)
	}
	create("second@example.com")
	if _, err := findKey(t.Context(), "example.com"); err == nil || !strings.Contains(err.Error(), "2 secret keys match, expected one; name it by its fingerprint") {
		t.Errorf("two keys: %v", err)
	}
	if again, err := findKey(t.Context(), key); err != nil || again != key {
		t.Errorf("by its fingerprint: %q, %v", again, err)
	}
	if _, err := findKey(t.Context(), "--version"); err == nil {
		t.Error("a key whose name is an option is found")
	}
}
