package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/page"
)

// Turn is a finished turn from the HostUpdate of a node.
type Turn struct {
	// Node is the Node's name.
	Node string `json:"node"`
	v1alpha1.FinishedTurn
}

// HistoryList is what `lockkeeper history -o json` prints: fields are added, never renamed.
type HistoryList struct {
	// Turns lists the turns, the latest first.
	Turns []Turn `json:"turns"`
}

// History returns the turns in the HostUpdates, the latest first. Each host keeps its last
// ten.
func History(all []v1alpha1.HostUpdate) []Turn {
	var turns []Turn
	for i := range all {
		for _, t := range all[i].Status.History {
			turns = append(turns, Turn{all[i].Name, t})
		}
	}
	slices.SortStableFunc(turns, func(a, b Turn) int {
		return cmp.Or(b.Ended.Compare(a.Ended.Time), strings.Compare(a.Node, b.Node))
	})
	return turns
}

// WriteHistory writes the turns as a table or as data. It ignores All and Node of the form.
func WriteHistory(w io.Writer, turns []Turn, now time.Time, f Form) error {
	if f.isData() {
		return f.writeData(w, HistoryList{append([]Turn{}, turns...)}, "  ")
	}
	if len(turns) == 0 {
		if f.NoHeaders {
			return nil
		}
		_, err := fmt.Fprintln(w, "No finished turns.")
		return err
	}
	// Two wide columns leave no room on a terminal. A wide table is not fitted to it.
	narrow := f.Width > 0 && f.Output != Wide
	columns := func(turn, changes, stages string, row ...string) []string {
		switch {
		case narrow:
			return append(row, changes+stages)
		case f.Output == Wide:
			row = append(row, turn)
		}
		return append(row, changes, stages)
	}
	var rows [][]string
	failed := map[string]bool{}
	for _, t := range turns {
		result := string(t.Result)
		if t.Reason != "" {
			result += " (" + string(t.Reason) + ")"
		}
		if t.Result == v1alpha1.UpdateName(v1alpha1.ResultFailed) {
			failed[page.Cell(result)] = true
		}
		var changes []string
		for _, c := range t.Changes {
			changes = append(changes, string(c))
		}
		what, stages := page.Cell(cmp.Or(strings.Join(changes, ", "), "-")), stagesText(t.Stages)
		if narrow {
			what += ": "
		}
		rows = append(rows, columns(page.Cell(string(t.Turn)), what, stages,
			t.Node, page.Clock(now, t.Ended.Time), page.Span(t.Ended.Sub(t.Started.Time)), page.Cell(result)))
	}
	changes, stages := "CHANGES", "STAGES"
	if narrow {
		changes, stages = "CHANGES AND ", "STAGES"
	}
	if !narrow {
		f.Width = 0
	}
	p := f.page()
	p.Attention = failed
	p.Table("", f.header(columns("TURN", changes, stages, "NODE", "ENDED", "TOOK", "RESULT")...), rows)
	_, err := io.WriteString(w, p.String())
	return err
}
