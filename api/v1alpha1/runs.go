package v1alpha1

import (
	"fmt"
	"time"
)

// Runs is the coordinator's record of the OS version that a node runs, the value of
// [AnnotationRuns]. Others wait for the time since then; see [RolloutSpec.After].
type Runs struct {
	// OSVersion is what the host reported in the boot BootID, and BootID is also the boot
	// that the kubelet reported.
	OSVersion string `json:"osVersion"`
	BootID    string `json:"bootID"`
	// Since is when a coordinator first saw the node Ready, in this boot and in no turn,
	// by the coordinator's clock.
	Since time.Time `json:"since"`
}

// MaxOSVersion bounds Runs.OSVersion, in bytes. A node with a longer version has no Runs.
const MaxOSVersion = 128

// ParseRuns reads the annotation's value; "" is no Runs and no error.
func ParseRuns(s string) (*Runs, error) {
	r, err := parseRecord[Runs](s)
	if r == nil || err != nil {
		return nil, err
	}
	if err := ValidateID(r.BootID); err != nil {
		return nil, fmt.Errorf("bootID: %w", err)
	}
	if r.OSVersion == "" || len(r.OSVersion) > MaxOSVersion {
		return nil, fmt.Errorf("osVersion: %d bytes, expected 1 to %d", len(r.OSVersion), MaxOSVersion)
	}
	return r, nil
}
