package rules

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the parts of documents that are generated from source files")

// The lines around a part of a document that is generated from a source file.
const (
	generatedBegin = "<!-- from SOURCE, by: go test ./test/rules -update -->\n"
	generatedEnd   = "<!-- end -->\n"
)

// around splits the text of a document around the part that is generated from source.
func around(t *testing.T, document, text, source string) (before, part, after string) {
	t.Helper()
	begin := strings.Replace(generatedBegin, "SOURCE", source, 1)
	before, rest, begins := strings.Cut(text, begin)
	part, after, ends := strings.Cut(rest, generatedEnd)
	if !begins || !ends {
		t.Fatalf("%s lacks the line %q, or %q after it", document, begin, generatedEnd)
	}
	return before + begin, part, generatedEnd + after
}

// generated fails if the part of a document that is generated from source is not want; with -update it writes want.
func generated(t *testing.T, document, source, want string) {
	t.Helper()
	path := filepath.Join(root, filepath.FromSlash(document))
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, part, after := around(t, document, string(text), source)
	switch {
	case part == want:
	case *update:
		if err := os.WriteFile(path, []byte(before+want+after), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s differs from %s: run go test ./test/rules -update", document, source)
	}
}

// short fails if a cell of a generated table is not one line of at most 25 words.
func short(t *testing.T, row, cell string) {
	t.Helper()
	if words := len(strings.Fields(cell)); words > 25 || strings.ContainsAny(cell, "|\n") {
		t.Errorf("%s: the cell has %d words, want one line of 25 at most: %s", row, words, cell)
	}
}
