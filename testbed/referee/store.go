package referee

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// store calls etcd through its JSON gateway, so that it needs only net/http.
type store struct {
	client *http.Client
	base   string
}

// newStore takes the client endpoint of etcd: "unix:///path" or "http://host:port".
func newStore(endpoint string) (*store, error) {
	transport := &http.Transport{DisableKeepAlives: false, MaxIdleConns: 4}
	s := &store{client: &http.Client{Transport: transport}, base: endpoint}
	if path, ok := strings.CutPrefix(endpoint, "unix://"); ok {
		s.base = "http://etcd"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}
	} else if !strings.HasPrefix(endpoint, "http://") {
		return nil, fmt.Errorf("etcd's endpoint is %q, expected unix:// or http://", endpoint)
	}
	return s, nil
}

func (s *store) close() { s.client.CloseIdleConnections() }

// keyValue is etcd's type. The version counts the writes of the key since its creation.
type keyValue struct {
	Key            []byte `json:"key"`
	Value          []byte `json:"value"`
	ModRevision    int64  `json:"mod_revision,string"`
	CreateRevision int64  `json:"create_revision,string"`
	Version        int64  `json:"version,string"`
}

type header struct {
	Revision int64 `json:"revision,string"`
}

// event is a write. Type is "DELETE", or "" for a PUT.
type event struct {
	Type string   `json:"type"`
	KV   keyValue `json:"kv"`
}

type watchAnswer struct {
	Result struct {
		Header          header  `json:"header"`
		Created         bool    `json:"created"`
		Canceled        bool    `json:"canceled"`
		CancelReason    string  `json:"cancel_reason"`
		CompactRevision int64   `json:"compact_revision,string"`
		Events          []event `json:"events"`
	} `json:"result"`
	Error *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// errCompacted means that etcd no longer has the history from the revision on.
var errCompacted = errors.New("etcd has compacted the history that was to be resumed")

const (
	// callTimeout limits one call that is not a watch.
	callTimeout = 30 * time.Second
	// maxAnswer limits the answer to one call, in bytes.
	maxAnswer = 256 << 20
)

func (s *store) post(ctx context.Context, path string, body any) (*http.Response, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.base+path, bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return nil, fmt.Errorf("etcd answered %s to %s: %s", resp.Status, path, bytes.TrimSpace(text))
	}
	return resp, nil
}

func (s *store) call(ctx context.Context, path string, body, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := s.post(ctx, path, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(answer)
}

func encode(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

// end returns the key that follows all keys with the prefix.
func end(prefix string) string { return prefix[:len(prefix)-1] + string(prefix[len(prefix)-1]+1) }

// list returns all keys under a prefix at a revision (0: the latest), and the revision. The read is a quorum read.
func (s *store) list(ctx context.Context, prefix string, rev int64) ([]keyValue, int64, error) {
	var answer struct {
		Header header     `json:"header"`
		KVs    []keyValue `json:"kvs"`
	}
	err := s.call(ctx, "/v3/kv/range", map[string]any{"key": encode(prefix), "range_end": encode(end(prefix)), "revision": fmt.Sprint(rev)}, &answer)
	return answer.KVs, answer.Header.Revision, err
}

func (s *store) put(ctx context.Context, key string, value []byte) (int64, error) {
	var answer struct {
		Header header `json:"header"`
	}
	err := s.call(ctx, "/v3/kv/put", map[string]any{"key": encode(key), "value": value}, &answer)
	return answer.Header.Revision, err
}

func (s *store) remove(ctx context.Context, key string) error {
	return s.call(ctx, "/v3/kv/deleterange", map[string]any{"key": encode(key)}, &struct{}{})
}

// compact deletes the history before a revision. A test makes a gap with it.
func (s *store) compact(ctx context.Context, rev int64) error {
	return s.call(ctx, "/v3/kv/compaction", map[string]any{"revision": fmt.Sprint(rev)}, &struct{}{})
}

// watch follows every key under a prefix from a revision on, until ctx ends or the stream breaks. It calls take with the writes in order, once for
// each answer. It calls opened with the store's revision when the watch begins.
func (s *store) watch(ctx context.Context, prefix string, from int64, opened func(rev int64), take func([]event) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resp, err := s.post(ctx, "/v3/watch", map[string]any{"create_request": map[string]any{
		"key": encode(prefix), "range_end": encode(end(prefix)), "start_revision": fmt.Sprint(from),
	}})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	for d := json.NewDecoder(resp.Body); ; {
		var a watchAnswer
		if err := d.Decode(&a); err != nil {
			return fmt.Errorf("the watch failed: %w", err)
		}
		switch r := a.Result; {
		case a.Error != nil:
			return fmt.Errorf("the watch ended: %s", a.Error.Message)
		case r.CompactRevision != 0:
			return fmt.Errorf("%w: from %d on, compacted at %d", errCompacted, from, r.CompactRevision)
		case r.Canceled:
			return fmt.Errorf("etcd ended the watch: %s", r.CancelReason)
		case r.Created:
			opened(r.Header.Revision)
		default:
			if err := take(r.Events); err != nil {
				return err
			}
		}
	}
}
