package fleetlock

import (
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

// The example in the protocol's specification, as curl sends it: `-d @body.json` leaves out the ends of the lines.
const (
	exampleID   = "c988d2509fdf5cdcbed39037c56406fb"
	exampleBody = `{  "client_params": {    "group": "default",    "id": "c988d2509fdf5cdcbed39037c56406fb"  }}`
	example     = " HTTP/1.1\r\n" +
		"Host: 127.0.0.1:9478\r\n" +
		"User-Agent: curl/7.88.1\r\n" +
		"Accept: */*\r\n" +
		"fleet-lock-protocol: true\r\n" +
		"Content-Length: 92\r\n" +
		"Content-Type: application/x-www-form-urlencoded\r\n" +
		"\r\n" +
		exampleBody
)

// zincatis is Zincati's request. Its HTTP library writes the names of headers in lower case.
const zincatis = " HTTP/1.1\r\n" +
	"fleet-lock-protocol: true\r\n" +
	"accept: */*\r\n" +
	"host: 127.0.0.1:9478\r\n" +
	"content-length: 97\r\n" +
	"\r\n" +
	"{\n  \"client_params\": {\n    \"id\": \"c988d2509fdf5cdcbed39037c56406fb\",\n    \"group\": \"default\"\n  }\n}"

// with returns a request with these lines of headers, which end in \r\n, and this body.
func with(start, headers, body string) string {
	return fmt.Sprintf("%s HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %d\r\n\r\n%s", start, headers, len(body), body)
}

const header = "fleet-lock-protocol: true\r\n"

// exchange sends a request as it is over a connection, and returns the whole reply, except its date. halfClose: the
// client then closes its side.
func (h *host) exchange(t *testing.T, request string, halfClose bool) string {
	t.Helper()
	h.ID = exampleID
	server := httptest.NewUnstartedServer(h)
	server.Config.SetKeepAlivesEnabled(false) // as the agent serves it
	server.Start()
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	if halfClose {
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
	}
	reply, err := io.ReadAll(conn)
	if err != nil {
		t.Fatalf("read the reply: %v, after %q", err, reply)
	}
	return sorted(t, string(reply))
}

// sorted returns a reply with the lines of its header in alphabetical order, which has no meaning in HTTP, and without
// its date.
func sorted(t *testing.T, reply string) string {
	t.Helper()
	head, body, ok := strings.Cut(reply, "\r\n\r\n")
	lines := strings.Split(head, "\r\n")
	slices.Sort(lines[1:])
	dated := len(lines)
	lines = slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(line, "Date: ") })
	if !ok || dated-len(lines) != 1 {
		t.Errorf("%q has no end of its header, or not one date", reply)
	}
	return strings.Join(lines, "\n") + "\n\n" + body
}

const ok = "HTTP/1.1 200 OK\nConnection: close\nContent-Length: 0\n\n"

// refusedWith returns the reply with this status line and body.
func refusedWith(status, body string) string {
	return fmt.Sprintf("HTTP/1.1 %s\nConnection: close\nContent-Length: %d\nContent-Type: application/json\n\n%s\n", status, len(body)+1, body)
}

