package coordinator

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"lockkeeper.dev/lockkeeper/node/object"
)

// A leader that may no longer read the policies grants by the old ones for a minute, and then nothing until it has
// read them again.
func TestUnreadPolicies(t *testing.T) {
	kind := schema.GroupResource{Group: "lockkeeper.dev", Resource: "disruptionpolicies"}
	forbidden, away := apierrors.NewForbidden(kind, "", errors.New("no")), errors.New("away")
	gone := fmt.Errorf("listing: %w", object.ErrNotServed)
	type step struct {
		after time.Duration
		err   error
		why   string // a part of it; "" is that it grants
		due   time.Duration
	}
	for name, steps := range map[string][]step{
		"read all the time": {{0, nil, "", leadRound}, {time.Hour, nil, "", leadRound}},
		"the right to read is revoked": {
			{0, nil, "", leadRound}, {time.Hour, forbidden, "", leadRound}, {59 * time.Second, forbidden, "", time.Second},
			{time.Second, forbidden, "forbidden", leadRound}, {time.Hour, forbidden, "forbidden", leadRound},
			// What is there by now is taken in after the answer.
			{0, nil, "forbidden", readAgainFor}, {readAgainFor - 1, nil, "forbidden", 1}, {1, nil, "", leadRound},
			{0, forbidden, "", leadRound},
		},
		"just not a minute": {{0, away, "", leadRound}, {59 * time.Second, nil, "", readAgainFor}, {2 * time.Second, nil, "", readAgainFor - 2*time.Second}, {time.Hour, nil, "", leadRound}},
		"a moment":          {{0, away, "", leadRound}, {time.Second, nil, "", readAgainFor}, {readAgainFor, nil, "", leadRound}, {time.Hour, nil, "", leadRound}},
		"the list is answered and the watch is not": {
			{0, away, "", leadRound}, {30 * time.Second, nil, "", readAgainFor}, {time.Millisecond, away, "", 30*time.Second - time.Millisecond},
			{30 * time.Second, forbidden, "forbidden", leadRound}, {time.Millisecond, nil, "forbidden", readAgainFor}, {time.Millisecond, away, "away", leadRound},
		},
		"no such kind":                {{0, gone, "", leadRound}, {time.Hour, gone, "", leadRound}},
		"no such kind after all":      {{0, away, "", leadRound}, {time.Hour, away, "away", leadRound}, {0, gone, "", leadRound}},
		"looked at long after, still": {{0, away, "", leadRound}, {time.Hour, away, "away", leadRound}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var u unread
			for i, s := range steps {
				time.Sleep(s.after)
				why, due := u.look(s.err)
				if (why == "") != (s.why == "") || !strings.Contains(why, s.why) || due != s.due {
					t.Errorf("%s: step %d: %q, looks again in %v; expected %q, %v", name, i, why, due, s.why, s.due)
				}
			}
		})
	}
}

// It says so, once, and that it is over.
func TestUnreadPoliciesAreTold(t *testing.T) {
	var said []Status
	l := &leader{candidate: &candidate{Options: Options{Report: func(s Status) { said = append(said, s) }}, log: slog.New(slog.DiscardHandler)}, epoch: "me_1"}
	l.say(Status{Candidate: true, Leader: true, Epoch: "me_1"})
	for _, why := range []string{"", "forbidden", "forbidden", "", ""} {
		l.sees(why)
	}
	if len(said) != 3 || !said[1].Leader || !said[1].Hindered || !strings.Contains(said[1].Why, "forbidden") || said[2].Hindered || said[2].Why != "" || !said[2].Leader {
		t.Errorf("said %+v", said)
	}
}
