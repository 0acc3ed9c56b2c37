package plugintest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// Executable returns a copy of the test's binary that every user can run. Users other than root cannot read the directory in which
// go test builds it.
func Executable(t testing.TB) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "devmgrd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "test")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(path, binary, 0o755)); err != nil {
		t.Fatal(err)
	}
	return path
}
