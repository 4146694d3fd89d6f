package render

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/migrate"
	"lockkeeper.dev/lockkeeper/coordinator/notify"
	"lockkeeper.dev/lockkeeper/node/config"
)

// table returns a Markdown table.
func table(head []string, rows [][]string) string {
	var b strings.Builder
	line := func(cells []string) { b.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
	line(head)
	b.WriteString(strings.Repeat("| --- ", len(head)) + "|\n")
	for _, row := range rows {
		for i := range row {
			row[i] = strings.ReplaceAll(row[i], "|", `\|`)
		}
		line(row)
	}
	return b.String()
}

// codes lists values as Markdown code.
func codes(values ...string) string { return "`" + strings.Join(values, "`, `") + "`" }

func reasons() string {
	var rows [][]string
	for _, d := range v1alpha1.ReasonDocs() {
		var places []string
		for _, p := range d.Reason.Places() {
			places = append(places, string(p))
		}
		rows = append(rows, []string{codes(string(d.Reason)), d.Means, d.Do, strings.Join(places, ", ")})
	}
	return table([]string{"reason", "means", "what to do", "where"}, rows)
}

func blockers() string {
	var rows [][]string
	for _, d := range v1alpha1.BlockerDocs() {
		rows = append(rows, []string{codes(string(d.Kind)), d.Name, d.Means, d.Do})
	}
	return table([]string{"kind", "its name is", "means", "what to do"}, rows)
}

// kubeconfigs are the kubelets' kubeconfigs that hosts look for, one row for each distribution.
func kubeconfigs() string {
	var rows [][]string
	for _, k := range config.KubeletKubeconfigs() {
		known := "read in its source"
		if k.SecondHand {
			known = "second-hand"
		}
		rows = append(rows, []string{codes(k.Path), strings.Join(k.Distributions, ", "), k.Credential, known})
	}
	return table([]string{"path", "distributions", "credential", "how we know"}, rows)
}

func events() string {
	var rows [][]string
	for _, d := range v1alpha1.EventDocs() {
		rows = append(rows, []string{codes(d.Reason), d.About, d.Type(), d.Action, d.Means, d.Do})
	}
	return table([]string{"reason", "about", "type", "action", "means", "what to do"}, rows)
}

func metrics() string {
	var rows [][]string
	for _, d := range v1alpha1.MetricDocs() {
		labels, unit, help := "-", "-", d.Help
		if len(d.Labels) > 0 {
			labels = codes(d.Labels...)
		}
		if d.Unit != "" {
			unit = d.Unit
		}
		if d.Leader {
			help += ". Only the leader serves it"
		}
		rows = append(rows, []string{codes(string(d.Name)), string(d.Type), unit, labels, help + "."})
	}
	return table([]string{"metric", "type", "unit", "labels", "meaning"}, rows)
}

// marks are the marks of other programs on Nodes.
func marks() string {
	var rows [][]string
	for _, m := range v1alpha1.Marks() {
		slot := ""
		if m.Deletes {
			slot = "yes"
		}
		rows = append(rows, []string{m.Owner, string(m.Kind), codes(m.Key), m.Condition(), m.Means, slot})
	}
	return table([]string{"owner", "kind", "key", "value", "meaning", "takes a slot"}, rows)
}

// exclusions are what turns set on their Nodes for other programs.
func exclusions() string {
	var rows [][]string
	for _, x := range v1alpha1.AllExclusions() {
		rows = append(rows, []string{codes("drain." + x.Field), string(x.Kind), codes(x.Key), `"` + x.Value + `"`, x.Means})
	}
	return table([]string{"policy", "kind", "key", "value", "meaning"}, rows)
}

// settings has one row for settings of another tool next to each other that become the same.
func settings(tool migrate.Tool) string {
	var rows [][]string
	all := migrate.Settings(tool)
	for i := 0; i < len(all); {
		s, names := &all[i], []string{}
		for ; i < len(all) && all[i].Program == s.Program && all[i].Becomes == s.Becomes && all[i].How == s.How; i++ {
			names = append(names, settingName(tool, all[i].Name))
		}
		becomes := "-"
		if s.Becomes != "" {
			becomes = codes(s.Becomes)
		}
		rows = append(rows, []string{s.Program, codes(names...), becomes, s.How})
	}
	return table([]string{"program", "setting", "becomes", "how, or why not"}, rows)
}

func settingName(tool migrate.Tool, name string) string {
	if tool == migrate.Locksmith {
		return name
	}
	return "--" + name
}

func notifications() map[string]string {
	var occasions [][]string
	for _, d := range v1alpha1.OccasionDocs() {
		occasions = append(occasions, []string{codes(string(d.Occasion)), d.Means})
	}
	example, _ := json.MarshalIndent(&notify.Message{ // cannot fail for these types
		Time: time.Date(2026, 11, 22, 20, 15, 3, 0, time.UTC), Cluster: "prod", Occasion: v1alpha1.OccasionFailed, Nodes: []string{"web-17"}, Policy: "web",
		Turn: "k3vd2ycjq7rsm5wt", Result: v1alpha1.ResultFailed, Reason: v1alpha1.ReasonNotUpdated,
		Text: "Node web-17: Failed: turn k3vd2ycjq7rsm5wt ended Failed (" + string(v1alpha1.ReasonNotUpdated) + ": " + v1alpha1.ReasonNotUpdated.Doc().Means + ")",
	}, "", "  ")
	return map[string]string{
		"occasions": table([]string{"occasion", "when"}, occasions),
		"bounds": table([]string{"bound", "value"}, [][]string{
			{"messages that wait", fmt.Sprintf("%d; then the oldest one is dropped", notify.MaxQueue)},
			{"one attempt", v1alpha1.ShortDuration(notify.Timeout)},
			{"attempts", fmt.Sprint(notify.MaxAttempts)},
			{"pause between two attempts", fmt.Sprintf("%s at first, doubled each time, %s at most; longer if the receiver says so (`Retry-After`)",
				v1alpha1.ShortDuration(notify.FirstPause), v1alpha1.ShortDuration(notify.MaxPause))},
			{"from the occasion to the last repetition", v1alpha1.ShortDuration(notify.MaxAge)},
			{"nodes that a message names", fmt.Sprint(notify.MaxNames)},
			{"text of a message", fmt.Sprintf("%d bytes", notify.MaxText)},
			{"answer that is read", fmt.Sprintf("%d KiB", notify.MaxAnswer>>10)},
		}),
		"example": "```json\n" + string(example) + "\n```\n",
	}
}
