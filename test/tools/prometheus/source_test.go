package prometheus

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// root is the repository's.
var root = filepath.Join("..", "..", "..")

// A series is what can be asked for by one name.
type series struct {
	labels  []string // next to those of the target
	counter bool     // it only grows, so that a rate of it means something
}

// A source is what devmgrd's code says of its metrics.
type source struct {
	series map[string]series
	words  map[string]bool // all texts in the code: a label's value is one of them
}

// read reads the code of the daemon, and adds what Prometheus and every Go process tell.
func read(t *testing.T) source {
	t.Helper()
	s := source{map[string]series{"up": {}}, map[string]bool{}}
	for _, dir := range []string{"cmd", "internal"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			if err := s.file(file); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(s.series) < 20 {
		t.Fatalf("only %d series were found", len(s.series))
	}
	process := prometheus.NewRegistry()
	process.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	families, err := process.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		s.series[f.GetName()] = series{labels, f.GetType().String() == "COUNTER"}
	}
	return s
}

// file adds what one file has. A metric that cannot be read is an error, so that none is left out in silence.
func (s source) file(f *ast.File) error {
	var wrong []error
	lists := map[string][]string{} // variables that are lists of texts
	options, made := 0, 0
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			if word, ok := text(n); ok {
				s.words[word] = true
			}
		case *ast.AssignStmt:
			if name, is := n.Lhs[0].(*ast.Ident); is && len(n.Rhs) == 1 {
				if list, ok := texts(n.Rhs[0], lists); ok {
					lists[name.Name] = list
				}
			}
		case *ast.CompositeLit:
			if strings.HasSuffix(selected(n.Type), "Opts") {
				options++
			}
		case *ast.CallExpr:
			kind, is := strings.CutPrefix(selected(n.Fun), "New")
			if !is {
				break
			}
			if kind == "Desc" {
				name, named := text(n.Args[0])
				labels, listed := texts(n.Args[2], lists)
				if !named || !listed {
					wrong = append(wrong, fmt.Errorf("the name or the labels of a prometheus.Desc (%s) cannot be read", name))
				}
				s.series[name] = series{labels: labels}
				break
			}
			name, labels, named := opts(n.Args)
			if !named {
				break // of another kind, or counted below
			}
			made++
			kind, several := strings.CutSuffix(kind, "Vec")
			if several {
				more, listed := texts(n.Args[1], lists)
				if !listed {
					wrong = append(wrong, fmt.Errorf("the labels of %s cannot be read", name))
				}
				labels = append(labels, more...)
			}
			if kind == "Histogram" {
				s.series[name+"_bucket"] = series{append([]string{"le"}, labels...), true}
				s.series[name+"_sum"] = series{labels, true}
				s.series[name+"_count"] = series{labels, true}
				break
			}
			s.series[name] = series{labels, strings.HasPrefix(kind, "Counter")}
		}
		return true
	})
	if options != made {
		wrong = append(wrong, fmt.Errorf("it makes %d metrics, and the names of %d could be read", options, made))
	}
	return errors.Join(wrong...)
}

// selected returns the name that is taken from the package prometheus; "": it is another expression.
func selected(e ast.Expr) string {
	if s, is := e.(*ast.SelectorExpr); is {
		if from, is := s.X.(*ast.Ident); is && from.Name == "prometheus" {
			return s.Sel.Name
		}
	}
	return ""
}

// opts reads prometheus.XOpts{Name: "...", ConstLabels: prometheus.Labels{"...": ...}}.
func opts(args []ast.Expr) (name string, labels []string, ok bool) {
	if len(args) == 0 {
		return "", nil, false
	}
	literal, is := args[0].(*ast.CompositeLit)
	if !is {
		return "", nil, false
	}
	for _, e := range literal.Elts {
		pair, is := e.(*ast.KeyValueExpr)
		if !is {
			continue
		}
		switch key, _ := pair.Key.(*ast.Ident); {
		case key == nil:
		case key.Name == "Name":
			name, ok = text(pair.Value)
		case key.Name == "ConstLabels":
			if all, is := pair.Value.(*ast.CompositeLit); is {
				for _, e := range all.Elts {
					if label, ok := text(e.(*ast.KeyValueExpr).Key); ok {
						labels = append(labels, label)
					}
				}
			}
		}
	}
	return name, labels, ok
}

func text(e ast.Expr) (string, bool) {
	literal, is := e.(*ast.BasicLit)
	if !is || literal.Kind != token.STRING {
		return "", false
	}
	word, err := strconv.Unquote(literal.Value)
	return word, err == nil
}

// texts reads a list of texts, or a variable that is one.
func texts(e ast.Expr, lists map[string][]string) ([]string, bool) {
	switch e := e.(type) {
	case *ast.Ident:
		list, ok := lists[e.Name]
		return list, ok || e.Name == "nil"
	case *ast.CompositeLit:
		var all []string
		for _, one := range e.Elts {
			word, ok := text(one)
			if !ok {
				return nil, false
			}
			all = append(all, word)
		}
		return all, true
	}
	return nil, false
}