// TestRequests sends what the specification allows, byte by byte, and compares the whole replies.
func TestRequests(t *testing.T) {
	pre := func(headers, body string) string { return with("POST /v1/pre-reboot", header+headers, body) }
	for name, c := range map[string]struct{ request, reply string }{
		"the specification's example":              {"POST /v1/pre-reboot" + example, ok},
		"the example for the other endpoint":       {"POST /v1/steady-state" + example, ok},
		"Zincati asks":                             {"POST /v1/pre-reboot" + zincatis, ok},
		"Zincati is in its steady state":           {"POST /v1/steady-state" + zincatis, ok},
		"a header's name in capitals":              {with("POST /v1/pre-reboot", strings.ToUpper("fleet-lock-protocol")+": true\r\n", exampleBody), ok},
		"a header's name in Go's case":             {with("POST /v1/pre-reboot", "Fleet-Lock-Protocol: true\r\n", exampleBody), ok},
		"spaces around a header's value":           {with("POST /v1/pre-reboot", "fleet-lock-protocol: \t true \r\n", exampleBody), ok},
		"a Content-Type with a charset":            {pre("Content-Type: application/json; charset=utf-8\r\n", exampleBody), ok},
		"a connection for one request":             {pre("Connection: close\r\n", exampleBody), ok},
		"a connection for more, which is not kept": {pre("Connection: keep-alive\r\n", exampleBody), ok},
		"a body in chunks": {"POST /v1/pre-reboot HTTP/1.1\r\nHost: localhost\r\n" + header + "Transfer-Encoding: chunked\r\n\r\n" +
			"20\r\n" + exampleBody[:32] + "\r\n3C;x=1\r\n" + exampleBody[32:] + "\r\n0\r\n\r\n", ok},
		"HTTP/1.0":                   {"POST /v1/pre-reboot HTTP/1.0\r\n" + header + "Content-Length: 92\r\n\r\n" + exampleBody, "HTTP/1.0 200 OK\nContent-Length: 0\n\n"},
		"a proxy's form of the path": {with("POST http://127.0.0.1:9478/v1/pre-reboot", header, exampleBody), ok},
		"members that the specification does not have": {pre("", `{"v":2,"client_params":{"more":[{}],"id":"`+exampleID+`","group":"default"}}`), ok},
		"all that a group may consist of":              {pre("", `{"client_params":{"id":"`+exampleID+`","group":"-aZ.09"}}`), ok},
		"the longest body":                             {pre("", strings.Repeat(" ", 4096-len(exampleBody))+exampleBody), ok},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost()
			h.Changed = func() { h.Permit(time.Now().Add(time.Minute)) }
			if got := h.exchange(t, c.request, false); got != c.reply {
				t.Errorf("the reply is\n%s\nexpected\n%s", got, c.reply)
			}
			asks := !strings.HasPrefix(c.request, "POST /v1/steady-state")
			h.is(t, "after the reply", State{Asked: asks, Known: true})
		})
	}
}

// A client that closes its side of the connection does not wait for permission.
func TestHalfClosed(t *testing.T) {
	h := newHost()
	h.Explain("Budget: waits for its turn")
	want := refusedWith("423 Locked", `{"kind":"not_yet","value":"Budget: waits for its turn"}`)
	if got := h.exchange(t, "POST /v1/pre-reboot"+zincatis, true); got != want {
		t.Errorf("the reply is\n%s\nexpected\n%s", got, want)
	}
}

