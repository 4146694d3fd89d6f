package step

import (
	"slices"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestRestart: another process of the same boot writes what has changed. That it is another process counts only in a turn, and after
// one that was taken back because the host was silent. The label managed=false is no reason to write either.
func TestRestart(t *testing.T) {
	start := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	silent := &v1alpha1.Last{Turn: "t0", Result: v1alpha1.ResultBackedOut, Reason: v1alpha1.ReasonHostSilent}
	done := &v1alpha1.Last{Turn: "t0", Result: v1alpha1.ResultDone}
	for name, c := range map[string]struct {
		change func(*Observation)
		writes bool
	}{
		"idle":                   {func(*Observation) {}, false},
		"paused":                 {func(o *Observation) { o.Node.State = v1alpha1.StatePaused }, false},
		"idle after a turn":      {func(o *Observation) { o.Node.Last = done }, false},
		"after silence":          {func(o *Observation) { o.Node.Last = silent }, true},
		"not adopted":            {func(o *Observation) { o.Node.State = v1alpha1.StateAbsent }, true},
		"a corrected clock":      {func(o *Observation) { o.Self.BootTime = start.Add(-time.Second) }, false},
		"almost too much":        {func(o *Observation) { o.Self.BootTime = start.Add(time.Minute - 1) }, false},
		"too much":               {func(o *Observation) { o.Self.BootTime = start.Add(time.Minute) }, true},
		"a clock that was wrong": {func(o *Observation) { o.Self.BootTime = start.Add(-time.Hour) }, true},
		"managed=false":          {func(o *Observation) { o.Node.Managed = new(false) }, false},
		"its file: not managed":  {func(o *Observation) { o.ManagedByDefault = false }, true},
		"managed=false, a turn": {func(o *Observation) {
			o.Node.Managed, o.Node.State, o.Node.Turn = new(false), v1alpha1.StateDraining, "t1"
		}, true},
		"another version":        {func(o *Observation) { o.Self.Version = "v2" }, true},
		"another boot":           {func(o *Observation) { o.Self.BootID = "b2" }, true},
		"something to do":        {func(o *Observation) { o.Sources.Wants = v1alpha1.WantsReboot }, true},
		"draining":               {func(o *Observation) { o.Node.State, o.Node.Turn = v1alpha1.StateDraining, "t1" }, true},
		"its record is damaged":  {func(o *Observation) { o.Node.Host, o.Node.RawHost = nil, "{" }, true},
		"the Node is a new one":  {func(o *Observation) { o.Node.UID = "another" }, true},
		"the label os has to be": {func(o *Observation) { o.Info = map[string]string{v1alpha1.LabelOS: "flatcar"} }, true},
	} {
		o := Observation{ManagedByDefault: true, Self: v1alpha1.Host{Version: "v1", BootID: "b1", BootTime: start, Started: start},
			Sources: Sources{Complete: true, Wants: v1alpha1.WantsNothing}}
		o.Node.UID, o.Node.State, o.Node.Wants = "u", v1alpha1.StateIdle, v1alpha1.WantsNothing
		self := o.hostRecord(v1alpha1.Ack{})
		o.Node.Host, o.Node.RawHost = &self, v1alpha1.FormatRecord(&self)
		o.Self.Started = start.Add(time.Hour)
		c.change(&o)
		var w Write
		o.publish(&w)
		if _, writes := w.Annotations[v1alpha1.AnnotationHost]; writes != c.writes {
			t.Errorf("%s: writes host: %t, want %t", name, writes, c.writes)
		}
		if o.Self.Started != start.Add(time.Hour) || o.Node.Host != nil && o.Node.Host.Started != start {
			t.Errorf("%s: the observation was changed", name)
		}
	}
}

// TestInfoLabels: the host writes those of its information labels that differ from what is on the Node.
func TestInfoLabels(t *testing.T) {
	for _, c := range []struct{ want, have, writes string }{
		{"", "", ""},
		{"os=a os-version=1 group=g", "os=a os-version=1 group=g", ""},
		{"os=b os-version=1 group=g", "os=a os-version=1 group=g", "os=b"},
		{"os=a os-version=1 group=h", "os=a os-version=1 group=g", "group=h"},
		{"os=a", "os=a os-version=1 group=", "-group -os-version"},
		{"os=a group=g", "", "group=g os=a"},
	} {
		o := observe(t, []string{"idle"})
		o.Info, o.Node.Info = labels(c.want), labels(c.have)
		var w Write
		o.publish(&w)
		var writes []string
		for key, value := range w.Labels {
			name := strings.TrimPrefix(key, v1alpha1.Prefix)
			switch {
			case key == v1alpha1.LabelWants:
			case value == nil:
				writes = append(writes, "-"+name)
			default:
				writes = append(writes, name+"="+*value)
			}
		}
		slices.Sort(writes)
		if got := strings.Join(writes, " "); got != c.writes {
			t.Errorf("%q over %q: writes %q, expected %q", c.want, c.have, got, c.writes)
		}
	}
}

// labels reads "os=a group=g".
func labels(text string) map[string]string {
	all := map[string]string{}
	for word := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(word, "=")
		all[v1alpha1.Prefix+name] = value
	}
	return all
}
