package policy

import (
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Default returns the policy of an empty spec: one node at a time, no hooks. It is for
// tools and tests without a cluster.
func Default() Policy {
	obj := &v1alpha1.DisruptionPolicy{Spec: v1alpha1.DefaultPolicySpec()}
	obj.Name = "built-in"
	return Compile(obj, func(string) (*time.Location, error) { return time.UTC, nil })
}
