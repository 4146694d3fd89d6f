package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/yaml"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/page"
)

// aLot is more than the most that a report has as a text. So a report that shows a text of this length in full is too long.
const aLot = 128 << 10

// hostile are texts that must neither reach a terminal as they are nor flood it.
var hostile = map[string]string{
	"escape sequences": "\x1b[2J\x1b]0;owned\a\x9b31m\u009b31m",
	"many words":       strings.Repeat("evil ", aLot/5),
	"one long word":    strings.Repeat("x", aLot),
	"not UTF-8":        strings.Repeat("\xff\xfe\xc3", 100),
	"wide":             strings.Repeat("\u4e16\u754c", 200),
	"combining":        "z" + strings.Repeat("\u0301\u0489", 400),
	"right to left":    "\u202egnikaerb\u2066",
	"lines":            strings.Repeat("\n\r\v\f\u2028", 100),
}

// infested is a cluster in which every text that others write is the same one.
func infested(t *testing.T, text string) *world {
	w := rolling(t)
	w.lease.Annotations[v1alpha1.AnnotationStop] = text
	w.lease.Spec.HolderIdentity = new(text + "_x")
	w.unread = errors.New(text)
	label(v1alpha1.LabelWants, text)(w.nodes[1])
	label(v1alpha1.LabelHeld, text)(w.nodes[1])
	setHost(w.nodes[2], func(h *v1alpha1.Host) {
		h.Version, h.OSVersion, h.ApplyFailed, h.HookFailed = text, text, text, text
		h.Changes = []v1alpha1.Change{{Source: v1alpha1.SourceFile, Name: text, Version: text}}
	})
	annotation(v1alpha1.AnnotationPaused, text)(w.nodes[2])
	last(v1alpha1.Last{Turn: "t0", Result: v1alpha1.ResultFailed, Reason: v1alpha1.Reason(text), End: at("12:00:00")})(w.nodes[2])
	annotation(v1alpha1.AnnotationAck, text)(w.nodes[3])
	annotation(v1alpha1.AnnotationDetached, text)(w.nodes[4])
	label(v1alpha1.LabelState, text)(w.add("n6"))
	w.add("n7", label(corev1.LabelTopologyZone, text))
	return w
}

// hostileUpdate is what a host may publish of its own, if the API server let it.
func hostileUpdate(text string) *v1alpha1.HostUpdateStatus {
	return &v1alpha1.HostUpdateStatus{
		Message:  v1alpha1.UpdateText(text),
		Blockers: []v1alpha1.Blocker{{Kind: v1alpha1.BlockerKind(text), Name: v1alpha1.UpdateName(text), Pod: v1alpha1.UpdateName(text), Message: v1alpha1.UpdateText(text)}},
		Engine:   &v1alpha1.EngineStatus{Operation: v1alpha1.UpdateName(text), Version: v1alpha1.UpdateName(text)},
		History: []v1alpha1.FinishedTurn{{Result: v1alpha1.UpdateName(text), Reason: v1alpha1.UpdateName(text), Changes: []v1alpha1.UpdateText{v1alpha1.UpdateText(text)},
			Stages: []v1alpha1.StageTime{{State: v1alpha1.UpdateName(text), Seconds: 3}}}},
	}
}

