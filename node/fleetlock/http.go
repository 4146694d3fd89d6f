package fleetlock

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// The requests, by their paths.
const (
	preReboot   = "/v1/pre-reboot"
	steadyState = "/v1/steady-state"
)

// The kinds of refusals. A client makes a metric label of them, so there are few.
const (
	kindNotYet   = "not_yet"
	kindHeader   = "missing_header"
	kindRequest  = "invalid_request"
	kindClient   = "unknown_client"
	kindMethod   = "method_not_allowed"
	kindNotFound = "not_found"
)

const (
	headerProtocol = "fleet-lock-protocol"
	maxBody        = 4 << 10 // bytes
	// answerWithin is how long the client may take to receive an answer.
	answerWithin = 10 * time.Second
)

// validGroup is what the protocol allows as the name of a group.
var validGroup = regexp.MustCompile(`^[a-zA-Z0-9.-]+$`)

// refusal is an answer that is not OK. Its JSON is the body.
type refusal struct {
	status int
	Kind   string `json:"kind"`
	Value  string `json:"value"`
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	refused := s.check(w, r)
	switch {
	case refused != nil:
	case r.URL.Path == steadyState:
		s.steady()
	default:
		// The server bounds how long an answer takes. This one may wait. An error means that the
		// client has gone, and so does one of the answer below.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(HoldFor + answerWithin))
		refused = s.wait(r.Context())
	}
	if refused == nil {
		result := v1alpha1.FleetLockPermitted
		if r.URL.Path == steadyState {
			result = v1alpha1.FleetLockSteady
		}
		s.Answered(result)
		w.WriteHeader(http.StatusOK)
		return
	}
	result := v1alpha1.FleetLockRefused
	if refused.Kind == kindNotYet {
		result = v1alpha1.FleetLockNotYet
	}
	s.Answered(result)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(refused.status)
	_ = json.NewEncoder(w).Encode(refused)
}

// check returns why the request is refused without regard to this host's turn, or nil.
func (s *Server) check(w http.ResponseWriter, r *http.Request) *refusal {
	if path := r.URL.Path; path != preReboot && path != steadyState {
		return &refusal{http.StatusNotFound, kindNotFound, "expected " + preReboot + " or " + steadyState}
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return &refusal{http.StatusMethodNotAllowed, kindMethod, "expected POST"}
	}
	if r.Header.Get(headerProtocol) != "true" {
		return &refusal{http.StatusBadRequest, kindHeader, "expected the header " + headerProtocol + ": true"}
	}
	id, err := clientID(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return &refusal{http.StatusBadRequest, kindRequest, err.Error()}
	}
	if !s.known(id) {
		s.warnOnce.Do(func() {
			s.Log.Warn("refused a FleetLock request of another client: its client_params.id is not the ID of this host's client", "from", r.RemoteAddr)
		})
		return &refusal{http.StatusForbidden, kindClient, "client_params.id is not the ID of this host's client; see [fleetlock] id in lockkeeper's configuration"}
	}
	return nil
}

// clientID returns the client's ID in a request's body.
func clientID(body io.Reader) (string, error) {
	text, err := io.ReadAll(body)
	if err != nil {
		return "", fmt.Errorf("read the body: %w", err)
	}
	// Maps, because encoding/json would accept the members of a struct in any case, and they have only one.
	var request map[string]any
	if err := json.Unmarshal(text, &request); err != nil {
		return "", errors.New(`the body is not the JSON expected: {"client_params": {"id": "…", "group": "…"}}`)
	}
	client, _ := request["client_params"].(map[string]any)
	id, _ := client["id"].(string)
	group, _ := client["group"].(string)
	switch {
	case client == nil:
		return "", errors.New("client_params is missing, or is not an object")
	case id == "":
		return "", errors.New("client_params.id has to be a string that is not empty")
	case !validGroup.MatchString(group):
		return "", errors.New("client_params.group has to be one or more of a-z, A-Z, 0-9, . and -")
	}
	return id, nil
}
