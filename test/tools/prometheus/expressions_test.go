package prometheus

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

var (
	reader = parser.NewParser(parser.Options{})
	// target are the labels that Prometheus adds to each target.
	target = []string{"instance", "job"}
	// growth are the functions that are meant for what only grows.
	growth = []string{"rate", "increase", "irate"}
)

// check returns what is wrong with an expression: it cannot be read, or it names what devmgrd does not have.
func (s source) check(expr string) (wrong []string) {
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	tree, err := reader.ParseExpr(expr)
	if err != nil {
		say("%v", err)
		return wrong
	}
	known := slices.Clone(target) // labels of what the expression names
	parser.Inspect(tree, func(n parser.Node, _ []parser.Node) error {
		selector, is := n.(*parser.VectorSelector)
		if !is {
			return nil
		}
		one, there := s.series[selector.Name]
		if !there {
			say("devmgrd has no series %q", selector.Name)
		}
		known = append(known, one.labels...)
		for _, m := range selector.LabelMatchers {
			switch {
			case m.Name == model.MetricNameLabel || slices.Contains(target, m.Name):
			case !slices.Contains(one.labels, m.Name):
				say("%s has no label %s", selector.Name, m.Name)
			default:
				for value := range strings.SplitSeq(m.Value, "|") {
					if !s.words[value] && !strings.HasPrefix(value, "$") {
						say("%s: no label %s has the value %q: it is nowhere in the code", selector.Name, m.Name, value)
					}
				}
			}
		}
		return nil
	})
	parser.Inspect(tree, func(n parser.Node, path []parser.Node) error {
		var named []string
		switch n := n.(type) {
		case *parser.AggregateExpr:
			named = n.Grouping
		case *parser.BinaryExpr:
			if n.VectorMatching != nil {
				named = append(slices.Clone(n.VectorMatching.MatchingLabels), n.VectorMatching.Include...)
			}
		case *parser.Call:
			for _, selector := range below(n) {
				switch grows := s.series[selector.Name].counter; {
				case slices.Contains(growth, n.Func.Name) && !grows:
					say("%s of %s, which is not a counter", n.Func.Name, selector.Name)
				case n.Func.Name == "histogram_quantile" && !strings.HasSuffix(selector.Name, "_bucket"):
					say("%s of %s, which are no buckets", n.Func.Name, selector.Name)
				}
			}
		}
		for _, label := range named {
			if !slices.Contains(known, label) {
				say("nothing in it has a label %s", label)
			}
		}
		return nil
	})
	return wrong
}

// below returns the selectors in an expression.
func below(e parser.Expr) (all []*parser.VectorSelector) {
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		if selector, is := n.(*parser.VectorSelector); is {
			all = append(all, selector)
		}
		return nil
	})
	return all
}

// Every expression of an alert can be read, and what it names is in the code.
func TestAlerts(t *testing.T) {
	s := read(t)
	groups, failed := rulefmt.ParseFile(filepath.Join(root, "packaging", "prometheus", "alerts.yaml"), false, model.UTF8Validation, reader, slog.New(slog.DiscardHandler))
	for _, err := range failed {
		t.Error(err)
	}
	alerts := 0
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			alerts++
			for _, wrong := range s.check(r.Expr) {
				t.Errorf("%s: %s", r.Alert, wrong)
			}
		}
	}
	if alerts < 10 {
		t.Errorf("only %d alerts were read", alerts)
	}
}

type panel struct {
	Title   string
	Panels  []panel
	Targets []struct{ Expr, LegendFormat string }
}

// variable is what Grafana puts its own values for; legend is a label in a legend.
var (
	variable = regexp.MustCompile(`\[\$__rate_interval\]|\[\$__range\]`)
	legend   = regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`)
	values   = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)
)

// Every expression of the dashboards can be read, and what it names is in the code.
func TestDashboard(t *testing.T) {
	for _, file := range []string{"devmgrd.json", "fleet.json"} {
		t.Run(file, func(t *testing.T) { dashboard(t, file) })
	}
}

func dashboard(t *testing.T, file string) {
	s := read(t)
	content, err := os.ReadFile(filepath.Join(root, "packaging", "grafana", file))
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels     []panel
		Templating struct {
			List []struct{ Name, Type, Definition string }
		}
	}
	if err := json.Unmarshal(content, &board); err != nil {
		t.Fatal(err)
	}
	for _, v := range board.Templating.List {
		if v.Type != "query" {
			continue
		}
		parts := values.FindStringSubmatch(v.Definition)
		if parts == nil {
			t.Errorf("variable %s: %q is not label_values(...)", v.Name, v.Definition)
			continue
		}
		for _, wrong := range s.check(fmt.Sprintf("sum by (%s) (%s)", parts[2], parts[1])) {
			t.Errorf("variable %s: %s", v.Name, wrong)
		}
	}
	expressions := 0
	var look func([]panel)
	look = func(panels []panel) {
		for _, p := range panels {
			look(p.Panels)
			for _, target := range p.Targets {
				expressions++
				expr := variable.ReplaceAllString(target.Expr, "[5m]")
				for _, label := range legend.FindAllStringSubmatch(target.LegendFormat, -1) {
					// What is grouped by that label has to have it.
					expr = fmt.Sprintf("sum by (%s) (%s)", label[1], expr)
				}
				for _, wrong := range s.check(expr) {
					t.Errorf("%s: %s: %s", p.Title, target.Expr, wrong)
				}
			}
		}
	}
	look(board.Panels)
	if expressions < 15 {
		t.Errorf("only %d expressions were read", expressions)
	}
}

// What is wrong with an expression is found: a check that nothing can fail says nothing.
func TestCheck(t *testing.T) {
	s := read(t)
	for expr, want := range map[string]string{
		`devmgrd_devices{state="free"} > 0`:                                               "",
		`sum by (resource_name) (devmgrd_devices{resource_name=~"$resource_name"})`:       "",
		`histogram_quantile(0.9, rate(devmgrd_store_commit_duration_seconds_bucket[5m]))`: "",
		`process_start_time_seconds{job="devmgrd"}`:                                       "",
		`devmgrd_devices{state="free"`:                                                    "parse error",
		`devmgrd_device`:                                                                  `no series "devmgrd_device"`,
		`devmgrd_devices{reason="free"}`:                                                  "no label reason",
		`devmgrd_devices{state="fre"}`:                                                    `the value "fre"`,
		`devmgrd_pods_waiting{reason!~"PluginMissing|PluginMising"}`:                      `the value "PluginMising"`,
		`sum by (reason) (devmgrd_devices)`:                                               "a label reason",
		`devmgrd_devices - on (reason) devmgrd_node_capacity`:                             "a label reason",
		`devmgrd_store_commit_duration_seconds`:                                           "no series",
		`rate(devmgrd_devices[5m])`:                                                       "not a counter",
		`histogram_quantile(0.9, devmgrd_store_commit_duration_seconds_sum)`:              "no buckets",
	} {
		switch got := strings.Join(s.check(expr), "; "); {
		case want == "" && got != "":
			t.Errorf("%s: %s", expr, got)
		case !strings.Contains(got, want):
			t.Errorf("%s: found %q, want %q", expr, got, want)
		}
	}
}
