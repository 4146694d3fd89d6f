package zincati

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// RequestTimeout is how long Zincati waits for the whole of an answer.
const RequestTimeout = 30 * time.Minute

// Client sends Zincati's requests.
type Client struct {
	// BaseURL is base_url of the configuration. As in Zincati, the last element of its path is lost unless a slash follows it.
	BaseURL string
	// Identity is the host's. Zincati refuses an empty group.
	Identity Identity
	// HTTP sends the requests. If it is nil, they have the headers of Zincati's HTTP library and no others. Another client's
	// http.Transport may add some, and writes their names in Go's case.
	HTTP *http.Client
}

// Answer is a server's answer as Zincati understands it.
type Answer struct {
	// OK says that the status is any 2xx. Zincati does not read the body then.
	OK bool
	// Status is the status code.
	Status int
	// Kind and Value are the members of the JSON object in the body of any other answer. If the body is not such an object,
	// they are the texts that Zincati uses instead, for example "generic_http_502".
	Kind, Value string
}

// PreReboot asks the server for a reboot slot. An error means that there is no answer.
func (c *Client) PreReboot(ctx context.Context) (Answer, error) {
	return c.post(ctx, "v1/pre-reboot")
}

// SteadyState reports that the host has booted and returns its slot. An error means that there is no answer.
func (c *Client) SteadyState(ctx context.Context) (Answer, error) {
	return c.post(ctx, "v1/steady-state")
}

func (c *Client) post(ctx context.Context, path string) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	target, err := c.join(path)
	if err != nil {
		return Answer{}, err
	}
	body, err := c.body()
	if err != nil {
		return Answer{}, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(body))
	if err != nil {
		return Answer{}, fmt.Errorf("prepare request to %s: %w", target, err)
	}
	request.Header.Set("fleet-lock-protocol", "true")
	request.Header.Set("accept", "*/*")
	request.Header["User-Agent"] = nil // Go would send its own
	client := c.HTTP
	if client == nil {
		client = defaultHTTP
	}
	response, err := client.Do(request)
	if err != nil {
		return Answer{}, fmt.Errorf("send request: %w", err) // the error names the URL
	}
	defer response.Body.Close()
	return decode(response), nil
}

// join returns the URL of an endpoint. RFC 3986 gives what Rust's Url::join gives.
func (c *Client) join(path string) (string, error) {
	base, err := url.Parse(c.BaseURL)
	if err != nil {
		return "", fmt.Errorf("parse base URL: %w", err) // the error names the URL
	}
	if base.Host == "" {
		return "", fmt.Errorf("base URL %q names no host", c.BaseURL)
	}
	return base.ResolveReference(&url.URL{Path: path}).String(), nil
}

// body returns the body of both requests, laid out as serde_json's to_string_pretty does it.
func (c *Client) body() ([]byte, error) {
	if c.Identity.Group == "" {
		return nil, errors.New("the identity has no group")
	}
	var params struct {
		ClientParams struct {
			ID    string `json:"id"`
			Group string `json:"group"`
		} `json:"client_params"`
	}
	params.ClientParams.ID = c.Identity.ID
	params.ClientParams.Group = c.Identity.Group
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false) // serde_json does not escape these characters
	if err := encoder.Encode(params); err != nil {
		return nil, fmt.Errorf("encode the identity: %w", err)
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), nil
}

func decode(response *http.Response) Answer {
	answer := Answer{OK: response.StatusCode/100 == 2, Status: response.StatusCode}
	if answer.OK {
		return answer
	}
	// A map, because encoding/json would accept the members of a struct in any case and serde does not.
	var members map[string]any
	text, err := io.ReadAll(response.Body)
	if err == nil {
		err = json.Unmarshal(text, &members)
	}
	kind, hasKind := members["kind"].(string)
	value, hasValue := members["value"].(string)
	if err != nil || !hasKind || !hasValue {
		kind, value = fmt.Sprintf("generic_http_%d", answer.Status), "(unknown/generic server error)"
	}
	answer.Kind, answer.Value = kind, value
	return answer
}
