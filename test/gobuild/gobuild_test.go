package gobuild

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// write makes a module with files.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

var module = map[string]string{
	"go.mod":         "module example.com/m\n\ngo 1.26\n",
	"main.go":        "package main\n\nimport \"example.com/m/part\"\n\nfunc main() { part.Say() }\n",
	"part/part.go":   "package part\n\nfunc Say() { println(1) }\n",
	"part/p_test.go": "package part\n\nimport \"testing\"\n\nfunc TestSay(t *testing.T) { Say() }\n",
}

func TestRun_Program_IsBuilt(t *testing.T) {
	dir := write(t, module)
	var log bytes.Buffer
	if err := Run(t.Context(), &log, Build{Title: "m", Dir: dir, Output: []string{"-o", "program"}, Packages: []string{"."}}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "program")); err != nil {
		t.Error(err)
	}
}

func TestRun_Tests_AreBuilt(t *testing.T) {
	dir := write(t, module)
	var log bytes.Buffer
	b := Build{Title: "tests", Kind: Tests, Dir: dir, Output: []string{"-o", "part.test"}, Packages: []string{"./part"}}
	if err := Run(t.Context(), &log, b); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "part.test")); err != nil {
		t.Error(err)
	}
}

// The error has the compiler's own words, and not the names of packages.
func TestRun_BrokenSource_SaysWhere(t *testing.T) {
	files := map[string]string{"go.mod": module["go.mod"], "main.go": module["main.go"], "part/part.go": "package part\n\nfunc Say() { x }\n"}
	dir := write(t, files)
	err := Run(t.Context(), &bytes.Buffer{}, Build{Title: "m", Dir: dir, Output: []string{"-o", "program"}, Packages: []string{"."}})
	if err == nil || !strings.Contains(err.Error(), "part.go:3") || strings.Contains(err.Error(), "\nruntime\n") {
		t.Errorf("the error is %v", err)
	}
}

// The position in the list of packages is the progress: packages that are cached count, and the estimate is made of what was compiled.
func TestLine(t *testing.T) {
	p := &progress{title: "m"}
	at := func(d time.Duration) string { return p.line(p.first.Add(d)) }
	if got := at(0); got != "  m: reading its sources" {
		t.Error(got)
	}
	p.downloaded()
	if got := at(0); got != "  m: 1 modules downloaded" {
		t.Error(got)
	}
	p.expect([]source{{path: "a", size: 10}, {path: "b", size: 10}, {path: "c", size: 10}, {path: "d", size: 30}})
	if got := at(time.Minute); got != "" {
		t.Error(got)
	}
	if p.begins("who\n") || !p.begins("b\n") {
		t.Error("a line is not recognized")
	}
	if got := at(time.Second); got != "  m: 2 of 4 packages" {
		t.Error(got)
	}
	if got := at(2 * time.Minute); got != "  m: 2 of 4 packages, about 10 min left" { // 10 bytes took 2 min, and 50 are left
		t.Error(got)
	}
	p.begins("d\n")
	if got := at(20 * time.Second); got != "  m: 4 of 4 packages, less than a minute left" {
		t.Error(got)
	}
}
