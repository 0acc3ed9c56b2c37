package device

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The table of reasons has each constant once, in their order, with all texts.
func TestExplanations_EachReason_HasOne(t *testing.T) {
	declared := reasonsDeclared(t)
	if len(declared) < 19 {
		t.Errorf("only %d reasons were found in the source", len(declared))
	}
	var got []Reason
	for _, e := range Explanations() {
		got = append(got, e.Reason)
		if e.Meaning == "" || e.Remedy == "" || e.Section == "" || e.Ends("vendor.com/gpu") == "" {
			t.Errorf("%s lacks a text: %+v", e.Reason, e)
		}
		if Explain(e.Reason) != e {
			t.Errorf("Explain(%s) returns %+v", e.Reason, Explain(e.Reason))
		}
		if strings.Contains(e.Ends("vendor.com/gpu"), "%") {
			t.Errorf("%s ends: %q", e.Reason, e.Ends("vendor.com/gpu"))
		}
	}
	if !slices.Equal(got, declared) {
		t.Errorf("the table has\n%q, the constants are\n%q", got, declared)
	}
	if e := Explain(PluginStale); e.Ends("a or b") != "the device plugin of a or b returns; devmgrd dials it until then" {
		t.Errorf("PluginStale ends: %q", e.Ends("a or b"))
	}
	if e := Explain("NoReason"); e.Ends("a") != "" || e.Meaning != "" {
		t.Errorf("a word that is no reason is explained: %+v", e)
	}
}

// reasonsDeclared returns the constants of type Reason in this package's source.
func reasonsDeclared(t *testing.T) (all []Reason) {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, is := n.(*ast.ValueSpec)
			if !is {
				return true
			}
			if of, is := spec.Type.(*ast.Ident); !is || of.Name != "Reason" {
				return true
			}
			for i, value := range spec.Values {
				literal, is := value.(*ast.BasicLit)
				if !is {
					t.Fatalf("%s is not a literal", spec.Names[i].Name)
				}
				text, err := strconv.Unquote(literal.Value)
				if err != nil || text != spec.Names[i].Name {
					t.Errorf("the constant %s is %s", spec.Names[i].Name, literal.Value)
				}
				all = append(all, Reason(text))
			}
			return true
		})
	}
	return all
}
