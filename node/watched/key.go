package watched

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// keyName is the file in the state directory.
const keyName = "digest.key"

// hostKey is the key of this host's file digests. The host publishes digests, and a file may
// contain a short password. With a plain hash, any user who can read Nodes could guess the
// password. The key never leaves the host and is only in its own file, so a copy of the baseline
// does not help an attacker either.
//
// The host replaces a lost key. The new key does not cause changes: see [v1alpha1.Change.Same]
// and [Watcher.Watch].
type hostKey struct {
	secret []byte
	id     string // public
	saved  bool   // the key is in its file; guarded by Watcher.saving
}

// keySize is the size of the secret, in bytes.
const keySize = 32

func newKey(secret []byte) *hostKey {
	// The input of a file's digest begins with the path, so it never equals this text.
	h := hmac.New(sha256.New, secret)
	io.WriteString(h, "id\n")
	return &hostKey{secret: secret, id: hex.EncodeToString(h.Sum(nil))[:v1alpha1.KeyIDLength]}
}

// digest returns the digest of the file at a path, with the key's ID before it. The digest
// covers the path, the link's target if the file is a symbolic link, and what write writes. It
// covers the path so that a user who may write one watched file cannot guess the content of
// another by comparing the two digests.
func (k *hostKey) digest(path, link string, write func(io.Writer) error) (string, error) {
	h := hmac.New(sha256.New, k.secret)
	fmt.Fprintf(h, "path %q\n", path)
	if link != "" {
		fmt.Fprintf(h, "link %q\n", link)
	}
	err := write(h)
	return k.id + "-" + hex.EncodeToString(h.Sum(nil)), err
}

// loadKey reads the key. If the file has no valid key, or other users can read it, loadKey
// creates a new key. The Watcher writes that key to the file together with the next baseline;
// until then it is only in memory.
func (w *Watcher) loadKey() {
	path := filepath.Join(w.StateDir, keyName)
	secret, err := readKey(path)
	if err != nil {
		secret = make([]byte, keySize)
		_, _ = rand.Read(secret) // never fails
	}
	w.key = newKey(secret)
	w.key.saved = err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.Log.Warn("cannot use the key for the digests of watched files; lockkeeper uses a new key and cannot tell what was in effect before", "file", path, "err", err, "key", w.key.id)
	}
}

func readKey(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if mode := info.Mode(); !mode.IsRegular() || mode.Perm()&0o077 != 0 {
		return nil, fmt.Errorf("its mode is %v, expected a file that only its owner may read", mode)
	}
	text, err := io.ReadAll(io.LimitReader(f, 4*keySize))
	if err != nil {
		return nil, err
	}
	secret, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(secret) != keySize {
		return nil, fmt.Errorf("expected %d hexadecimal digits", 2*keySize)
	}
	return secret, nil
}

func (k *hostKey) save(dir string) error {
	if k.saved {
		return nil
	}
	if err := replace(filepath.Join(dir, keyName), []byte(hex.EncodeToString(k.secret)+"\n")); err != nil {
		return fmt.Errorf("writing the key for their digests, %s: %w", keyName, err)
	}
	k.saved = true
	return nil
}
