package rollout

import (
	"encoding/json"
	"testing"
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
		}
	}
	if queries < 20 {
		t.Errorf("%d queries", queries)
	}
}
