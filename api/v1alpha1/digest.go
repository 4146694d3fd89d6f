package v1alpha1

import (
	"cmp"
	"slices"
	"strings"
)

// VersionAbsent is the version of a File or Unit change whose file is gone.
const VersionAbsent = "absent"

// The version of any other File or Unit change is a keyed digest, "KEYID-DIGEST", both
// in lower-case hexadecimal digits. Each host has its own key and never publishes it.
// KEYID tells the host's keys apart and says nothing else about them. A host that loses
// its key makes another one.
const (
	KeyIDLength  = 8  // digits, 32 bits
	DigestLength = 12 // digits, 48 bits
)

// DigestKey returns the ID of the key that a version was made with, or "" if the
// version is not a keyed digest.
func DigestKey(version string) string {
	id, digest, _ := strings.Cut(version, "-")
	if len(id) != KeyIDLength || len(digest) != DigestLength || strings.Trim(id+digest, "0123456789abcdef") != "" {
		return ""
	}
	return id
}

// Same reports whether two changes are the same: the source, the name and the version
// are equal. Two digests of a file or unit that were made with different keys cannot
// be compared. They count as the same version, because every caller uses Same to find
// out whether there is a new change: a new key alone must not end a hold or a delay,
// and must not look like another edit.
//
// Same is the only comparison of versions. It is not transitive.
func (c Change) Same(o Change) bool {
	if c == o {
		return true
	}
	if c.Source != o.Source || c.Name != o.Name || c.Source != SourceFile && c.Source != SourceUnit {
		return false
	}
	key, other := DigestKey(c.Version), DigestKey(o.Version)
	return key != "" && other != "" && key != other
}

// SameChanges reports whether two lists hold the same changes by [Change.Same], in any
// order.
func SameChanges(a, b []Change) bool {
	if len(a) != len(b) {
		return false
	}
	if slices.EqualFunc(a, b, Change.Same) {
		return true
	}
	// A list has each source and name once, so sorting pairs the changes up.
	return slices.EqualFunc(sorted(a), sorted(b), Change.Same)
}

func sorted(changes []Change) []Change {
	return slices.SortedFunc(slices.Values(changes), func(a, b Change) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Version, b.Version))
	})
}
