package cli

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/test/apt"
)

// TestManPages writes the pages and has the formatter that people's man calls read them.
func TestManPages(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1767225600")
	dir := filepath.Join(t.TempDir(), "man")
	if status := Run([]string{"man", dir}, io.Discard, os.Stderr); status != 0 {
		t.Fatalf("exit status %d", status)
	}
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for name, wants := range map[string][]string{
		"devmgrd.8":              {".SH COMMANDS", `devmgrd\-status(8)`, `"2026-01-01"`},
		"devmgrd-status.8":       {`.B devmgrd status`, `\-\-socket`},
		"devmgrd-store-backup.8": {".SH EXAMPLES"},
		// Each group of keys, a key with its text, and its default.
		"devmgrd.yaml.5": {".SH THE NODE", ".SH PLUGINS", ".B plugins.gracePeriod\nHow long a plugin may be disconnected", "Default: 1m\n", ".SH LOG", ".B log.format"},
	} {
		text := read(name)
		for _, want := range wants {
			if !strings.Contains(text, want) {
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
		out, err := exec.Command(groff, "-man", "-ww", "-z", "-Tutf8", filepath.Join(dir, e.Name())).CombinedOutput()
		if err != nil || len(out) > 0 {
			t.Errorf("groff has something to say about %s: %v\n%s", e.Name(), err, out)
		}
	}
}

func TestRoffHidesRequests(t *testing.T) {
	for in, want := range map[string]string{".so /etc/shadow": `\&.so /etc/shadow`, "'a": `\&'a`, `a\fBb`: `a\efBb`, "--set": `\-\-set`} {
		if got := roff(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}
