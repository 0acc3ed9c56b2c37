package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/store"
)

// A records counts how often the use of claims is recorded.
type records int

func (r *records) SaveClaims() error { *r++; return nil }

// That pods may still have claims is known from the state file and, if that has been lost, from the driver's directory.
func TestUsesClaims(t *testing.T) {
	for name, c := range map[string]struct {
		resources    []string
		recorded     bool
		directory    bool
		uses, writes bool
		lost         bool
	}{
		"never used":                        {},
		"offered for the first time":        {resources: []string{"a.example/gpu"}, uses: true, writes: true},
		"offered":                           {resources: []string{"a.example/gpu"}, recorded: true, directory: true, uses: true},
		"moved back":                        {recorded: true, uses: true},
		"moved back, and the state is lost": {directory: true, uses: true, writes: true, lost: true},
		"offered, and the state is lost":    {resources: []string{"a.example/gpu"}, directory: true, uses: true, writes: true, lost: true},
	} {
		dir := t.TempDir()
		if c.directory {
			if err := os.MkdirAll(filepath.Join(dir, "plugins", "devmgrd.io"), 0o750); err != nil {
				t.Fatal(err)
			}
		}
		set := config.Config{DRA: config.DRA{Resources: c.resources}}
		set.Plugins.KubeletDir = filepath.Join(dir, "device-plugins")
		var written records
		uses, lost := usesClaims(set, store.State{Claims: c.recorded}, &written, slog.New(slog.DiscardHandler))
		if uses != c.uses || lost != c.lost || written > 0 != c.writes {
			t.Errorf("%s: claims are used: %v, lost: %v, recorded: %d", name, uses, lost, written)
		}
	}
}
