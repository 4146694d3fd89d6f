package watched

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// keyName is the file in the state directory.
const keyName = "digest.key"

// hostKey is what this host makes the digests of files with. Digests are published, and
// files may hold a short password: with a plain hash everyone who can read Nodes could
// try candidates. The key never leaves the host, and is in no other file than its own,
// so that the baseline alone is no help either.
//
// A key that is lost is replaced. That makes no change: see [v1alpha1.Change.Same] and
// [Watcher.Published].
type hostKey struct {
	secret []byte
	id     string // public
}

// keySize is that of the secret, in bytes.
const keySize = 32

func newKey(secret []byte) *hostKey {
	// No file's digest is of this text: those begin with the path.
	h := hmac.New(sha256.New, secret)
	io.WriteString(h, "id\n")
	return &hostKey{secret: secret, id: hex.EncodeToString(h.Sum(nil))[:v1alpha1.KeyIDLength]}
}

// digest is a digest in the making.
type digest struct {
	hash.Hash
	id string
}

// digest begins the digest of what is at a path. The path is part of it: who may write
// one file that is watched, and guesses what another one holds, does not see two equal
// digests.
func (k *hostKey) digest(path string) digest {
	d := digest{hmac.New(sha256.New, k.secret), k.id}
	fmt.Fprintf(d, "path %q\n", path)
	return d
}

// String returns the digest with the key's ID before it.
func (d digest) String() string { return d.id + "-" + hex.EncodeToString(d.Sum(nil)) }

// loadKey reads the key, or makes one. A file that does not hold a key that nobody else
// knows is replaced with the next baseline; until then the new key is in memory only.
func (w *Watcher) loadKey() {
	path := filepath.Join(w.StateDir, keyName)
	secret, err := readKey(path)
	if err != nil {
		secret, w.newKey = make([]byte, keySize), true
		_, _ = rand.Read(secret) // it never fails
	}
	w.key = newKey(secret)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.Log.Warn("cannot use the key of what is published of watched files; a new one takes its place, and what was in effect before is not known", "file", path, "err", err, "key", w.key.id)
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
		return nil, fmt.Errorf("not the %d hexadecimal digits expected", 2*keySize)
	}
	return secret, nil
}

func (k *hostKey) write(dir string) error {
	if err := replace(filepath.Join(dir, keyName), []byte(hex.EncodeToString(k.secret)+"\n")); err != nil {
		return fmt.Errorf("writing the key of their digests, %s: %w", keyName, err)
	}
	return nil
}
