package nri

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// The source of a mount is made for containers that do not run as root, with the umask of the systemd unit.
func TestSourceAt_Missing_OthersMayPass(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "above", "source")
	before := syscall.Umask(0o077)
	_, err := sourceAt(source)
	syscall.Umask(before)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{source, filepath.Dir(source)} {
		if info, err := os.Stat(path); err != nil || info.Mode() != os.ModeDir|0o755 {
			t.Errorf("%s is %v, %v, want mode 0755", path, info.Mode(), err)
		}
	}
}
