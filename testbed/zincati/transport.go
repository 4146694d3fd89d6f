package zincati

import (
	"net/http"
	"strings"
	"time"
)

// defaultHTTP follows redirects and uses the environment's proxies, as reqwest does. It does not offer gzip, because Zincati
// builds reqwest without it.
var defaultHTTP = &http.Client{Transport: lowerCaseNames{&http.Transport{
	Proxy:              http.ProxyFromEnvironment,
	ForceAttemptHTTP2:  true,
	DisableCompression: true,
	IdleConnTimeout:    90 * time.Second,
}}}

// lowerCaseNames writes the names of headers in lower case, as Zincati's HTTP library does. The transport writes Host and
// Content-Length itself, so these two keep their capitals. The names are changed only here: a RoundTripper in memory that hands
// the request to an http.Handler needs Go's names.
type lowerCaseNames struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (l lowerCaseNames) RoundTrip(request *http.Request) (*http.Response, error) {
	clone := request.Clone(request.Context())
	clone.Header = http.Header{}
	for name, values := range request.Header {
		if len(values) > 0 {
			name = strings.ToLower(name)
		}
		clone.Header[name] = values
	}
	return l.next.RoundTrip(clone)
}
