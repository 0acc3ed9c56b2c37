package plugintest

import (
	"os"
	"testing"
)

// NeedRoot skips a test that only root can run.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: make test runs it")
	}
}
