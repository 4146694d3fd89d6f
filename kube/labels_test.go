package kube

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"unsafe"
)

// TestSharedLabels checks that the labels of Nodes stay what they are, that two Nodes share the text of keys and of equal values, and that
// the memory for keys is bounded.
func TestSharedLabels(t *testing.T) {
	copied := func(labels map[string]string) map[string]string { // as another Node has them: equal, in other memory
		other := map[string]string{}
		for key, value := range labels {
			other[strings.Clone(key)] = strings.Clone(value)
		}
		return other
	}
	text := func(labels map[string]string, key string) (k, v *byte) {
		for name, value := range labels {
			if name == key {
				return unsafe.StringData(name), unsafe.StringData(value)
			}
		}
		t.Fatalf("no label %s", key)
		return nil, nil
	}
	var s sharedLabels
	nodes := []map[string]string{{"zone": "a", "name": "n1"}, {"zone": "a", "name": "n2"}, {"zone": "b", "name": "n3"}, {"zone": "", "name": "n4"}, {}}
	var shared []map[string]string
	for _, labels := range nodes {
		shared = append(shared, s.of(copied(labels)))
	}
	for i, labels := range nodes {
		if !maps.Equal(shared[i], labels) {
			t.Errorf("%v became %v", labels, shared[i])
		}
	}
	key0, value0 := text(shared[0], "zone")
	for i, same := range map[int]bool{1: true, 2: false} {
		if key, value := text(shared[i], "zone"); key != key0 || (value == value0) != same {
			t.Errorf("Nodes 0 and %d: the same key %t, expected true; the same value %t, expected %t", i, key == key0, value == value0, same)
		}
	}

	many := map[string]string{}
	for i := range mostLabelKeys + 10 {
		many[fmt.Sprint("key-", i)] = fmt.Sprint(i)
	}
	for range 2 {
		if got := s.of(copied(many)); !maps.Equal(got, many) {
			t.Errorf("of %d labels, some changed", len(many))
		}
	}
	if len(s.last) != mostLabelKeys {
		t.Errorf("it keeps %d keys, expected %d", len(s.last), mostLabelKeys)
	}
}
