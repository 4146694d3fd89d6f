package coordinator

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/object"
)

// A leader that cannot read the policies again grants by the old ones for a minute, and then nothing until it has read
// them again.
func TestUnreadPolicies(t *testing.T) {
	kind := schema.GroupResource{Group: "lockkeeper.dev", Resource: "disruptionpolicies"}
	forbidden := apierrors.NewForbidden(kind, "", errors.New("no"))
	gone := fmt.Errorf("listing: %w", object.ErrNotServed)
	for _, c := range []struct {
		age time.Duration
		err error
		why string // a part of it; "" is that it grants
		due time.Duration
	}{
		{0, nil, "", leadRound},
		{0, forbidden, "", leadRound}, // a list was refused that only asks how far the store is; the watch is there
		{time.Second, nil, "", leadRound},
		{time.Second, forbidden, "", leadRound},
		{59 * time.Second, forbidden, "", time.Second},
		{time.Minute - 1, forbidden, "", 1},
		{time.Minute, forbidden, "forbidden", kube.CatchUp},
		{time.Hour, forbidden, "forbidden", kube.CatchUp},
		{time.Hour, nil, "has not answered", kube.CatchUp},
		{time.Hour, gone, "", leadRound},
	} {
		why, due := unread(c.age, c.err)
		if (why == "") != (c.why == "") || !strings.Contains(why, c.why) || due != c.due {
			t.Errorf("%v, %v: %q, looks again in %v; expected %q, %v", c.age, c.err, why, due, c.why, c.due)
		}
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
