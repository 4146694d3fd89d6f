package kube

import "sync"

// mostLabelKeys bounds the memory of sharedLabels: hosts and other programs write labels too.
const mostLabelKeys = 1000

// sharedLabels lets the labels of many Nodes share one copy of what they have in common: the
// keys, and values that two Nodes in a row have. Nodes with the labels of a cloud provider and
// of node-feature-discovery would otherwise need more memory for these than for all else that
// is kept of them. It may be used by several goroutines.
type sharedLabels struct {
	mu   sync.Mutex
	last map[string]label // by key
}

// label is the last label with its key that a Node had.
type label struct{ key, value string }

// of returns labels that are equal to those of a Node.
func (s *sharedLabels) of(labels map[string]string) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil {
		s.last = map[string]label{}
	}
	shared := make(map[string]string, len(labels))
	for key, value := range labels {
		l, known := s.last[key]
		if !known {
			l.key = key
		}
		// Of an equal value, the copy from the Node before stays.
		if l.value != value {
			l.value = value
		}
		if known || len(s.last) < mostLabelKeys {
			s.last[l.key] = l
		}
		shared[l.key] = l.value
	}
	return shared
}
