package rules

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// word is what is in backticks or in quotes.
var word = regexp.MustCompile("`[^`]*`|\"[^\"]*\"")

// A proof is what has to be in the tests of a package: a test, or in quotes a text that is the name of a case.
type proof struct{ room, what string }

// proofs reads what a row of docs/conformance.md says of our tests. It gives what is wrong with it, if anything.
func proofs(cell string) (all []proof, wrong string) {
	room := ""
	for _, w := range word.FindAllString(cell, -1) {
		switch name := strings.Trim(w, "`"); {
		case name == "":
			return nil, "it has nothing in backticks"
		case name[0] != '"' && !strings.HasPrefix(name, "Test"):
			room = name
		case room == "":
			return nil, "it names no package before " + w
		default:
			all = append(all, proof{room, name})
		}
	}
	_, reason, applies := strings.Cut(cell, "does not apply: ")
	switch {
	case applies && strings.TrimSpace(reason) == "":
		return nil, "it does not say why it does not apply"
	case len(all) == 0 && !applies:
		return nil, "it names no test, and no reason why there is none"
	}
	return all, ""
}

// row gives the cells of a table's row; nil: the line is none, or the table's head.
func row(line string) []string {
	inside, is := strings.CutPrefix(strings.TrimSpace(line), "|")
	inside, ends := strings.CutSuffix(inside, "|")
	if !is || !ends {
		return nil
	}
	cells := strings.Split(inside, "|")
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	if last := cells[len(cells)-1]; last == "devmgrd's test" || strings.Trim(last, "-") == "" && last != "" {
		return nil
	}
	return cells
}

// declared gives what the test files of a directory have, whatever their build tags: tests, and texts in quotes.
func declared(dir string) (map[string]bool, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	all := map[string]bool{}
	for _, file := range files {
		source, parsing := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err = cmp.Or(err, parsing); err != nil {
			return nil, err
		}
		ast.Inspect(source, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				all[n.Name.Name] = all[n.Name.Name] || n.Recv == nil
			case *ast.BasicLit:
				if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
					all[`"`+text+`"`] = true
				}
			}
			return true
		})
	}
	return all, nil
}

// Each test that docs/conformance.md names is there, and no row is without one or a reason.
func TestConformance(t *testing.T) {
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, "docs", "conformance.md"))
	if err != nil {
		t.Fatal(err)
	}
	rooms, rows := map[string]map[string]bool{}, 0
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		cells := row(line)
		if cells == nil {
			continue
		}
		rows++
		if len(cells) != 3 || slices.Contains(cells, "") {
			t.Errorf("line %d: %d cells, want three that say something", number, len(cells))
			continue
		}
		all, wrong := proofs(cells[2])
		if wrong != "" {
			t.Errorf("line %d: %.60s: %s", number, cells[0], wrong)
		}
		for _, p := range all {
			if rooms[p.room] == nil {
				if rooms[p.room], err = declared(filepath.Join(root, p.room)); err != nil {
					t.Fatal(err)
				}
			}
			if !rooms[p.room][p.what] {
				t.Errorf("line %d: %.60s: there is no %s in the tests of %s", number, cells[0], p.what, p.room)
			}
		}
	}
	if rows < 150 {
		t.Errorf("only %d rows were read", rows)
	}
}

// A rule that nothing can break says nothing.
func TestProofs(t *testing.T) {
	for cell, want := range map[string]string{
		"`internal/a` `TestX`": "",
		"`internal/a` `TestX` \"one\"; `internal/b` `TestY`, `TestZ`": "",
		"does not apply: it is the kubelet's side":                    "",
		"health surface: comes with the operator's commands":          "no test",
		"On a node, restart and chaos tests.":                         "no test",
		"":                                                            "no test",
		"later":                                                       "no test",
		"does not apply":                                              "no test",
		"does not apply: ":                                            "why",
		"`internal/a`":                                                "no test",
		"`TestX`":                                                     "no package",
		"\"one\" `internal/a`":                                        "no package",
		"`internal/a` `` `Test`":                                      "nothing",
	} {
		if _, wrong := proofs(cell); want == "" && wrong != "" || !strings.Contains(wrong, want) {
			t.Errorf("%q: %q, want %q", cell, wrong, want)
		}
	}
	got, _ := proofs("`internal/a` `TestX` \"one\"; `b` `TestY`")
	if want := []proof{{"internal/a", "TestX"}, {"internal/a", `"one"`}, {"b", "TestY"}}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for line, want := range map[string]int{"| a | b | c |": 3, "|a|b|": 2, "| a | b | |": 3, "|---|---|---|": 0, "| x | y | devmgrd's test |": 0, "a | b | c": 0} {
		if cells := row(line); len(cells) != want {
			t.Errorf("%q has the cells %q, want %d", line, cells, want)
		}
	}
	all, err := declared(".")
	if err != nil || !all["TestProofs"] || !all[`"no package"`] || all["TestX"] { // which is a text, and no test
		t.Errorf("the tests here are said to be %v, %v", all, err)
	}
}
