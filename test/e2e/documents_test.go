//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// section returns a section of a document in docs: the text between its heading and the next one.
func section(t *testing.T, document, heading string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", document))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("docs/%s has no section %q", document, heading)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	return rest
}

// blocks returns the blocks of code in a text: lines that are indented further than any item of a list, without that indentation.
func blocks(text string) (all []string) {
	const code = "    "
	var block []string
	end := func() {
		if len(block) > 0 {
			all = append(all, strings.TrimRight(unindented(block), "\n")+"\n")
		}
		block = nil
	}
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, code) || strings.TrimSpace(line) == "" && len(block) > 0:
			block = append(block, line)
		default:
			end()
		}
	}
	end()
	return all
}

// unindented returns the lines without the indentation of the first.
func unindented(lines []string) string {
	var b strings.Builder
	indent := lines[0][:len(lines[0])-len(strings.TrimLeft(lines[0], " "))]
	for _, l := range lines {
		b.WriteString(strings.TrimPrefix(l, indent))
	}
	return b.String()
}
