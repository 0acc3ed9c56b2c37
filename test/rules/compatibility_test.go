package rules

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/test/matrix"
)

// The table of compatibility is made of the results of make matrix, and the tests in them exist.
func TestCompatibility(t *testing.T) {
	cells, err := matrix.Results()
	if err != nil {
		t.Fatal(err)
	}
	generated(t, "docs/compatibility.md", "test/matrix/results.yaml", matrix.Markdown(cells)+"\n")
	generated(t, "README.md", "test/matrix/results.yaml", matrix.Summary(cells))

	files, err := filepath.Glob(filepath.Join(root, "test/e2e/*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var source strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		source.Write(text)
	}
	for _, test := range matrix.Tests {
		if !strings.Contains(source.String(), "\nfunc "+test.Name+"(t *testing.T) {") {
			t.Errorf("test/e2e has no %s", test.Name)
		}
	}
}
