package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
)

// EtcdEndpoint returns etcd's endpoint for clients, without TLS: "unix://" and the path of its socket. It stays the same when etcd is
// restarted. Use it to see every write in the order of the store, without the API server and without any proxy of the test.
func (cp *ControlPlane) EtcdEndpoint() string { return "unix://" + cp.dir.Join(etcdSocket) }

// Compact makes etcd drop every revision before the current one, and returns that. A watch that would continue from an older revision gets the
// error "gone", as soon as the cache of the API server no longer has that revision either.
func (cp *ControlPlane) Compact(ctx context.Context) (revision string, err error) {
	socket := strings.TrimPrefix(cp.EtcdEndpoint(), "unix://")
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	defer client.CloseIdleConnections()
	call := func(path, body string) (text []byte, err error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://etcd"+path, bytes.NewReader([]byte(body)))
		if err != nil {
			return nil, err
		}
		resp, err := client.Do(r)
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		text, err = io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("etcd answered %s: %s", resp.Status, text)
		}
		return text, err
	}
	// Any read returns the current revision.
	text, err := call("/v3/kv/range", `{"key":"AA==","count_only":true}`)
	if err != nil {
		return "", err
	}
	var answer struct{ Header struct{ Revision string } }
	if err := json.Unmarshal(text, &answer); err != nil {
		return "", err
	}
	_, err = call("/v3/kv/compaction", fmt.Sprintf(`{"revision":%q}`, answer.Header.Revision))
	return answer.Header.Revision, err
}
