package watched

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

const (
	aSecret = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
	// Computed with openssl: printf 'path "/etc/one"\nfile 0644\nhello' | openssl dgst -sha256 -mac HMAC -macopt
	// hexkey:…
	aVersion = "4b3be5d4-8cd02898c1fd"
)

func (b *bench) keyFile() string { return filepath.Join(b.state, keyName) }

func (b *bench) writeState(name, text string) {
	b.t.Helper()
	must(b.t, os.MkdirAll(b.state, 0o700))
	must(b.t, os.WriteFile(filepath.Join(b.state, name), []byte(text), 0o600))
	must(b.t, os.Chmod(filepath.Join(b.state, name), 0o600))
}

// read refreshes and returns the changes.
func (b *bench) read(w *Watcher) []v1alpha1.Change {
	b.t.Helper()
	must(b.t, w.Refresh(b.t.Context()))
	changes, _, _ := read(w)
	return changes
}

// changed creates a watched file that has changed, and the Watcher that reports it.
func changed(t *testing.T, key, text string) (*bench, *Watcher, v1alpha1.Change) {
	t.Helper()
	b := newBench(t)
	if key != "" {
		b.writeState(keyName, key)
	}
	b.write("etc/one", "what is in effect")
	w := b.watching()
	b.read(w)
	b.write("etc/one", text)
	changes := b.read(w)
	if len(changes) != 1 || v1alpha1.DigestKey(changes[0].Version) != w.key.id {
		t.Fatalf("%v, expected one change with the key %s", changes, w.key.id)
	}
	return b, w, changes[0]
}

// TestVersion checks that the version is the start of an HMAC-SHA256 over the path, the mode and the content.
func TestVersion(t *testing.T) {
	if _, _, c := changed(t, aSecret+"\n", "hello"); c != file("/etc/one", aVersion) {
		t.Errorf("%v", c)
	}
}

// TestVersionsOfTwoHosts checks that two hosts publish different versions of the same content, while one host always
// publishes the same version, also after a restart and after another boot.
func TestVersionsOfTwoHosts(t *testing.T) {
	b, w, c := changed(t, "", "hello")
	_, other, o := changed(t, "", "hello")
	if w.key.id == other.key.id || c.Version[v1alpha1.KeyIDLength:] == o.Version[v1alpha1.KeyIDLength:] {
		t.Errorf("two hosts: %v and %v", c, o)
	}
	info, err := os.Stat(b.keyFile())
	must(t, err)
	if info.Mode() != 0o600 {
		t.Errorf("mode of the key file: %v", info.Mode())
	}
	if got := b.read(b.watching()); !slices.Equal(got, []v1alpha1.Change{c}) {
		t.Errorf("after a restart: %v, expected %v", got, c)
	}
	b.write("etc/one", "hi")
	if got := b.read(b.watching()); len(got) != 1 || got[0].Same(c) {
		t.Errorf("another content: %v, was %v", got, c)
	}
	b.write("etc/one", "what is in effect")
	b.options.BootID = "another-boot"
	w = b.watching()
	b.read(w)
	b.write("etc/one", "hello")
	if got := b.read(w); !slices.Equal(got, []v1alpha1.Change{c}) {
		t.Errorf("in another boot: %v, expected %v", got, c)
	}
	if b.log.has("level=WARN") {
		t.Errorf("the log has an error about a new or an old key: %s", b.log.text.String())
	}
}

// TestVersionsOfTwoFiles checks that two files with the same content have different versions, so that a user who can
// write one of them cannot guess the content of the other.
func TestVersionsOfTwoFiles(t *testing.T) {
	b := newBench(t)
	w := b.watching()
	b.read(w)
	b.write("etc/dir/secret", "hunter2")
	b.write("etc/dir/guess", "hunter2")
	must(t, os.Symlink("secret", b.at("etc/dir/link")))
	must(t, os.Symlink("secret", b.at("etc/dir/link2")))
	versions := map[string]bool{}
	for _, c := range b.read(w) {
		versions[c.Version] = true
	}
	if len(versions) != 4 {
		t.Errorf("four files have the versions %v", versions)
	}
}

