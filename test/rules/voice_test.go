package rules

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// riddles are words that make a reader stop: an actor without a name, a word of our own for one that Kubernetes has, or a turn of
// phrase that English does not use so.
var riddles = regexp.MustCompile(`(?i)\b(` + strings.Join([]string{
	"nobody", "somebody", "anybody", "everybody", "whoever", "anew", "no more", "any more", "for good", "in vain", "by itself",
	"by themselves", "beside", "at last", "mend", "mends", "mended", "minded", "sick", "gets well", "is told", "are told", "is to be",
	"are to be", "what becomes of", "what has become of", "the numbers", "the books", "tells whether", "tell whether", "gives",
}, "|") + `)\b`)

// ratchet says how many riddles each file may have. A number may fall, and never rise.
const ratchet = "testdata/voice.txt"

var lower = flag.Bool("lower", false, "write the number of riddles in each file to "+ratchet)

// The language of the project is that of its field. What is left of an older one becomes less.
func TestVoice(t *testing.T) {
	found := map[string]int{}
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		switch base := entry.Name(); {
		case entry.IsDir() && (strings.HasPrefix(base, ".") && name != "." || base == "testdata" || base == "bin" || base == "dist"):
			return fs.SkipDir
		case entry.IsDir() || name == "CHANGELOG.md" || strings.HasSuffix(base, ".pb.go") || name == "test/rules/voice_test.go":
			return nil
		}
		text, err := prose(path)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if n := len(riddles.FindAllString(text, -1)); n > 0 {
			found[name] = n
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if *lower {
		var b strings.Builder
		for _, name := range slices.Sorted(maps.Keys(found)) {
			fmt.Fprintf(&b, "%s %d\n", name, found[name])
		}
		if err := os.WriteFile(ratchet, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	text, err := os.ReadFile(ratchet)
	if err != nil {
		t.Fatal(err)
	}
	allowed := map[string]int{}
	for line := range strings.Lines(string(text)) {
		var name string
		var n int
		if _, err := fmt.Sscanf(line, "%s %d", &name, &n); err != nil {
			t.Fatalf("%s: %q: %v", ratchet, line, err)
		}
		allowed[name] = n
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if found[name] > allowed[name] {
			t.Errorf("%s has %d words that make a reader stop, and may have %d; find them with: grep -Eni '%s' %s", name, found[name], allowed[name],
				strings.TrimPrefix(riddles.String(), "(?i)"), name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(allowed)) {
		if found[name] < allowed[name] {
			t.Errorf("%s has fewer of them than before: go test ./test/rules -run Voice -lower", name)
		}
	}
}

// prose returns the sentences of a file: of Go its comments and strings, of other languages the comments, of documents all.
func prose(path string) (string, error) {
	switch filepath.Ext(path) {
	case ".go":
	case ".md", ".yaml", ".proto", ".conf", ".service", ".socket":
		text, err := os.ReadFile(path)
		return string(text), err
	default:
		return "", nil
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, nil, parser.ParseComments)
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	for _, group := range file.Comments {
		b.WriteString(strings.ReplaceAll(group.Text(), "\n", " ") + "\n")
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if text, is := n.(*ast.BasicLit); is && text.Kind == token.STRING {
			b.WriteString(text.Value + "\n")
		}
		return true
	})
	return b.String(), nil
}

// A test that finds nothing says nothing.
func TestProse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.go")
	if err := os.WriteFile(path, []byte("// Package x gives\n// nobody anything.\npackage x\n\nvar nobody = \"is told\" // no more\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	text, err := prose(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := riddles.FindAllString(text, -1); !slices.Equal(got, []string{"gives", "nobody", "no more", "is told"}) {
		t.Errorf("found %q in %q", got, text)
	}
}
