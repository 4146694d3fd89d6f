package rollout

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// panel is a panel of the dashboard.
type panel struct {
	ID                       int
	Type, Title, Description string
	Datasource               struct{ Type, UID string }
	GridPos                  struct{ X, Y, W, H int }
	Targets                  []struct {
		RefID, Expr string
		Datasource  struct{ Type, UID string }
	}
}

func panels(t *testing.T) []panel {
	t.Helper()
	var board struct {
		Title, UID string
		Templating struct {
			List []struct{ Name, Type, Query string }
		}
		Panels []panel
	}
	if err := json.Unmarshal([]byte(readFile(t, pack, "dashboard.json")), &board); err != nil {
		t.Fatal(err)
	}
	if v := board.Templating.List; board.Title == "" || board.UID == "" || len(v) != 1 || v[0].Name != "datasource" || v[0].Type != "datasource" || v[0].Query != "prometheus" {
		t.Errorf("the dashboard: %q, %q, variables %+v", board.Title, board.UID, v)
	}
	return board.Panels
}

// TestDashboardForm checks that Grafana can show the dashboard with any Prometheus: all queries use the data source
// that the user selects, and no panel overlaps another.
func TestDashboardForm(t *testing.T) {
	t.Parallel()
	all := panels(t)
	queries, ids := 0, map[int]bool{}
	for i, p := range all {
		if p.ID == 0 || ids[p.ID] || p.Title == "" {
			t.Errorf("panel %d: id %d, title %q", i, p.ID, p.Title)
		}
		ids[p.ID] = true
		for _, q := range all[:i] {
			a, b := p.GridPos, q.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H || a.X+a.W > 24 || a.W < 1 || a.H < 1 {
				t.Errorf("%s at %+v overlaps %s at %+v", p.Title, a, q.Title, b)
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Description == "" || len(p.Targets) == 0 || p.Datasource.Type != "prometheus" || p.Datasource.UID != "${datasource}" {
			t.Errorf("%s: description %q, %d queries, data source %v", p.Title, p.Description, len(p.Targets), p.Datasource)
		}
		for _, q := range p.Targets {
			queries++
			if q.RefID == "" || q.Expr == "" || q.Datasource != p.Datasource {
				t.Errorf("%s: %+v", p.Title, q)
			}
			checkLabels(t, p.Title, q.Expr)
		}
	}
	if queries < 20 {
		t.Errorf("%d queries", queries)
	}
}

// checkLabels checks that each label that a query aggregates or matches by is one of its metrics. Prometheus returns series without
// such a label and no error.
func checkLabels(t *testing.T, title, expr string) {
	t.Helper()
	has := map[string]bool{"job": true, "instance": true}
	for _, d := range v1alpha1.MetricDocs() {
		if strings.Contains(expr, string(d.Name)) {
			if d.Type == v1alpha1.Histogram {
				has["le"] = true
			}
			for _, name := range d.Labels {
				has[name] = true
			}
		}
	}
	for _, m := range labelList.FindAllStringSubmatch(expr, -1) {
		for name := range strings.SplitSeq(strings.ReplaceAll(m[1], " ", ""), ",") {
			if !has[name] {
				t.Errorf("%s uses the label %q; its metrics have %v", title, name, slices.Sorted(maps.Keys(has)))
			}
		}
	}
}
