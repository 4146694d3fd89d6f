package apiserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// client is the transport of one user.
type client struct {
	s    *Server
	user string
}

// request is a request for a resource.
type request struct {
	ctx                context.Context
	k                  *kind
	verb               string // as in an authorization rule
	namespace, name    string
	sub                string
	query              url.Values
	user, manager      string
	media, contentType string
	body               []byte
	dryRun             bool
	applied            []owner // the new owners, of a server-side apply
}

// answer is the answer to a request.
type answer struct {
	code       int
	media      string
	body       []byte
	stream     *stream // the body of a watch
	retryAfter int32
}

// waitError says that the request has to wait until the store reaches a revision.
type waitError struct{ rev int64 }

func (e waitError) Error() string { return "the revision is in the future: " + itoa(e.rev) }

// maxWait is how long a request waits for a revision.
const maxWait = 3 * time.Second

// RoundTrip answers a request. A write is committed before RoundTrip returns.
func (c client) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		body, err = io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil {
			return nil, err
		}
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	var timer *time.Timer
	for {
		c.s.mu.Lock()
		a, err := c.s.serve(c.user, r, body)
		if wait, ok := errors.AsType[waitError](err); ok {
			advanced, now := c.s.advanced, c.s.revision
			c.s.mu.Unlock()
			if timer == nil {
				timer = time.NewTimer(maxWait)
				defer timer.Stop()
			}
			select {
			case <-advanced:
				continue
			case <-r.Context().Done():
				return nil, r.Context().Err()
			case <-timer.C:
				a = failure(mediaOf(r, nil), tooLarge(wait.rev, now))
			}
		} else {
			c.s.mu.Unlock()
			if err != nil {
				a = failure(mediaOf(r, nil), err)
			}
		}
		return c.s.response(r, a), nil
	}
}

// response returns the answer as an HTTP response.
func (s *Server) response(r *http.Request, a *answer) *http.Response {
	s.mu.Lock()
	now := s.now()
	s.mu.Unlock()
	resp := &http.Response{
		StatusCode: a.code, Status: fmt.Sprintf("%d %s", a.code, http.StatusText(a.code)), Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: http.Header{"Date": {now.UTC().Format(http.TimeFormat)}, "Cache-Control": {"no-cache, private"}}, Request: r,
	}
	if a.retryAfter > 0 {
		resp.Header.Set("Retry-After", strconv.Itoa(int(a.retryAfter)))
	}
	if a.stream != nil {
		media := a.media
		if media == mediaProto {
			media += ";stream=watch"
		}
		resp.Header.Set("Content-Type", media)
		resp.Body, resp.ContentLength = a.stream, -1
		return resp
	}
	resp.Header.Set("Content-Type", a.media)
	resp.Header.Set("Content-Length", strconv.Itoa(len(a.body)))
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(a.body)), int64(len(a.body))
	return resp
}

// failure returns an error as an answer.
func failure(media string, err error) *answer {
	status := statusOf(err)
	a := &answer{code: int(status.Code), media: media, body: encodeObject(media, status)}
	if status.Details != nil {
		a.retryAfter = status.Details.RetryAfterSeconds
	}
	return a
}

// statusOf returns the Status of an error.
func statusOf(err error) *metav1.Status {
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		known = apierrors.NewInternalError(err)
	}
	status := known.Status()
	status.SetGroupVersionKind(statusKind)
	if status.Code == 0 {
		status.Code = http.StatusInternalServerError
	}
	return &status
}

// mediaOf returns the first media type that the client accepts and the server has for the kind, "" if there is none. k is nil for answers that are not
// about a kind.
func mediaOf(r *http.Request, k *kind) string {
	for accepted := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		media, params, err := mime.ParseMediaType(strings.TrimSpace(accepted))
		if err != nil || params["as"] != "" {
			continue
		}
		switch {
		case media == mediaProto && (k == nil || !k.custom):
			return mediaProto
		case media == mediaJSON, media == "*/*", media == "application/*":
			return mediaJSON
		}
	}
	if r.Header.Get("Accept") != "" && k != nil {
		return ""
	}
	return mediaJSON
}

var notFoundPage = &answer{code: http.StatusNotFound, media: "text/plain; charset=utf-8", body: []byte("404 page not found\n")}

