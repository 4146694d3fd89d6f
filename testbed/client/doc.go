// Package client tests, against a real API server and in the test's process, the parts of lockkeeper that are clients
// of it: the loops of a host and of a coordinator (behind a proxy that records every request and can break it), drains,
// and the predictions of `lockkeeper plan`. It is in this module because only this module provides a real control
// plane.
package client
