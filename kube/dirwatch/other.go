//go:build !linux

package dirwatch

import "errors"

// Watcher reports nothing. Only the service uses it, which runs on Linux alone.
type Watcher struct{}

// New returns a Watcher that never calls changed.
func New(func(key string)) *Watcher { return &Watcher{} }

// Close does nothing.
func (w *Watcher) Close() {}

// Watch watches nothing, and says so.
func (w *Watcher) Watch(string, string, []string, bool) (grew bool, err error) {
	return false, errors.ErrUnsupported
}