// serve answers a request.
func (s *Server) serve(user string, r *http.Request, body []byte) (*answer, error) {
	q, found := s.parse(user, r)
	if !found {
		return s.serveOther(user, r)
	}
	q.body = body
	if q.media == "" {
		return nil, &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable,
			Message: "only the following media types are accepted: application/json"}}
	}
	if q.verb == "" {
		return nil, apierrors.NewMethodNotSupported(q.k.resource(), r.Method)
	}
	resource := q.k.gvr.Resource
	if q.sub != "" {
		resource += "/" + q.sub
	}
	if s.authorize != nil && !s.authorize(user, q.verb, resource, q.namespace, q.name) {
		return nil, forbidden(q, resource)
	}
	switch q.verb {
	case "get":
		return s.get(q)
	case "list":
		return s.list(q)
	case "watch":
		return s.watch(q)
	case "create":
		switch q.sub {
		case "eviction":
			return s.evict(q)
		case "token":
			return s.token(q)
		}
		return s.create(q)
	case "update":
		return s.update(q)
	case "patch":
		return s.patch(q)
	case "delete":
		return s.delete(q)
	}
	return s.deleteCollection(q)
}

// forbidden is how an API server refuses a request.
func forbidden(q *request, resource string) error {
	scope := "at the cluster scope"
	if q.namespace != "" {
		scope = fmt.Sprintf("in the namespace %q", q.namespace)
	}
	why := fmt.Sprintf("User %q cannot %s resource %q in API group %q %s", q.user, q.verb, resource, q.k.gvr.Group, scope)
	return apierrors.NewForbidden(q.k.resource(), q.name, errors.New(why))
}

// parse reads a request for a resource. It returns false for another path.
func (s *Server) parse(user string, r *http.Request) (*request, bool) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	var gv schema.GroupVersion
	switch {
	case len(parts) > 2 && parts[0] == "api":
		gv, parts = schema.GroupVersion{Version: parts[1]}, parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		gv, parts = schema.GroupVersion{Group: parts[1], Version: parts[2]}, parts[3:]
	default:
		return nil, false
	}
	q := &request{ctx: r.Context(), user: user, query: r.URL.Query()}
	inNamespace := len(parts) > 2 && parts[0] == "namespaces" && !(len(parts) == 3 && (parts[2] == "status" || parts[2] == "finalize"))
	if inNamespace {
		q.namespace, parts = parts[1], parts[2:]
	}
	q.k = kinds[path(gv.WithResource(parts[0]))]
	if q.k == nil || s.absent[q.k.stored()] || len(parts) > 3 || inNamespace && !q.k.namespaced {
		return nil, false
	}
	parts = append(parts, "", "")
	q.name, q.sub = parts[1], parts[2]
	if q.name != "" && q.k.namespaced && !inNamespace || !q.k.has(q.sub) {
		return nil, false
	}
	if q.k.gvr.Resource == "namespaces" {
		q.namespace = ""
	}
	q.contentType, _, _ = mime.ParseMediaType(r.Header.Get("Content-Type"))
	q.media = mediaOf(r, q.k)
	q.manager = q.query.Get("fieldManager")
	if q.manager == "" {
		q.manager = strings.Map(func(r rune) rune {
			if unicode.IsPrint(r) {
				return r
			}
			return -1
		}, strings.Split(r.UserAgent(), "/")[0])
	}
	q.dryRun = q.query.Get("dryRun") == metav1.DryRunAll
	q.verb = verbOf(q, r.Method)
	return q, true
}

// has reports whether the kind has a subresource.
func (k *kind) has(sub string) bool {
	switch sub {
	case "":
		return true
	case "status":
		return k.status
	case "eviction":
		return k.kind == "Pod"
	case "token":
		return k.kind == "ServiceAccount"
	}
	return false
}

// verbOf returns the verb of a request, "" if the resource does not have the method.
func verbOf(q *request, method string) string {
	post := q.sub == "eviction" || q.sub == "token"
	switch {
	case post && method != http.MethodPost, !post && method == http.MethodPost && q.name != "":
		return ""
	case method == http.MethodPost:
		return "create"
	case method == http.MethodGet && (q.query.Get("watch") == "true" || q.query.Get("watch") == "1") && q.name == "":
		return "watch"
	case method == http.MethodGet && q.name == "":
		return "list"
	case method == http.MethodGet:
		return "get"
	case method == http.MethodDelete && q.name == "":
		return "deletecollection"
	case q.name == "":
		return ""
	}
	return map[string]string{http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete"}[method]
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// revisionOf parses a resourceVersion; "" is 0.
func revisionOf(version string) (int64, error) {
	if version == "" {
		return 0, nil
	}
	rev, err := strconv.ParseInt(version, 10, 64)
	if err != nil || rev < 0 {
		return 0, apierrors.NewBadRequest("Invalid value: " + strconv.Quote(version) + ": invalid resource version")
	}
	return rev, nil
}

// tooLarge answers a request for a revision that the store has not reached.
func tooLarge(rev, now int64) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", rev, now), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}
	return err
}
