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

// hostKey is the key of this host's file digests. The host publishes digests, and a file
// may hold a short password: with a plain hash, anyone who can read Nodes could guess it.
// The key never leaves the host, and is in no file but its own, so that the baseline
// alone does not help a thief either.
//
// The host replaces a lost key. That makes no change: see [v1alpha1.Change.Same] and
// [Watcher.Watch].
type hostKey struct {
	secret []byte
	id     string // public
	saved  bool   // it is in its file; guarded by Watcher.saving
}

// keySize is the size of the secret, in bytes.
const keySize = 32

func newKey(secret []byte) *hostKey {
	// No file's digest hashes this text, because that begins with the path.
	h := hmac.New(sha256.New, secret)
	io.WriteString(h, "id\n")
	return &hostKey{secret: secret, id: hex.EncodeToString(h.Sum(nil))[:v1alpha1.KeyIDLength]}
}

// digest returns the digest of what is at a path, with the key's ID before it: of where a
// link leads, if it is one, and of what write writes. The path is part of the digest, so
// that a user who may write one watched file cannot guess the content of another by
// comparing the two digests.
func (k *hostKey) digest(path, link string, write func(io.Writer) error) (string, error) {
	h := hmac.New(sha256.New, k.secret)
	fmt.Fprintf(h, "path %q\n", path)
	if link != "" {
		fmt.Fprintf(h, "link %q\n", link)
	}
	err := write(h)
	return k.id + "-" + hex.EncodeToString(h.Sum(nil)), err
}

// loadKey reads the key, or makes one. If the file has no valid key, or other users can
// read it, the Watcher replaces it when it writes the next baseline. Until then the new
// key is in memory only.
func (w *Watcher) loadKey() {
	path := filepath.Join(w.StateDir, keyName)
	secret, err := readKey(path)
	if err != nil {
		secret = make([]byte, keySize)
		_, _ = rand.Read(secret) // it never fails
	}
	w.key = newKey(secret)
	w.key.saved = err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.Log.Warn("cannot use the key for the digests of watched files; lockkeeper uses a new key, and does not know what was in effect before", "file", path, "err", err, "key", w.key.id)
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
