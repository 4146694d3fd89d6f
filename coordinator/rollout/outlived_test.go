package rollout_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// A unit writes the file that it is restarted for: whatever the file holds now, the
// node is not granted that until a person says so, even where more nodes may fail.
func TestOutlivedIsNotGranted(t *testing.T) {
	file := func(version string) v1alpha1.Change {
		return v1alpha1.Change{Source: v1alpha1.SourceFile, Name: "/etc/a", Version: version}
	}
	request := v1alpha1.Change{Source: v1alpha1.SourceRequest}
	update := v1alpha1.Change{Source: v1alpha1.SourceOSUpdate, Version: "9"}
	for reason, granted := range map[string][]v1alpha1.Change{"StillWanted": {file("1")}, "ApplyFailed": {file("1"), request}} {
		s := situation(t, strings.Fields("applying grant.nodrain grant.wants=apply wants=apply nodrain ack=applying/failed:"+reason))
		s.Policies[0].MaxFailed = 1
		n := &s.Nodes[0]
		// Somebody has asked for a reboot meanwhile, or the turn was for that too. An
		// update has come as well, which nobody has tried.
		n.Grant.Changes, n.Host.Changes = granted, []v1alpha1.Change{file("2"), request, update}
		setRequest(&n.Request, &n.Requests, "disk", false)
		if v1alpha1.Has(granted, v1alpha1.SourceRequest) {
			n.Grant.Request, n.Grant.Requests = n.Request, n.Requests
		}
		back := verdictOf(t, s).Move
		if back == nil || back.To != v1alpha1.StateUncordoning {
			t.Fatalf("%s: %+v", reason, back)
		}
		n.State, n.Grant, n.Ack.State, n.Ack.Report = back.To, back.Grant, back.To, v1alpha1.ReportDone
		end := verdictOf(t, s).Move
		if end == nil || end.To != v1alpha1.StateIdle || end.Last == nil || end.Last.Result != v1alpha1.ResultFailed {
			t.Fatalf("%s: %+v", reason, end)
		}
		removes := slices.Contains(end.Remove, v1alpha1.AnnotationRequest)
		if asked := len(granted) == 2; v1alpha1.Has(end.Last.Changes, v1alpha1.SourceRequest) != asked || removes != asked || !slices.Contains(end.Last.Changes, file("2")) || slices.Contains(end.Last.Changes, update) {
			t.Errorf("%s: it failed for %v, the request is removed: %t", reason, end.Last.Changes, removes)
		}

		*n = turn.Node{Name: n.Name, UID: n.UID, ResourceVersion: "2", Created: n.Created, BootID: n.BootID, Ready: true, Keys: v1alpha1.Keys{
			State: v1alpha1.StateIdle, Wants: n.Wants, Host: n.Host, Last: end.Last, Request: aRequest("again", false)}}
		n.Last.End = n.Last.End.Add(-time.Hour)
		n.Host.Changes = slices.Clone(n.Last.Changes)
		detail := map[string]string{"StillWanted": "StillWanted: File /etc/a@2", "ApplyFailed": "ApplyFailed"}[reason]
		if v := verdictOf(t, s); v.Move != nil || v.Held != v1alpha1.ReasonFailed || v.Detail != detail {
			t.Errorf("%s: after that %+v", reason, v)
		}
		// Something has written it once more, long after its turn. What could not be
		// applied may be mended by that; what has outlived its turn will do so again.
		n.Host.Changes[slices.Index(n.Host.Changes, file("2"))] = file("3")
		held := map[string]v1alpha1.Reason{"StillWanted": v1alpha1.ReasonFailed, "ApplyFailed": v1alpha1.ReasonNone}[reason]
		if v := verdictOf(t, s); v.Held != held || (v.Move == nil) != (held != v1alpha1.ReasonNone) {
			t.Errorf("%s: after another content %+v", reason, v)
		}
		// Another file is another matter, and so is the update.
		for _, more := range []v1alpha1.Change{{Source: v1alpha1.SourceFile, Name: "/etc/b", Version: "1"}, update} {
			n.Host.Changes = append(slices.Clone(n.Last.Changes), more)
			if v := verdictOf(t, s); v.Move == nil || v.Move.On != turn.Granted {
				t.Errorf("%s: with %v as well %+v", reason, more, v)
			}
		}
		n.Host.Changes = slices.Clone(n.Last.Changes)
		n.Retry = n.Last.Turn
		if v := verdictOf(t, s); v.Move == nil || v.Move.On != turn.Granted || !slices.Contains(v.Move.Grant.Changes, file("2")) {
			t.Errorf("%s: after retry %+v", reason, v)
		}
	}
}

func verdictOf(t *testing.T, s rollout.Snapshot) rollout.Verdict {
	t.Helper()
	for _, v := range rollout.Decide(s).Verdicts {
		if v.Node == "n1" {
			return v
		}
	}
	t.Fatal("nothing is said of n1")
	return rollout.Verdict{}
}

// The grant names the steps that the coordinator decided on: those that the host had published, and until the drain is over
// those that it publishes instead.
func TestGrantNamesSteps(t *testing.T) {
	one := []v1alpha1.Action{{Type: v1alpha1.ActionRestart, Unit: "a.service"}}
	two := []v1alpha1.Action{{Type: v1alpha1.ActionRestart, Unit: "b.service"}}
	for _, c := range []struct {
		facts   string
		granted []v1alpha1.Action // before
		want    []v1alpha1.Action
	}{
		{"idle wants=apply nodrain", nil, two},
		{"idle wants=drain", nil, two},
		{"before-drain wants=drain grant.wants=drain ack=before-drain/seen", one, two},
		{"draining wants=drain grant.wants=drain ack=draining/done", one, two},
		{"before-reboot ack=before-reboot/seen", one, one},
	} {
		s := situation(t, strings.Fields(c.facts))
		n := &s.Nodes[0]
		if n.Host.Steps = two; n.Grant != nil {
			n.Grant.Steps = v1alpha1.StepsDigest(c.granted)
		}
		v := verdictOf(t, s)
		if v.Move == nil || v.Move.Grant == nil || v.Move.From == v.Move.To {
			t.Errorf("%s: %+v", c.facts, v)
			continue
		}
		if got := v.Move.Grant.Steps; got != v1alpha1.StepsDigest(c.want) {
			t.Errorf("%s: to %s for %q", c.facts, v.Move.To, got)
		}
	}
}