// TestRefusals sends what the specification does not allow, byte by byte, and compares the whole replies.
func TestRefusals(t *testing.T) {
	pre := func(body string) string { return with("POST /v1/pre-reboot", header, body) }
	bad := func(kind, value string) string {
		return refusedWith("400 Bad Request", `{"kind":"`+kind+`","value":"`+value+`"}`)
	}
	notFound := refusedWith("404 Not Found", `{"kind":"not_found","value":"expected /v1/pre-reboot or /v1/steady-state"}`)
	noHeader := bad("missing_header", "expected the header fleet-lock-protocol: true")
	notJSON := bad("invalid_request", `the body is not the JSON expected: {\"client_params\": {\"id\": \"…\", \"group\": \"…\"}}`)
	noParams := bad("invalid_request", "client_params is missing, or is not an object")
	noID := bad("invalid_request", "client_params.id has to be a string that is not empty")
	noGroup := bad("invalid_request", "client_params.group has to be one or more of a-z, A-Z, 0-9, . and -")
	noMethod := strings.Replace(refusedWith("405 Method Not Allowed", `{"kind":"method_not_allowed","value":"expected POST"}`), "\n", "\nAllow: POST\n", 1)
	unknown := refusedWith("403 Forbidden", `{"kind":"unknown_client","value":"client_params.id is not the ID of this host's client; see [fleetlock] id in lockkeeper's configuration"}`)
	for name, c := range map[string]struct{ request, reply string }{
		"another path":         {with("POST /v1/other", header, exampleBody), notFound},
		"no version":           {with("POST /pre-reboot", header, exampleBody), notFound},
		"a longer path":        {with("POST /v1/pre-reboot/", header, exampleBody), notFound},
		"the example's base":   {"POST /base/v1/pre-reboot" + example, notFound},
		"another method":       {with("GET /v1/pre-reboot", header, ""), noMethod},
		"another method's end": {with("PUT /v1/steady-state", header, exampleBody), noMethod},
		"no header":            {with("POST /v1/pre-reboot", "", exampleBody), noHeader},
		"another value":        {with("POST /v1/steady-state", "fleet-lock-protocol: yes\r\n", exampleBody), noHeader},
		"a value in capitals":  {with("POST /v1/pre-reboot", "fleet-lock-protocol: True\r\n", exampleBody), noHeader},
		"an empty value":       {with("POST /v1/pre-reboot", "fleet-lock-protocol:\r\n", exampleBody), noHeader},
		"no body":              {pre(""), notJSON},
		"a form":               {pre("id=1"), notJSON},
		"two JSON values":      {pre(exampleBody + exampleBody), notJSON},
		"an open object":       {pre(strings.TrimSuffix(exampleBody, "}")), notJSON},
		"an array":             {pre("[" + exampleBody + "]"), notJSON},
		"no parameters":        {pre("{}"), noParams},
		"null":                 {pre(`{"client_params":null}`), noParams},
		"a text":               {pre(`{"client_params":"` + exampleID + `"}`), noParams},
		"names in capitals":    {pre(strings.ReplaceAll(exampleBody, "client_params", "CLIENT_PARAMS")), noParams},
		"no ID":                {pre(`{"client_params":{"group":"default"}}`), noID},
		"an empty ID":          {pre(`{"client_params":{"id":"","group":"default"}}`), noID},
		"a number as ID":       {pre(`{"client_params":{"id":1,"group":"default"}}`), noID},
		"ID in capitals":       {pre(strings.Replace(exampleBody, `"id"`, `"ID"`, 1)), noID},
		"no group":             {pre(`{"client_params":{"id":"` + exampleID + `"}}`), noGroup},
		"an empty group":       {pre(strings.Replace(exampleBody, "default", "", 1)), noGroup},
		"a space in the group": {pre(strings.Replace(exampleBody, "default", "a b", 1)), noGroup},
		"a line in the group":  {pre(strings.Replace(exampleBody, "default", `default\n`, 1)), noGroup},
		"a long body":          {pre(strings.Repeat(" ", 4097-len(exampleBody)) + exampleBody), bad("invalid_request", "read the body: http: request body too large")},
		"another client":       {pre(strings.Replace(exampleBody, "c988", "c989", 1)), unknown},
		"another's end":        {with("POST /v1/steady-state", header, strings.Replace(exampleBody, "c988", "c989", 1)), unknown},
		"more than an ID":      {pre(strings.Replace(exampleBody, "c988", "c988c988", 1)), unknown},
		"an ID in capitals":    {pre(strings.Replace(exampleBody, exampleID, strings.ToUpper(exampleID), 1)), unknown},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost()
			h.Changed = func() { h.Permit(time.Now().Add(time.Minute)) }
			if got := h.exchange(t, c.request, false); got != c.reply {
				t.Errorf("the reply is\n%s\nexpected\n%s", got, c.reply)
			}
			h.is(t, "after the reply", State{})
		})
	}
	h := newHost()
	want := bad("invalid_request", "read the body: unexpected EOF")
	if got := h.exchange(t, strings.TrimSuffix(pre(exampleBody), "}"), true); got != want {
		t.Errorf("a body that ends early: the reply is\n%s\nexpected\n%s", got, want)
	}
	h.is(t, "after a body that ends early", State{})
}
