package hostupdate

import (
	"regexp"

	"k8s.io/apimachinery/pkg/api/equality"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Difference is how much two statuses differ.
type Difference int

// The differences.
const (
	// Same: nothing that is worth a request. When the engine checks, and last did, the last
	// gap and figures inside of texts are written along with other changes.
	Same Difference = iota
	// Progress: only how far something is.
	Progress
	// News: anything else.
	News
)

// Compare says how much two statuses differ.
func Compare(a, b *v1alpha1.HostUpdateStatus) Difference {
	x, y := worth(a), worth(b)
	if equality.Semantic.DeepEqual(x, y) {
		return Same
	}
	for _, s := range []*v1alpha1.HostUpdateStatus{x, y} {
		s.Drain = nil
		if s.Engine != nil {
			s.Engine.Progress = 0
		}
		for i := range s.Blockers {
			s.Blockers[i].Message = ""
		}
		for i := range s.Conditions {
			s.Conditions[i].Message = ""
		}
		s.Message = ""
	}
	if equality.Semantic.DeepEqual(x, y) {
		return Progress
	}
	return News
}

// An engine that asks for updates finds none, most of the time. Each host of an idle
// fleet would write that twice an hour.
const engineChecks, engineIdle = "CHECKING_FOR_UPDATE", "IDLE"

var figures = regexp.MustCompile("[0-9]+")

// worth is a copy without what is not worth a request.
func worth(s *v1alpha1.HostUpdateStatus) *v1alpha1.HostUpdateStatus {
	s = s.DeepCopy()
	if s.Engine != nil {
		s.Engine.LastChecked = nil
		if s.Engine.Operation == engineChecks {
			s.Engine.Operation = engineIdle
		}
	}
	if s.Drain != nil {
		s.Drain.ExpectedEnd = nil
	}
	s.Message = v1alpha1.UpdateText(figures.ReplaceAllString(string(s.Message), "#"))
	for i := range s.Blockers {
		s.Blockers[i].Message = v1alpha1.UpdateText(figures.ReplaceAllString(string(s.Blockers[i].Message), "#"))
	}
	for i := range s.Conditions {
		c := &s.Conditions[i]
		if c.Message = figures.ReplaceAllString(c.Message, "#"); c.Type == v1alpha1.ConditionClusterReachable {
			c.Message = ""
		}
	}
	return s
}
