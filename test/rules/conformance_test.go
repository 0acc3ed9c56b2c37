package rules

import (
	"cmp"
	"fmt"
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

	"sigs.k8s.io/yaml"

	"github.com/devmgrd/devmgrd/test/upstream"
)

// word is what is in backticks or in quotes.
var word = regexp.MustCompile("`[^`]*`|\"[^\"]*\"")

// A proof is what has to be in the tests of a package: a test, or in quotes a text that is the name of a case.
type proof struct{ room, what string }

// proofs reads what a row of test/conformance.yaml or THREATS.md says of our tests. It returns what is wrong with it, if anything.
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

// threat matches a line of THREATS.md: the threat, the defence or limit, and its tests.
var threat = regexp.MustCompile(`^- \*\*(.+)\.\*\* (.+)\. (` + "`" + `(?:internal|test|packaging)/[^` + "`" + `]*` + "` (?:`Test|\").+" + `)$`)

// declared returns what the test files of a directory have, whatever their build tags: tests, and texts in quotes.
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

// Each test that test/conformance.yaml names is there, and no row is without one or a reason.
func TestConformance(t *testing.T) {
	const file = "test/conformance.yaml"
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
	if err != nil {
		t.Fatal(err)
	}
	var groups []struct {
		Of   string `json:"of"` // upstream's file or package
		Rows []struct {
			Case     string `json:"case"`
			Expected string `json:"expected"`
			Proof    string `json:"proof"`
		} `json:"rows"`
	}
	if err := yaml.UnmarshalStrict(text, &groups); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	rows, rooms := 0, rooms{root: root}
	for _, g := range groups {
		for _, r := range g.Rows {
			rows++
			where := fmt.Sprintf("%s: %s: %.60s", file, g.Of, r.Case)
			if g.Of == "" || r.Case == "" || r.Expected == "" {
				t.Errorf("%s: a part is empty", where)
			}
			rooms.prove(t, where, r.Proof)
		}
	}
	if rows < 150 {
		t.Errorf("only %d rows were read", rows)
	}
}

// Each test that THREATS.md names is there, and no threat is without one.
func TestThreats(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "THREATS.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, list, begins := strings.Cut(string(text), "\n## A pod, with or without devices\n")
	list, _, ends := strings.Cut(list, "\n## What is not defended yet\n")
	if !begins || !ends {
		t.Fatal("THREATS.md lacks the headings around the threats")
	}
	threats, rooms := 0, rooms{root: root}
	for line := range strings.Lines(list) {
		if !strings.HasPrefix(line, "- ") {
			continue
		}
		threats++
		parts := threat.FindStringSubmatch(strings.TrimSpace(line))
		if parts == nil {
			t.Errorf("not a threat, its defence and its tests: %.80s", line)
			continue
		}
		rooms.prove(t, parts[1], parts[3])
	}
	if threats < 100 {
		t.Errorf("only %d threats were read", threats)
	}
}

var root = filepath.Join("..", "..")

// rooms know what the test files of packages declare.
type rooms struct {
	root     string
	declared map[string]map[string]bool
}

// prove reports what is wrong with a cell that names tests, and tests that do not exist.
func (r *rooms) prove(t *testing.T, where, cell string) {
	t.Helper()
	all, wrong := proofs(cell)
	if wrong != "" {
		t.Errorf("%s: %s", where, wrong)
	}
	for _, p := range all {
		if r.declared[p.room] == nil {
			found, err := declared(filepath.Join(r.root, p.room))
			if err != nil {
				t.Fatal(err)
			}
			if r.declared == nil {
				r.declared = map[string]map[string]bool{}
			}
			r.declared[p.room] = found
		}
		if !r.declared[p.room][p.what] {
			t.Errorf("%s: there is no %s in the tests of %s", where, p.what, p.room)
		}
	}
}

const expectations = "test/upstream/expected.yaml"

// The documents say of upstream's specs what test/upstream expects of them.
func TestConformance_UpstreamsSpecs_AreWhatTheSuiteIsHeldTo(t *testing.T) {
	root := filepath.Join("..", "..")
	files, err := upstream.Expected()
	if err != nil {
		t.Fatal(err)
	}
	rooms := rooms{root: root}
	for _, f := range files {
		look := func(where, reason, proof string) {
			if words := len(strings.Fields(reason)); words > 25 {
				t.Errorf("%s: the reason has %d words, want 25 at most", where, words)
			}
			if proof == "" {
				return
			}
			rooms.prove(t, where, proof)
		}
		for _, s := range f.Specs {
			look(s.Spec, s.Reason, s.Proof)
		}
		for _, s := range f.Skipped {
			look(f.File, s.Reason, s.Proof)
		}
	}
	generated(t, "docs/conformance.md", expectations, upstream.Markdown(files)+"\n")
	page, err := os.ReadFile(filepath.Join(root, "docs", "conformance.md"))
	if err != nil {
		t.Fatal(err)
	}
	if summary := upstream.Summary(files); !strings.Contains(strings.Join(strings.Fields(string(page)), " "), summary) {
		t.Errorf("docs/conformance.md does not say: %s", summary)
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
	for line, want := range map[string]bool{
		"- **Odd names: a fault.** They are refused. `internal/a` `TestX`; `test/b` `TestY`": true,
		"- **Odd names.** They are refused (`a.b`). `internal/a` \"one\"":                    true,
		"- **Odd names.** They are refused.":                                                 false, "- **Odd names.** `internal/a` `TestX`": false, "- They are refused. `internal/a` `TestX`": false,
		"- **Odd names.** They are refused. `TestX`": false,
	} {
		if got := threat.MatchString(line); got != want {
			t.Errorf("%q is a threat: %v, want %v", line, got, want)
		}
	}
	all, err := declared(".")
	if err != nil || !all["TestProofs"] || !all[`"no package"`] || all["TestX"] { // which is a text, and no test
		t.Errorf("the tests here are said to be %v, %v", all, err)
	}
}