// TestVersionsAtOnePath checks that at one path of one host the same content has the same version, because that is the
// purpose of versions. A user who may name a path in a policy, and may also write the file there, can test guesses
// about another file in this way. See docs/security.md.
func TestVersionsAtOnePath(t *testing.T) {
	b := newBench(t)
	b.write("secret", "hunter2")
	b.write("pod/guess", "hunter2")
	b.write("pod/wrong", "hunter1")
	w := b.new()
	w.Watch([]string{"/pod/link"}, nil, nil)
	b.read(w)
	must(t, os.Symlink("target", b.at("pod/link")))
	version := func(target string) string {
		must(t, os.RemoveAll(b.at("pod/target")))
		must(t, os.Symlink(target, b.at("pod/target")))
		changes := b.read(w)
		if len(changes) != 1 {
			t.Fatalf("%v, expected one change", changes)
		}
		return changes[0].Version
	}
	secret, guess, wrong := version("../secret"), version("guess"), version("wrong")
	if secret != guess || secret == wrong {
		t.Errorf("the secret has %s, a right guess %s, a wrong guess %s", secret, guess, wrong)
	}
}

// TestKeyIsLost checks that a key that is lost, or that another user may know, is replaced. The new key alone causes no
// change, and its versions reveal nothing about the old ones.
func TestKeyIsLost(t *testing.T) {
	for name, lose := range map[string]func(b *bench){
		"an empty /var":  func(b *bench) { must(t, os.RemoveAll(b.state)) },
		"no key":         func(b *bench) { must(t, os.Remove(b.keyFile())) },
		"cut off":        func(b *bench) { b.writeState(keyName, aSecret[:60]) },
		"empty":          func(b *bench) { b.writeState(keyName, "") },
		"zeros":          func(b *bench) { b.writeState(keyName, strings.Repeat("\x00", 65)) },
		"others read it": func(b *bench) { must(t, os.Chmod(b.keyFile(), 0o640)) },
		"another one":    func(b *bench) { b.writeState(keyName, strings.Repeat("ab", keySize)) },
		"a plain baseline": func(b *bench) {
			must(t, os.Remove(b.keyFile()))
			b.writeState(baselineName, `{"version":2,"bootID":"`+boot+`","digests":{"/etc/one":"`+strings.Repeat("0", 64)+`"},"roots":{"/etc/one":"0001-01-01T00:00:00Z"}}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, _, old := changed(t, aSecret, "hello")
			b.write("etc/dir/a", "in effect as well")
			lose(b)
			w := b.watching()
			if got := b.read(w); len(got) != 0 {
				t.Errorf("the new key alone causes the changes %v", got)
			}
			if warned := b.log.has("level=WARN"); warned == (name == "an empty /var") {
				t.Errorf("warned %t: %s", warned, b.log.text.String())
			}
			info, err := os.Stat(b.keyFile())
			must(t, err)
			if w.key.id == "4b3be5d4" || info.Mode() != 0o600 {
				t.Errorf("the key is %s, mode of the file %v", w.key.id, info.Mode())
			}
			b.write("etc/one", "hello, hello")
			b.write("etc/dir/a", "b")
			got := b.read(w)
			if len(got) != 2 || !got[1].Same(old) || got[1] == old {
				t.Errorf("%v: the last version cannot be compared with %v", got, old)
			}
			if now := b.read(b.watching()); !slices.Equal(now, got) {
				t.Errorf("after the next restart: %v, expected %v", now, got)
			}
		})
	}
}

// TestNothingInEffect checks that the absence of a file is known without a key, so the new file stays a change.
func TestNothingInEffect(t *testing.T) {
	b := newBench(t)
	b.read(b.watching())
	b.write("etc/one", "1")
	must(t, os.Remove(b.keyFile()))
	w := b.watching()
	expectChanges(t, w, "/etc/one=…")
	if next := b.watching(); next.key.id != w.key.id {
		t.Errorf("the key %s was lost, the next process has %s", w.key.id, next.key.id)
	}
	// A host without rules for files writes nothing.
	b = newBench(t)
	w = b.new()
	w.Watch(nil, nil, nil)
	b.read(w)
	if _, err := os.Stat(b.state); !os.IsNotExist(err) {
		t.Errorf("the state directory exists: %v", err)
	}
}

// TestPublishedOutlivesTheKey checks that what this boot has published stays a change, even if the key and the baseline
// are lost, until a turn has applied it. The content that was in effect is then unknown.
func TestPublishedOutlivesTheKey(t *testing.T) {
	b := newBench(t)
	b.options.Units = &unitFiles{}
	b.write("etc/dir/sub/a", "1")
	b.write("etc/dir/sub/keep", "1")
	b.write("etc/one", "1")
	b.write("etc/systemd/system/a.service", "1")
	watch := func(published []v1alpha1.Change) *Watcher {
		w := b.new()
		w.Watch([]string{"/etc/dir", "/etc/dir/sub", "/etc/one", "/etc/many", "/etc/gone"}, []string{"a.service", "b.service"}, published)
		return w
	}
	w := watch(nil)
	b.read(w)
	b.write("etc/dir/sub/a", "2")
	b.remove("etc/one")
	b.write("etc/systemd/system/a.service", "2")
	for i := range maxChanges + 1 {
		b.write(fmt.Sprintf("etc/many/%02d", i), "x")
	}
	const want = "/etc/dir/sub/a=… /etc/many=… /etc/one=absent a.service=…"
	expectChanges(t, w, want)
	first, _, _ := read(w)
	elsewhere := []v1alpha1.Change{{Source: v1alpha1.SourceOSUpdate, Version: "9"}, file("/etc/not-watched", first[0].Version)}

	must(t, os.RemoveAll(b.state))
	w = watch(slices.Concat(elsewhere, first))
	expectChanges(t, w, want)
	second, _, _ := read(w)
	if !v1alpha1.SameChanges(first, second) || slices.Equal(first, second) {
		t.Errorf("%v, expected %v under another key", second, first)
	}
	expectChanges(t, watch(nil), want) // the baseline contains it
	b.write("etc/dir/sub/a", "1")      // the baseline no longer contains that this was in effect
	b.write("etc/dir/sub/b", "1")
	expectChanges(t, w, "/etc/dir/sub/a=… /etc/dir/sub/b=… /etc/many=… /etc/one=absent a.service=…")

	// The turn got its grant, and its units were restarted, under the first key.
	must(t, w.MarkApplied(first))
	expectChanges(t, w, "/etc/dir/sub/b=…")
	// The turn was for the content of a file that is gone now.
	b.remove("etc/dir/sub/keep")
	expectChanges(t, w, "/etc/dir/sub/b=… /etc/dir/sub/keep=absent")
	must(t, w.MarkApplied([]v1alpha1.Change{file("/etc/dir/sub/keep", first[0].Version), file("/etc/one", first[0].Version)}))
	expectChanges(t, w, "/etc/dir/sub/b=… /etc/dir/sub/keep=absent")
	last, _, _ := read(w)
	must(t, w.MarkApplied(last))
	expectChanges(t, watch(first), "") // the baseline exists and takes precedence over the Node

	b.write("etc/one", "3")
	expectChanges(t, watch(first), "/etc/one=…")
	b.options.BootID = "another-boot"
	expectChanges(t, watch(nil), "")
}

// TestKeyCannotBeWritten checks that a process that cannot write the key continues with its new key and logs that. It
// writes nothing that depends on the key.
func TestKeyCannotBeWritten(t *testing.T) {
	b := newBench(t)
	b.write("etc/one", "1")
	must(t, os.Mkdir(b.state, 0o700))
	full := func() { must(t, os.Symlink("/dev/full", b.keyFile()+".new")) }
	full()
	w := b.watching()
	expectChanges(t, w, "")
	if _, problems, complete := read(w); !complete || !b.log.has("digest.key: ") || !b.log.has("no space left") {
		t.Errorf("%v, complete %t: %s", problems, complete, b.log.text.String())
	}
	full()
	b.write("etc/one", "2")
	if got := b.read(w); len(got) != 1 || v1alpha1.DigestKey(got[0].Version) != w.key.id {
		t.Errorf("%v, expected one change under %s", got, w.key.id)
	}
	if left, err := os.ReadDir(b.state); err != nil || len(left) != 0 {
		t.Errorf("the state directory contains %v, %v", left, err)
	}
	expectChanges(t, w, "/etc/one=…") // the disk has space again
	if !b.log.has("can write again") {
		t.Error("the log does not report that it can be written again")
	}
	expectChanges(t, b.watching(), "/etc/one=…")

	// A directory at the path can be neither read nor replaced.
	b = newBench(t)
	must(t, os.MkdirAll(b.keyFile(), 0o700))
	w = b.watching()
	expectChanges(t, w, "")
	if _, problems, complete := read(w); !complete {
		t.Errorf("%v, complete %t", problems, complete)
	}
	if !b.log.has("cannot use the key") || !b.log.has("cannot write which files and units are in effect") {
		t.Errorf("the log does not report it: %s", b.log.text.String())
	}
}

// TestDictionaryAttack checks that a thief who reads a Node, and even the baseline, can find a small secret by trying
// all candidates only if the digests are plain or the key is known.
func TestDictionaryAttack(t *testing.T) {
	const pin = "7391"
	b, w, c := changed(t, "", pin)
	record := v1alpha1.FormatRecord(v1alpha1.Host{Changes: []v1alpha1.Change{c}}) +
		v1alpha1.FormatRecord(v1alpha1.Grant{Changes: []v1alpha1.Change{c}}) + v1alpha1.FormatRecord(v1alpha1.Last{Changes: []v1alpha1.Change{c}})
	must(t, w.MarkApplied([]v1alpha1.Change{c})) // the baseline contains the full digest
	baseline, err := os.ReadFile(b.baseline())
	must(t, err)
	if !json.Valid(baseline) || !strings.Contains(string(baseline), c.Version) {
		t.Fatalf("the baseline lacks the digest: %s", baseline)
	}
	secret, err := os.ReadFile(b.keyFile())
	must(t, err)
	if leaked := strings.TrimSpace(string(secret)); strings.Contains(record+string(baseline), leaked) {
		t.Error("the key is published or in the baseline")
	}

	plain := func(text string) []byte { sum := sha256.Sum256([]byte(text)); return sum[:] }
	keyed := func(key []byte) func(string) []byte {
		return func(text string) []byte {
			h := hmac.New(sha256.New, key)
			h.Write([]byte(text))
			return h.Sum(nil)
		}
	}
	id, err := hex.DecodeString(w.key.id)
	must(t, err)
	// attack returns the candidate whose digest is in seen.
	attack := func(seen string, digest func(string) []byte) string {
		for n := range 10_000 {
			guess := fmt.Sprintf("%04d", n)
			for _, text := range []string{guess, "file 0644\n" + guess, "path \"/etc/one\"\nfile 0644\n" + guess} {
				if strings.Contains(seen, hex.EncodeToString(digest(text))[:v1alpha1.DigestLength]) {
					return guess
				}
			}
		}
		return ""
	}
	for name, digest := range map[string]func(string) []byte{
		"plain": plain, "no key": keyed(nil), "the key's ID": keyed(id), "the ID in hex": keyed([]byte(w.key.id)), "the boot": keyed([]byte(boot)),
	} {
		if found := attack(record+string(baseline), digest); found != "" {
			t.Errorf("attack with %s: the PIN is %s", name, found)
		}
	}
	// The attack itself works with the digests that were published before there was a key, and with the key.
	if found := attack(hex.EncodeToString(plain("file 0644\n" + pin))[:12], plain); found != pin {
		t.Errorf("with a plain digest the attack finds %q", found)
	}
	if found := attack(record, keyed(w.key.secret)); found != pin {
		t.Errorf("with the key the attack finds %q", found)
	}
}
