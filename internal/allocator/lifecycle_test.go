package allocator

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// The table in doc.go is the one that the code follows.
func TestLifeCycle_Documentation_IsTheCode(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(doc), "// The life cycle of a pod:")
	table, _, _ = strings.Cut(table, "\n//\n// ")
	var documented []string
	for line := range strings.Lines(table) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "//")
		if row, next, is := strings.Cut(line, "→"); is {
			documented = append(documented, strings.Fields(row)[0]+" →"+next)
		}
	}
	var is []string
	for p, row := range phases {
		next := []string{}
		for _, n := range row.next {
			next = append(next, n.String())
		}
		is = append(is, phase(p).String()+" → "+strings.Join(next, ", "))
	}
	if !slices.Equal(documented, is) {
		t.Errorf("doc.go says\n%s\nand the code has\n%s", strings.Join(documented, "\n"), strings.Join(is, "\n"))
	}
}
