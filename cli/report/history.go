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
	Node string `json:"node"`
	v1alpha1.FinishedTurn
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

// WriteHistory writes the turns as a table, or as JSON. Of the form, it uses JSON and Width.
func WriteHistory(w io.Writer, turns []Turn, now time.Time, form Form) error {
	if form.JSON {
		return writeJSON(w, struct {
			Turns []Turn `json:"turns"`
		}{append([]Turn{}, turns...)}, "  ")
	}
	if len(turns) == 0 {
		_, err := fmt.Fprintln(w, "No finished turns.")
		return err
	}
	var rows [][]string
	for _, t := range turns {
		result := string(t.Result)
		if t.Reason != "" {
			result += " (" + string(t.Reason) + ")"
		}
		var changes []string
		for _, c := range t.Changes {
			changes = append(changes, string(c))
		}
		row := []string{t.Node, page.Clock(now, t.Ended.Time), page.Span(t.Ended.Sub(t.Started.Time)), page.Cell(result),
			page.Cell(cmp.Or(strings.Join(changes, ", "), "-")), stagesText(t.Stages)}
		if form.Width > 0 { // two wide columns leave no room on a terminal
			row = append(row[:4], row[4]+": "+row[5])
		}
		rows = append(rows, row)
	}
	header := []string{"NODE", "ENDED", "TOOK", "RESULT", "CHANGES", "STAGES"}
	if form.Width > 0 {
		header = append(header[:4], "CHANGES AND STAGES")
	}
	p := page.New(form.Width)
	p.Table("", header, rows)
	_, err := io.WriteString(w, p.String())
	return err
}
