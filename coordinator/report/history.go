package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Turn is one turn of a node that is over, as the node's HostUpdate has it.
type Turn struct {
	Node string `json:"node"`
	v1alpha1.FinishedTurn
}

// History are the turns that the HostUpdates hold, the latest first. Each host keeps
// its last ten.
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

// WriteHistory writes the turns as a table, or as JSON.
func WriteHistory(w io.Writer, turns []Turn, now time.Time, asJSON bool) error {
	if asJSON {
		return writeJSON(w, struct {
			Turns []Turn `json:"turns"`
		}{append([]Turn{}, turns...)}, "  ")
	}
	if len(turns) == 0 {
		_, err := fmt.Fprintln(w, "No turn has ended, as far as the HostUpdates tell.")
		return err
	}
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "NODE\tENDED\tTOOK\tRESULT\tCHANGES\tSTAGES")
	for _, t := range turns {
		result := string(t.Result)
		if t.Reason != "" {
			result += " (" + string(t.Reason) + ")"
		}
		var changes []string
		for _, c := range t.Changes {
			changes = append(changes, string(c))
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\n", clean(t.Node), clock(now, t.Ended.Time), span(t.Ended.Sub(t.Started.Time)),
			cell(result), cell(cmp.Or(strings.Join(changes, ", "), "-")), cell(stagesText(t.Stages)))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(w, b.String())
	return err
}
