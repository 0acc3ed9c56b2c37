package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/test/apt"
)

// The formatter that man calls reads the pages without a remark.
func TestPages_AreSoundRoff(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man")
	if err := run([]string{dir}, "1767225600"); err != nil {
		t.Fatal(err)
	}
	for name, wants := range map[string][]string{
		"devmgrd.8":              {".SH SEE ALSO", `devmgrd-status(8)`, `"Jan 2026"`, ".SH ENVIRONMENT", "EXIT STATUS"},
		"devmgrd-status.8":       {`devmgrd status`, `--socket`},
		"devmgrd-store-backup.8": {".SH EXAMPLE"},
		// Each group of keys, a key with its text, and its default.
		"devmgrd.yaml.5": {".SH THE NODE", ".SH PLUGINS", `plugins.gracePeriod`, "How long a plugin may be disconnected", "Default: 1m\n", ".SH LOG", `log.format`},
	} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range wants {
			if !strings.Contains(strings.ReplaceAll(string(text), `\-`, "-"), want) {
				t.Errorf("%s lacks %q:\n%s", name, want, text)
			}
		}
	}
	groff := apt.Program(t, "groff", "groff-base", "the manual pages are formatted with groff")
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		out, err := exec.Command(groff, "-t", "-man", "-ww", "-z", "-Tutf8", filepath.Join(dir, e.Name())).CombinedOutput()
		if err != nil || len(out) > 0 {
			t.Errorf("groff about %s: %v\n%s", e.Name(), err, out)
		}
	}
}

func TestRun_WrongDate_Fails(t *testing.T) {
	if err := run([]string{t.TempDir()}, "today"); err == nil || !strings.Contains(err.Error(), "SOURCE_DATE_EPOCH") {
		t.Errorf("err = %v", err)
	}
}
