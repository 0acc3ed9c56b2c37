package rules

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// docs/watch.md has the table of metrics: their names, types, labels and help, as the source registers them.
func TestMetrics_Documents_HaveTheTable(t *testing.T) {
	var all []metric
	err := filepath.WalkDir(filepath.Join(root, "internal"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		some, err := metricsOf(file)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, some...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Fatalf("only %d metrics were found", len(all))
	}
	slices.SortFunc(all, func(a, b metric) int { return cmp.Compare(a.name, b.name) })
	var table strings.Builder
	table.WriteString("\n")
	for _, m := range all {
		if !strings.HasSuffix(m.help, ".") {
			t.Errorf("the help of %s is no sentence: %q", m.name, m.help)
		}
		short(t, m.name, m.help)
		labels := ""
		if len(m.labels) > 0 {
			labels = "{" + strings.Join(m.labels, ", ") + "}"
		}
		want := "gauge"
		switch {
		case strings.HasSuffix(m.name, "_total"):
			want = "counter"
		case strings.HasSuffix(m.name, "_seconds"):
			want = "histogram"
		}
		if m.kind != want {
			t.Errorf("%s is a %s, and docs/watch.md says that a name like this is a %s's", m.name, m.kind, want)
		}
		fmt.Fprintf(&table, "- `%s%s`: %s\n", m.name, labels, strings.TrimSuffix(m.help, "."))
	}
	generated(t, "docs/watch.md", "the metrics in internal", table.String()+"\n")
}

// A metric is what a Prometheus client reads of one.
type metric struct {
	name, kind, help string
	labels           []string
}

// metricsOf returns the metrics that a file makes. A metric that cannot be read is an error, so that none is left out.
func metricsOf(file *ast.File) (all []metric, err error) {
	unreadable := func(of string) {
		if err == nil {
			err = fmt.Errorf("prometheus.%s: a name, help or label is no literal", of)
		}
	}
	lists := map[string][]string{} // of variables
	values := map[string]bool{}    // the types of constant metrics
	constants := 0                 // of the metrics found, those of descriptors
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if name, is := n.Lhs[0].(*ast.Ident); is && len(n.Rhs) == 1 {
				if list, ok := literals(n.Rhs[0], nil); ok {
					lists[name.Name] = list
				}
			}
		case *ast.SelectorExpr:
			if kind, is := strings.CutSuffix(fromPrometheus(n), "Value"); is {
				values[strings.ToLower(kind)] = true
			}
		case *ast.CallExpr:
			maker, is := strings.CutPrefix(fromPrometheus(n.Fun), "New")
			if !is || maker == "Registry" {
				return true
			}
			if strings.HasSuffix(maker, "Func") { // Gather reads no metric meanwhile, and a change of a metric may wait for Gather
				err = fmt.Errorf("prometheus.New%s: its function must not wait for anything; use prometheus.CollectorFunc", maker)
			}
			m := metric{kind: strings.ToLower(strings.TrimSuffix(maker, "Vec"))}
			readable := len(n.Args) > 0
			switch {
			case maker == "Desc":
				constants++
				var named, explained bool
				m.kind = "constant"
				m.name, named = literal(n.Args[0])
				m.help, explained = literal(n.Args[1])
				m.labels, readable = literals(n.Args[2], lists)
				readable = readable && named && explained
			case readable:
				m.readOptions(n.Args[0])
				if strings.HasSuffix(maker, "Vec") {
					m.labels, readable = literals(n.Args[1], lists)
				}
			}
			if !readable || m.name == "" || m.help == "" {
				unreadable(maker)
			}
			all = append(all, m)
		}
		return true
	})
	if constants > 0 && len(values) != 1 && err == nil {
		err = fmt.Errorf("its constant metrics have %d types, want one", len(values))
	}
	for i := range all {
		for kind := range values {
			if all[i].kind == "constant" {
				all[i].kind = kind
			}
		}
	}
	return all, err
}

// readOptions reads prometheus.XOpts{Name: "...", Help: "...", ConstLabels: prometheus.Labels{"...": ...}}.
func (m *metric) readOptions(e ast.Expr) {
	options, is := e.(*ast.CompositeLit)
	if !is {
		return
	}
	for _, e := range options.Elts {
		pair := e.(*ast.KeyValueExpr)
		switch pair.Key.(*ast.Ident).Name {
		case "Name":
			m.name, _ = literal(pair.Value)
		case "Help":
			m.help, _ = literal(pair.Value)
		case "ConstLabels":
			for _, e := range pair.Value.(*ast.CompositeLit).Elts {
				label, _ := literal(e.(*ast.KeyValueExpr).Key)
				m.labels = append(m.labels, label)
			}
		}
	}
}

// fromPrometheus returns the name that an expression selects from the package prometheus; "": it is another expression.
func fromPrometheus(e ast.Expr) string {
	if s, is := e.(*ast.SelectorExpr); is {
		if from, is := s.X.(*ast.Ident); is && from.Name == "prometheus" {
			return s.Sel.Name
		}
	}
	return ""
}

func literal(e ast.Expr) (string, bool) {
	l, is := e.(*ast.BasicLit)
	if !is || l.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(l.Value)
	return text, err == nil
}

// literals reads a list of strings, or a variable that is one.
func literals(e ast.Expr, lists map[string][]string) (all []string, ok bool) {
	switch e := e.(type) {
	case *ast.Ident:
		all, ok = lists[e.Name]
		return all, ok || e.Name == "nil"
	case *ast.CompositeLit:
		for _, one := range e.Elts {
			text, is := literal(one)
			if !is {
				return nil, false
			}
			all = append(all, text)
		}
		return all, len(all) > 0
	}
	return nil, false
}

// A rule that nothing can break says nothing.
func TestMetricsOf(t *testing.T) {
	for source, want := range map[string]string{
		`var a = prometheus.NewGauge(prometheus.GaugeOpts{Name: "a", Help: "A."})`:                                                 "[{a gauge A. []}]",
		`var b = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "b", Help: "B."}, []string{"x", "y"})`:                      "[{b counter B. [x y]}]",
		`func f() { l := []string{"x"}; g(prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "c", Help: "C."}, l)) }`:       "[{c histogram C. [x]}]",
		`var d, e = prometheus.NewDesc("d", "D.", []string{"x"}, nil), prometheus.MustNewConstMetric(d, prometheus.GaugeValue, 1)`: "[{d gauge D. [x]}]",
		`var f = prometheus.NewGauge(prometheus.GaugeOpts{Name: "f", Help: "F.", ConstLabels: prometheus.Labels{"v": version()}})`: "[{f gauge F. [v]}]",
		`var g = prometheus.NewGauge(options)`:                                                                           "error",
		`var h = prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: "H."})`:                                      "error",
		`var i = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "i", Help: "I."}, labels())`:                      "error",
		`var n, o = prometheus.NewDesc("n", "N.", nil, nil), prometheus.MustNewConstMetric(n, prometheus.GaugeValue, 1)`: "[{n gauge N. []}]",
		`var j = prometheus.NewDesc("j", "J.", []string{"x"}, nil)`:                                                      "error",
		`var k = other.NewGauge(1)`: "[]",
		`var p = prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "p", Help: "P."}, f)`: "error",
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\n"+source, 0)
		if err != nil {
			t.Fatal(err)
		}
		all, err := metricsOf(file)
		got := fmt.Sprint(all)
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", source, got, want)
		}
	}
}
