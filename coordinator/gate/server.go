package gate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/api"
	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"lockkeeper.dev/lockkeeper/coordinator/webclient"
)

// server is a Prometheus server, or another server with the same HTTP API.
type server struct{ api v1.API }

func newServer(o Options) (*server, error) {
	client, err := api.NewClient(api.Config{Address: o.URL, Client: webclient.New(webclient.Options{
		TokenFile: o.TokenFile, TokenKey: "coordinator.prometheus_token_file",
		Agent: "lockkeeper-coordinator/" + o.Version, MaxAnswer: MaxAnswer, Conns: atOnce,
	})})
	if err != nil {
		return nil, fmt.Errorf("creating a client for Prometheus at %q: %w", o.URL, err)
	}
	return &server{v1.NewAPI(client)}, nil
}

// judge runs one query and reports whether the answer opens the gate. If it does not,
// detail says why.
func (s *server) judge(ctx context.Context, expr string) (open bool, detail string) {
	// Infos are remarks on how the query is written; they say nothing about the answer.
	value, warnings, _, err := s.api.Query(ctx, expr, time.Time{}, v1.WithTimeout(Timeout))
	if err != nil {
		return false, failure(err)
	}
	return verdict(value, warnings)
}

// verdict reports whether an answer opens the gate. If it does not, detail says why.
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
			// The count comes before the series, because long labels are truncated.
			detail = fmt.Sprintf("its query returns %d series, the first %s with %s", more+1, first.Metric, sample)
		}
		return false, detail
	}
	for _, w := range warnings {
		// A warning may mean that one of several servers did not answer, so the result
		// may be incomplete. Older servers return infos among the warnings.
		if !strings.HasPrefix(w, "PromQL info") {
			return false, "its query returns nothing, with a warning: " + w
		}
	}
	return true, ""
}

// failure returns a message for users that says why there is no answer.
func failure(err error) string {
	if u, ok := errors.AsType[*url.Error](err); ok && !u.Timeout() {
		return "cannot query Prometheus: " + u.Err.Error()
	}
	if e, ok := errors.AsType[*v1.Error](err); ok {
		switch {
		case e.Type == v1.ErrBadData:
			return "the query is not valid: " + e.Msg
		case e.Type == v1.ErrClient && (strings.HasSuffix(e.Msg, ": 401") || strings.HasSuffix(e.Msg, ": 403")):
			return "Prometheus refuses the query (" + e.Msg + "); check coordinator.prometheus_token_file"
		case e.Type == v1.ErrBadResponse:
			return "the answer cannot be read: " + e.Msg
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
	return "the answer cannot be read: " + err.Error()
}
