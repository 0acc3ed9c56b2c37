package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The documents show what the health check prints.
func TestReadiness_Documented(t *testing.T) {
	shows := func(name, output string) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
		if err != nil {
			t.Fatal(err)
		}
		block := "    $ curl -s 127.0.0.1:9464/readyz\n    " + strings.ReplaceAll(strings.TrimSpace(output), "\n", "\n    ") + "\n"
		if !strings.Contains(string(text), block) {
			t.Errorf("docs/%s does not show:\n%s", name, block)
		}
	}
	var parts []component
	for _, name := range []string{"registration", "store", "pods", "node", "nri", "podresources", "admin"} {
		parts = append(parts, component{name, func() error { return nil }})
	}
	_, out := readiness(parts)
	shows("migration.md", out)
	parts[4].check = func() error { return errors.New("not connected to container runtime at /var/run/nri/nri.sock") }
	_, out = readiness(parts)
	shows("operations.md", out)
}
