package rules

import (
	"path/filepath"
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

	for _, test := range matrix.Tests {
		names, err := declared(filepath.Join(root, "test", test.Package))
		if err != nil {
			t.Fatal(err)
		}
		if !names[test.Name] {
			t.Errorf("test/%s has no %s", test.Package, test.Name)
		}
	}
}
