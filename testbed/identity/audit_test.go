package identity

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

type request = controlplane.Request

// requests are those for resources that came since a time.
func requests(t *testing.T, since time.Time) []request {
	t.Helper()
	all, err := cp.Requests(since)
	must(t, err)
	return all
}

// certificateID is how the audit log names a client certificate.
func certificateID(t *testing.T, text []byte) string {
	t.Helper()
	block, _ := pem.Decode(text)
	sum := sha256.Sum256(block.Bytes)
	return "X509SHA256=" + hex.EncodeToString(sum[:])
}
