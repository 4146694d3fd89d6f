package policy

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"
)

// Limit is a number of nodes, or a share of them. The zero Limit allows none.
type Limit struct {
	Number  int // of nodes, 0 to 10000
	Percent int // 1 to 100; 0: Number applies
}

// Of returns the limit as a number of nodes; a percentage is one of all. It rounds a
// percentage down, but to at least one node. Otherwise the policy would never update a
// small fleet, and no one would notice.
func (l Limit) Of(all int) int {
	if l.Percent > 0 {
		return max(1, all*l.Percent/100)
	}
	return l.Number
}

// String returns the limit as it is written in a policy.
func (l Limit) String() string {
	if l.Percent > 0 {
		return strconv.Itoa(l.Percent) + "%"
	}
	return strconv.Itoa(l.Number)
}

// MaxNodes bounds counts of nodes in a policy.
const MaxNodes = 10000

func parseLimit(v intstr.IntOrString) (Limit, error) {
	if v.Type == intstr.Int {
		if v.IntVal < 1 || v.IntVal > MaxNodes {
			return Limit{}, fmt.Errorf("%d, expected 1 to %d, or a percentage such as \"10%%\"", v.IntVal, MaxNodes)
		}
		return Limit{Number: int(v.IntVal)}, nil
	}
	digits, ok := strings.CutSuffix(v.StrVal, "%")
	n, err := strconv.Atoi(digits)
	if !ok || err != nil || n < 1 || n > 100 || digits != strconv.Itoa(n) {
		return Limit{}, fmt.Errorf("%q, expected a number of 1 to %d, or a percentage of \"1%%\" to \"100%%\"", v.StrVal, MaxNodes)
	}
	return Limit{Percent: n}, nil
}
