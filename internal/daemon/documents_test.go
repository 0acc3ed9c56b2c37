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
	var all parts
	for _, name := range []string{"store", "registration", "pods", "node", "podresources", "admin", "nri"} {
		all = append(all, part{name: name, check: func() error { return nil }})
	}
	all[6].check = func() error { return errors.New("not connected to container runtime at /var/run/nri/nri.sock") }
	_, out := readiness(all)
	shows("watch.md", out)
}
