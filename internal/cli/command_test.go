package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/devmgrd/devmgrd/config"
)

// The tests set the environment; the variables of the user who runs them do not count.
func TestMain(m *testing.M) {
	standIn()
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "DEVMGRD_") || name == "NODE_NAME" {
			os.Unsetenv(name)
		}
	}
	os.Exit(m.Run())
}

// execute runs one command line.
func execute(args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	status = Run(args, &out, &errs)
	return status, out.String(), errs.String()
}

func TestExitStatus(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.yaml")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args   string
		status int
		says   string // on standard error, or on standard output where the status is 0
	}{
		{"", 0, "Usage:"},
		{"version", 0, "device plugin API: v1beta1"},
		{"config --set nodeName=n1 --config " + empty, 0, "nodeName: n1 # --set"},
		{"comfig", 2, `devmgrd: there is no command "comfig"; did you mean config?`},
		{"nonsense", 2, "see devmgrd --help"},
		{"version now", 2, `takes no argument, but got "now"`},
		{"config --colour", 2, "unknown flag: --colour; see devmgrd config --help"},
		{"config --set", 2, "flag needs an argument"},
		{"config --config /nowhere/at/all", 2, "devmgrd: /nowhere/at/all: cannot be read"},
	} {
		status, out, errs := execute(strings.Fields(c.args)...)
		output := out
		if c.status != 0 {
			output = errs
			if out != "" || !strings.HasPrefix(errs, "devmgrd: ") {
				t.Errorf("%q: stdout %q, stderr %q", c.args, out, errs)
			}
		}
		if status != c.status || !strings.Contains(output, c.says) {
			t.Errorf("%q: status %d, want %d; %q does not hold %q", c.args, status, c.status, output, c.says)
		}
	}
	if got := exitCode(errors.New("no disk")); got != 1 {
		t.Errorf("any other failure: status %d", got)
	}
	if got := exitCode(fmt.Errorf("starting: %w", &config.Error{})); got != 2 {
		t.Errorf("a wrapped configuration error: status %d", got)
	}
}

func TestEveryMistakeIsPrinted(t *testing.T) {
	t.Setenv("DEVMGRD_LOG_LEVEL", "loud")
	status, _, errs := execute("config", "--set", "log.format=xml", "--set", "nri.index=5", "--set", "typo=1")
	if lines := strings.Count(errs, "devmgrd: "); status != 2 || lines != 4 {
		t.Errorf("status %d, %d lines:\n%s", status, lines, errs)
	}
}

func TestEveryCommandHasAnExample(t *testing.T) {
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		if c.Example == "" || c.Short == "" {
			t.Errorf("%s has no example or no short text", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(Root())
}
