package rules

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	mutex  = regexp.MustCompile(`sync\.(RW)?Mutex`)
	placed = regexp.MustCompile(`(\w+)\s+locks\.Mutex\[locks\.(\w+)\]`)
	starts = regexp.MustCompile(`(?m)^\s*go (func|\w+[.(])|\.Go\(`)
)

// Each lock of internal has a place in the order of internal/locks; docs/internals.md has each lock under which others are taken, and each package that
// starts goroutines.
func TestLocksAndGoroutines_AreInInternals(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "internals.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n## Goroutines\n")
	goroutines, lockTable, found := strings.Cut(rest, "\n## Locks\n")
	if !found {
		t.Fatal("docs/internals.md has no sections Goroutines and Locks")
	}
	locks, starting := 0, map[string]bool{}
	internal := filepath.Join(root, "internal")
	err = filepath.WalkDir(internal, func(path string, d fs.DirEntry, err error) error {
		dir := filepath.Dir(path)
		switch {
		case err != nil:
			return err
		case strings.HasSuffix(filepath.Base(dir), "test"), !strings.HasSuffix(path, ".go"), strings.HasSuffix(path, "_test.go"), dir == filepath.Join(internal, "locks"):
			return nil // helpers of tests have no place
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if mutex.Match(source) {
			t.Errorf("%s has a sync.Mutex; use locks.Mutex, with a place", path)
		}
		for _, m := range placed.FindAllSubmatch(source, -1) {
			locks++
			if string(m[2]) != "Leaf" && !strings.Contains(lockTable, string(m[1])+"`") {
				t.Errorf("%s has the lock %s, which docs/internals.md lacks", path, m[1])
			}
		}
		if starts.Match(source) {
			starting[filepath.Base(dir)] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range starting {
		if !regexp.MustCompile(`\b` + name + `[./]`).MatchString(goroutines) {
			t.Errorf("package %s starts goroutines, and docs/internals.md does not say which", name)
		}
	}
	if locks < 40 || len(starting) < 10 {
		t.Errorf("only %d locks and %d packages that start goroutines are found", locks, len(starting))
	}
}
