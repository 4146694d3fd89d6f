package v1alpha1

import (
	"strings"
	"testing"
)

// `lockkeeper status` prints what to do about each reason, so no advice may send a reader to it.
func TestNoAdviceLeadsBackToStatus(t *testing.T) {
	for _, d := range ReasonDocs() {
		if strings.Contains(d.Do, "lockkeeper status") {
			t.Errorf("%s: %s", d.Reason, d.Do)
		}
	}
}
