package zincati

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

var identity = Identity{ID: "978a225b3d7b40e9acd7ce9b62f68444", Group: DefaultGroup}

// wiretap records what the server reads from all connections.
type wiretap struct {
	net.Listener
	read *bytes.Buffer
}

func (w wiretap) Accept() (net.Conn, error) {
	conn, err := w.Listener.Accept()
	return tapped{conn, io.TeeReader(conn, w.read)}, err
}

type tapped struct {
	net.Conn
	reader io.Reader
}

func (c tapped) Read(p []byte) (int, error) { return c.reader.Read(p) }

// Zincati writes "host" and "content-length" in lower case and after the others, which Go's transport cannot do.
func TestRequestOnTheWire(t *testing.T) {
	var wire bytes.Buffer
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Listener = wiretap{server.Listener, &wire}
	server.Start()
	host := server.Listener.Addr().String()
	client := Client{BaseURL: "http://" + host + "/fleet/", Identity: Identity{identity.ID, "a<b&c"}}
	if answer, err := client.PreReboot(t.Context()); err != nil || answer != (Answer{OK: true, Status: 200}) {
		t.Errorf("PreReboot = %+v, %v", answer, err)
	}
	client.Identity = identity
	if answer, err := client.SteadyState(t.Context()); err != nil || answer != (Answer{OK: true, Status: 200}) {
		t.Errorf("SteadyState = %+v, %v", answer, err)
	}
	server.Close() // the handlers have returned
	want := "POST /fleet/v1/pre-reboot HTTP/1.1\r\n" +
		"Host: " + host + "\r\n" +
		"Content-Length: 95\r\n" +
		"accept: */*\r\n" +
		"fleet-lock-protocol: true\r\n" +
		"\r\n" +
		"{\n  \"client_params\": {\n    \"id\": \"978a225b3d7b40e9acd7ce9b62f68444\",\n    \"group\": \"a<b&c\"\n  }\n}" +
		"POST /fleet/v1/steady-state HTTP/1.1\r\n" +
		"Host: " + host + "\r\n" +
		"Content-Length: 97\r\n" +
		"accept: */*\r\n" +
		"fleet-lock-protocol: true\r\n" +
		"\r\n" +
		"{\n  \"client_params\": {\n    \"id\": \"978a225b3d7b40e9acd7ce9b62f68444\",\n    \"group\": \"default\"\n  }\n}"
	if wire.String() != want {
		t.Errorf("the server read\n%q\nwant\n%q", wire.String(), want)
	}
}

// The URLs are those of another implementation of the URL standard, Node.js.
func TestJoin(t *testing.T) {
	for base, want := range map[string]string{
		"http://h":                  "http://h/v1/pre-reboot",
		"http://h/":                 "http://h/v1/pre-reboot",
		"http://h/fleet":            "http://h/v1/pre-reboot",
		"http://h/fleet/":           "http://h/fleet/v1/pre-reboot",
		"http://h/a/b?x=1#f":        "http://h/a/v1/pre-reboot",
		"http://u:p@h:8/a//b/../c/": "http://u:p@h:8/a//c/v1/pre-reboot",
		"http://h/a%2Fb/c":          "http://h/a%2Fb/v1/pre-reboot",
	} {
		client := Client{BaseURL: base}
		if got, err := client.join("v1/pre-reboot"); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", base, got, err, want)
		}
	}
}

// roundTrip is a server in memory.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestNoRequest(t *testing.T) {
	server := &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		return nil, fmt.Errorf("the client sent a request to %q", r.URL)
	})}
	for _, c := range []Client{
		{HTTP: server, Identity: identity},
		{HTTP: server, Identity: identity, BaseURL: "h/fleet/"},
		{HTTP: server, Identity: identity, BaseURL: "http://h:x/"},
		{HTTP: server, Identity: Identity{ID: identity.ID}, BaseURL: "http://h/"},
	} {
		answer, err := c.SteadyState(t.Context())
		if err == nil || strings.Contains(err.Error(), "sent") || answer != (Answer{}) {
			t.Errorf("%q, %+v: %+v, %v, want an error and no request", c.BaseURL, c.Identity, answer, err)
		}
	}
}

func TestAnswer(t *testing.T) {
	generic := func(status int, kind string) Answer {
		return Answer{Status: status, Kind: kind, Value: "(unknown/generic server error)"}
	}
	for _, test := range []struct {
		status int
		body   string
		want   Answer
	}{
		{204, ``, Answer{OK: true, Status: 204}},
		{299, `{"kind": "lock_held", "value": "busy"}`, Answer{OK: true, Status: 299}},
		{423, ` {"value": "busy", "more": [1], "kind": "lock_held"} `, Answer{Status: 423, Kind: "lock_held", Value: "busy"}},
		{304, ``, generic(304, "generic_http_304")},
		{500, `{"kind": "lock_held"}`, generic(500, "generic_http_500")},
		{500, `{"Kind": "lock_held", "Value": "busy"}`, generic(500, "generic_http_500")},
		{500, `{"kind": "lock_held", "value": null}`, generic(500, "generic_http_500")},
		{500, `["lock_held", "busy"]`, generic(500, "generic_http_500")},
		{502, `{"kind": "lock_held", "value": "busy"} <html>`, generic(502, "generic_http_502")},
	} {
		client := Client{BaseURL: "http://h/", Identity: identity, HTTP: &http.Client{Transport: roundTrip(
			func(r *http.Request) (*http.Response, error) {
				body := io.NopCloser(strings.NewReader(test.body))
				return &http.Response{StatusCode: test.status, Body: body, Request: r}, nil
			})}}
		if got, err := client.PreReboot(t.Context()); err != nil || got != test.want {
			t.Errorf("%d %s: %+v, %v, want %+v", test.status, test.body, got, err, test.want)
		}
	}
}
