package v1alpha1

import (
	"slices"
	"strings"
	"testing"
)

// The keys of the first version, by hand: its admission policies know them. Those policies refuse a later key that does not begin with its
// writer's prefix, which holds every host that is upgraded before the manifests are.
func TestLaterKeysBeginWithTheirWriter(t *testing.T) {
	first := strings.Fields("wants os os-version group host ack cordon state held turn grant last runs expired")
	for prefix, keys := range map[string]func() (labels, annotations []string){LaterHostPrefix: HostKeys, LaterCoordinatorPrefix: CoordinatorKeys} {
		labels, annotations := keys()
		for _, key := range slices.Concat(labels, annotations) {
			if !strings.HasPrefix(key, prefix) && !slices.Contains(first, strings.TrimPrefix(key, Prefix)) {
				t.Errorf("%s is new and does not begin with %s", key, prefix)
			}
		}
	}
}
