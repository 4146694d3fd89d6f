package gate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/api"
	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
)

const maxToken = 64 << 10 // bytes of the token's file

// server is a Prometheus, or what speaks its HTTP API.
type server struct{ api v1.API }

func newServer(o Options) (*server, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost, transport.MaxResponseHeaderBytes = atOnce, 64<<10
	client, err := api.NewClient(api.Config{Address: o.URL, Client: &http.Client{
		Transport: bounded{transport, o.TokenFile, "lockkeeper-coordinator/" + o.Version},
		CheckRedirect: func(r *http.Request, _ []*http.Request) error {
			// The token is for the server that was named, and no other.
			return fmt.Errorf("it redirects to %s; redirects are not followed, write where the server is", r.URL.Redacted())
		},
	}})
	if err != nil {
		return nil, fmt.Errorf("a client for Prometheus at %q: %w", o.URL, err)
	}
	return &server{v1.NewAPI(client)}, nil
}

// judge asks for one query's answer and says whether it opens the gate.
func (s *server) judge(ctx context.Context, expr string) (open bool, detail string) {
	// Infos are remarks on how the query is written; they say nothing about the answer.
	value, warnings, _, err := s.api.Query(ctx, expr, time.Time{}, v1.WithTimeout(Timeout))
	if err != nil {
		return false, failure(err)
	}
	return verdict(value, warnings)
}

// verdict is what an answer is to a gate.
func verdict(value model.Value, warnings v1.Warnings) (open bool, detail string) {
	vector, ok := value.(model.Vector)
	switch {
	case value == nil || ok && vector == nil:
		return false, "Prometheus answered without a result"
	case !ok:
		return false, fmt.Sprintf("the query returns a %s, expected an instant vector", value.Type())
	case len(vector) > 0:
		first := slices.MinFunc(vector, func(a, b *model.Sample) int { return cmp.Compare(a.Metric.String(), b.Metric.String()) })
		sample := first.Value.String()
		if first.Histogram != nil {
			sample = "a histogram"
		}
		detail = fmt.Sprintf("its query returns %s with %s", first.Metric, sample)
		if more := len(vector) - 1; more > 0 {
			// Before the series, whose labels may be cut off.
			detail = fmt.Sprintf("its query returns %d series, the first %s with %s", more+1, first.Metric, sample)
		}
		return false, detail
	}
	for _, w := range warnings {
		// Where several servers answer together, one may be away: nothing found
		// is not nothing there. Older servers mix their infos into the warnings.
		if !strings.HasPrefix(w, "PromQL info") {
			return false, "its query returns nothing, with a warning: " + w
		}
	}
	return true, ""
}

// failure says in plain words why there is no answer.
func failure(err error) string {
	if u, ok := errors.AsType[*url.Error](err); ok && !u.Timeout() {
		return "Prometheus cannot be asked: " + u.Err.Error()
	}
	if e, ok := errors.AsType[*v1.Error](err); ok {
		switch {
		case e.Type == v1.ErrBadData:
			return "the query is not valid: " + e.Msg
		case e.Type == v1.ErrClient && (strings.HasSuffix(e.Msg, ": 401") || strings.HasSuffix(e.Msg, ": 403")):
			return "Prometheus refuses to be asked (" + e.Msg + "); the token is coordinator.prometheus_token_file's"
		case e.Type == v1.ErrBadResponse:
			return "no answer that can be read: " + e.Msg
		}
		return fmt.Sprintf("Prometheus cannot answer (%s): %s", e.Type, e.Msg)
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return fmt.Sprintf("the answer is larger than %d MiB, expected nothing or a few series", MaxAnswer>>20)
	}
	if t, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err); ok && t.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		return "no answer within " + Timeout.String()
	}
	return "no answer that can be read: " + err.Error()
}

// bounded sends requests with the token of the moment, and reads answers of
// bounded size.
type bounded struct {
	next             http.RoundTripper
	tokenFile, agent string
}

// RoundTrip passes the request on.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("User-Agent", b.agent)
	if b.tokenFile != "" {
		token, err := readToken(b.tokenFile)
		if err != nil {
			if r.Body != nil {
				r.Body.Close()
			}
			return nil, err
		}
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := b.next.RoundTrip(r)
	if err == nil {
		resp.Body = http.MaxBytesReader(nil, resp.Body, MaxAnswer)
	}
	return resp, err
}

// readToken reads a token. The error does not repeat it.
func readToken(file string) (string, error) {
	info, err := os.Stat(file)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", file)
	}
	if err != nil {
		return "", fmt.Errorf("reading coordinator.prometheus_token_file: %w", err)
	}
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("reading coordinator.prometheus_token_file: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxToken+1))
	if err != nil {
		return "", fmt.Errorf("reading coordinator.prometheus_token_file: %w", err)
	}
	token := strings.TrimSpace(string(data))
	if token == "" || len(data) > maxToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("%s (coordinator.prometheus_token_file) holds no token, expected one line of visible characters", file)
	}
	return token, nil
}
