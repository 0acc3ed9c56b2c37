package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each end-to-end test runs in one lane, so that make e2e runs all of them, and none twice.
func TestLanes(t *testing.T) {
	dir := filepath.Join("..", "e2e")
	text, err := os.ReadFile(filepath.Join(dir, "lanes.txt"))
	if err != nil {
		t.Fatal(err)
	}
	lanes := map[string]string{}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] == "#" {
			continue
		}
		if len(fields) != 3 {
			t.Fatalf("%q is not a lane, seconds and a test", line)
		}
		if other := lanes[fields[2]]; other != "" {
			t.Errorf("%s is in the lanes %s and %s", fields[2], other, fields[0])
		}
		lanes[fields[2]] = fields[0]
	}
	makefile, err := os.ReadFile(filepath.Join("..", "..", "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		source, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range source.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Test") || f.Name.Name == "TestMain" {
				continue
			}
			switch lane := lanes[f.Name.Name]; {
			case lane == "":
				t.Errorf("test/e2e/lanes.txt lacks %s", f.Name.Name)
			case !strings.Contains(string(makefile), " e2e-"+lane+" "):
				t.Errorf("%s is in lane %s, which the Makefile does not run", f.Name.Name, lane)
			}
			delete(lanes, f.Name.Name)
		}
	}
	for name := range lanes {
		t.Errorf("test/e2e/lanes.txt has %s, which does not exist", name)
	}
}
