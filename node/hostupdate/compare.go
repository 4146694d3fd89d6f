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
	// Same means that nothing is worth a request. The following are only written together
	// with other changes: that the engine checks for updates, when it last did, the last gap,
	// and numbers in texts.
	Same Difference = iota
	// Progress means that only figures of progress and messages differ.
	Progress
	// News means that anything else differs.
	News
)

// Compare returns how much two statuses differ.
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

// An engine that checks for updates usually finds none. Without this exception, each host of
// an idle fleet would write its HostUpdate twice an hour.
const engineChecks, engineIdle = "CHECKING_FOR_UPDATE", "IDLE"

var figures = regexp.MustCompile("[0-9]+")

// worth returns a copy of the status without the parts that are not worth a request.
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