// No text does harm, however the report is shown: no line is longer than the terminal, and nothing that is not printable is there.
func TestHostileTexts(t *testing.T) {
	for name, text := range hostile {
		t.Run(name, func(t *testing.T) {
			r := infested(t, text).report()
			r.Find("n1").Update = hostileUpdate(text)
			r.Find("n2").UpdateError = text
			for _, f := range []Form{{All: true}, {Node: "n1"}, {Node: "n2"}, {Node: "n3"}, {Node: "n5"}, {Node: "n6"}, {Node: "n7"}, {Output: JSON}, {Output: YAML}, {Output: Wide, All: true}, {Output: Name, All: true}, {All: true, Color: true}} {
				for _, width := range []int{0, 20, 80} {
					if f.Width = width; f.isData() && width > 0 {
						continue
					}
					var b bytes.Buffer
					if _, err := f.Print(&b, &r); err != nil {
						t.Fatal(err)
					}
					harmless(t, b.String(), f)
				}
			}
			for _, width := range []int{0, 80} {
				var b bytes.Buffer
				if err := WriteHistory(&b, History([]v1alpha1.HostUpdate{{Status: *hostileUpdate(text)}}), now, Form{Width: width}); err != nil {
					t.Fatal(err)
				}
				harmless(t, b.String(), Form{Width: width})
			}
			var b bytes.Buffer
			if err := (&Printer{W: &b}).Show(r, errors.New(text)); err != nil {
				t.Fatal(err)
			}
			harmless(t, b.String(), Form{})
			if err := (&Printer{W: newScreen(t, 80, 24), Size: func() (int, int) { return 80, 24 }}).Show(r, errors.New(text)); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func harmless(t *testing.T, text string, f Form) {
	t.Helper()
	if f.Color {
		text = strings.NewReplacer("\x1b[31m", "", "\x1b[0m", "").Replace(text)
	}
	if !f.isData() && len(text) > aLot {
		t.Errorf("%+v: %d bytes", f, len(text))
	}
	if f.Output == JSON && !json.Valid([]byte(text)) {
		t.Errorf("%+v: the JSON is not valid", f)
	}
	if _, err := yaml.YAMLToJSON([]byte(text)); f.Output == YAML && err != nil {
		t.Errorf("%+v: the YAML is not valid: %v", f, err)
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if f.Width > 0 && !f.isData() && page.Columns(line) > f.Width {
			t.Errorf("%+v: a line has %d columns:\n%q", f, page.Columns(line), line)
			return
		}
		if i := strings.IndexFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 || !utf8.ValidString(line) {
			t.Errorf("%+v: a line has something that is not printable at byte %d:\n%.300q", f, i, line)
			return
		}
	}
}

// On a terminal the last two columns of the history are one, except in a wide table.
func TestHistoryOnATerminal(t *testing.T) {
	u := v1alpha1.HostUpdate{Status: v1alpha1.HostUpdateStatus{History: []v1alpha1.FinishedTurn{{
		Turn: "t-1", Result: "Done", Changes: []v1alpha1.UpdateText{"OSUpdate@4100.0.0"}, Started: metav1.Time{Time: at("12:00:00")}, Ended: metav1.Time{Time: at("12:04:10")},
		Stages: []v1alpha1.StageTime{{State: "draining", Seconds: 100}, {State: "rebooting", Seconds: 140}, {State: "uncordoning", Seconds: 10}},
	}}}}
	u.Name = "worker-3"
	for form, want := range map[Form]string{
		{}: "NODE      ENDED      TOOK   RESULT  CHANGES            STAGES\n" +
			"worker-3  12:04:10Z  4m10s  Done    OSUpdate@4100.0.0  draining 1m40s, rebooting 2m20s, uncordoning 10s\n",
		{Width: 80, Output: Wide}: "NODE      ENDED      TOOK   RESULT  TURN  CHANGES            STAGES\n" +
			"worker-3  12:04:10Z  4m10s  Done    t-1   OSUpdate@4100.0.0  draining 1m40s, rebooting 2m20s, uncordoning 10s\n",
		{NoHeaders: true}: "worker-3  12:04:10Z  4m10s  Done  OSUpdate@4100.0.0  draining 1m40s, rebooting 2m20s, uncordoning 10s\n",
		{Width: 80}: "NODE      ENDED      TOOK   RESULT  CHANGES AND STAGES\n" +
			"worker-3  12:04:10Z  4m10s  Done    OSUpdate@4100.0.0: draining 1m40s, rebooting\n" +
			"                                    2m20s, uncordoning 10s\n",
	} {
		var b strings.Builder
		if err := WriteHistory(&b, History([]v1alpha1.HostUpdate{u}), now, form); err != nil || b.String() != want {
			t.Errorf("%+v: %v\n%s\nexpected\n%s", form, err, &b, want)
		}
	}
}

// A longer name than a terminal has room for is cut in its middle, so that what the
// other columns say is seen.
func TestLongNames(t *testing.T) {
	w := newWorld(t)
	w.add("gke-production-europe-west3-pool-of-large-machines-4f8a1c3d-x7k2.example.internal", inTurn(v1alpha1.StateBeforeUncordon, "13:02:00", "seen"))
	w.add("n2")
	got, _ := w.text(Form{Width: 80})
	golden(t, "longname-80.txt", got)
}
