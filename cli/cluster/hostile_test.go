package cluster

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestHostileTextsInAnswers checks that a command prints no escape sequence from a record that another party wrote.
func TestHostileTextsInAnswers(t *testing.T) {
	const escape = "\x1b]0;owned\a\x1b[2J"
	harmless := func(what, text string) {
		t.Helper()
		if text == "" || strings.ContainsFunc(strings.ReplaceAll(text, "\n", ""), func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%s prints %q", what, text)
		}
	}
	retry := Intents[slices.IndexFunc(Intents, func(i Intent) bool { return i.Command == "retry" })]
	n := newNode("n1", last(v1alpha1.Last{Turn: "t0" + escape, Result: v1alpha1.ResultFailed, Reason: escape, End: at("12:00:00")}))
	s, client, _ := faulty(t, nil, n)
	for _, what := range []string{"retry", "retry of a turn that is cleared"} {
		var out bytes.Buffer
		if err := s.Apply(t.Context(), Options{Intent: &retry, Names: []string{"n1"}, Printer: Printer{Out: &out, Err: &out}}); err != nil {
			t.Fatal(err)
		}
		harmless(what, out.String())
	}
	if got, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{}); err != nil || got.Annotations[v1alpha1.AnnotationRetry] != "t0"+escape {
		t.Errorf("the Node says %v, %v; expected the turn as it is", got.Annotations, err)
	}
	lease := newLease()
	lease.Spec.HolderIdentity = new(escape + "_x")
	lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
	s, _, _ = faulty(t, nil, newNode("n1"), lease)
	err := s.LeaveUnreleased(t.Context(), "n1")
	if err == nil {
		t.Fatal("it leaves although an instance leads")
	}
	harmless("leave", err.Error())
}
