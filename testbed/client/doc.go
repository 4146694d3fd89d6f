// Package client tests the parts of lockkeeper that talk to the API server against a real one, in the test's process: the loops of a
// host and of a coordinator (behind a proxy that records every request and can break it), drains, and what `lockkeeper plan` predicts
// of a drain. It is here because a real control plane belongs to this module.
package client
