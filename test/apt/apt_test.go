package apt_test

import (
	"io"
	"testing"

	"github.com/devmgrd/devmgrd/test/apt"
)

// Without apt-get it is said what to install, and what for; what is there needs nothing.
func TestEnsure(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	need := apt.Need{For: "a page is looked at", Missing: apt.Programs(map[string]string{"browser": "a-browser"}), Anywhere: "dnf install it"}
	const want = "a page is looked at: apt-get install a-browser (Debian), or dnf install it"
	if err := apt.Ensure(t.Context(), io.Discard, need); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	need.Missing = apt.Programs(nil)
	if err := apt.Ensure(t.Context(), io.Discard, need); err != nil {
		t.Error(err)
	}
}
