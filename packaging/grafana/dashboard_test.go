package grafana

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"testing"
)

type place struct{ H, W, X, Y int }

type panel struct {
	ID          int
	Type        string
	Title       string
	Description string
	Repeat      string
	Place       *place `json:"gridPos"`
	Datasource  struct{ UID string }
	Targets     []struct {
		RefID      string `json:"refId"`
		Expr       string
		Datasource struct{ UID string }
	}
	FieldConfig struct {
		Defaults struct {
			Unit       string
			Thresholds struct{ Steps []json.RawMessage }
		}
	}
}

type board struct {
	UID, Title    string
	SchemaVersion int
	Panels        []panel
	Templating    struct {
		List []struct {
			Name, Type string
			Datasource struct{ UID string }
		}
	}
}

// columns is how wide Grafana's grid is.
const columns = 24

// each runs a test on each dashboard.
func each(t *testing.T, test func(t *testing.T, b board, text []byte)) {
	for _, file := range []string{"devmgrd.json", "fleet.json"} {
		t.Run(file, func(t *testing.T) {
			b, text := load(t, file)
			test(t, b, text)
		})
	}
}

func load(t *testing.T, file string) (b board, text []byte) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &b); err != nil {
		t.Fatal(err)
	}
	if b.UID == "" || b.Title == "" || b.SchemaVersion < 36 || len(b.Panels) < 15 {
		t.Fatalf("this is no dashboard: uid %q, title %q, schema %d, %d panels", b.UID, b.Title, b.SchemaVersion, len(b.Panels))
	}
	return b, text
}

// Each panel says what it shows and in which unit, reads from the chosen Prometheus, and has an ID of its own.
func TestPanels(t *testing.T) { each(t, panels) }

func panels(t *testing.T, b board, _ []byte) {
	ids := map[int]string{}
	for _, p := range b.Panels {
		if other, twice := ids[p.ID]; twice || p.ID <= 0 {
			t.Errorf("%q has the ID %d, as %q has", p.Title, p.ID, other)
		}
		ids[p.ID] = p.Title
		if p.Type == "row" {
			continue
		}
		d := p.FieldConfig.Defaults
		if p.Title == "" || p.Description == "" || d.Unit == "" || len(d.Thresholds.Steps) == 0 {
			t.Errorf("panel %d: title %q, description %q, unit %q, %d thresholds: none of them may be missing", p.ID, p.Title, p.Description, d.Unit, len(d.Thresholds.Steps))
		}
		if len(p.Targets) == 0 || p.Datasource.UID != "${datasource}" {
			t.Errorf("%q: %d expressions, data source %q, want some and ${datasource}", p.Title, len(p.Targets), p.Datasource.UID)
		}
		names := map[string]bool{}
		for _, q := range p.Targets {
			if names[q.RefID] || q.RefID == "" || q.Expr == "" || q.Datasource.UID != "${datasource}" {
				t.Errorf("%q: expression %q (%q), data source %q", p.Title, q.RefID, q.Expr, q.Datasource.UID)
			}
			names[q.RefID] = true
		}
	}
}

// No panel lies on another one or beyond the edge.
func TestNothingOverlaps(t *testing.T) { each(t, nothingOverlaps) }

func nothingOverlaps(t *testing.T, b board, _ []byte) {
	taken := map[[2]int]string{}
	for _, p := range b.Panels {
		at := p.Place
		if at == nil || at.W <= 0 || at.H <= 0 || at.X < 0 || at.Y < 0 || at.X+at.W > columns {
			t.Errorf("%q: its place is %+v", p.Title, at)
			continue
		}
		on := map[string]bool{}
		for x := at.X; x < at.X+at.W; x++ {
			for y := at.Y; y < at.Y+at.H; y++ {
				if other, is := taken[[2]int{x, y}]; is {
					on[other] = true
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		for other := range on {
			t.Errorf("%q lies on %q", p.Title, other)
		}
	}
}

// What stands in the expressions for Grafana to fill in is one of the dashboard's variables, or Grafana's own.
func TestVariables(t *testing.T) { each(t, variables) }

func variables(t *testing.T, b board, text []byte) {
	known := []string{"__rate_interval", "__range", "__all"}
	for _, v := range b.Templating.List {
		known = append(known, v.Name)
		if v.Type == "query" && v.Datasource.UID != "${datasource}" {
			t.Errorf("$%s is read from %q, want ${datasource}", v.Name, v.Datasource.UID)
		}
	}
	for _, want := range []string{"datasource", "resource_name"} {
		if !slices.Contains(known, want) {
			t.Errorf("there is no variable %s", want)
		}
	}
	for _, use := range regexp.MustCompile(`\$\{?(\w+)`).FindAllSubmatch(text, -1) {
		if !slices.Contains(known, string(use[1])) {
			t.Errorf("$%s is no variable", use[1])
		}
	}
	for _, p := range b.Panels {
		if p.Repeat != "" && !slices.Contains(known, p.Repeat) {
			t.Errorf("%q is repeated for %s, which is no variable", p.Title, p.Repeat)
		}
	}
}
