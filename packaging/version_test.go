package packaging_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/test/apt"
)

// TestVersion looks at what the Makefile makes of git's words, and has dpkg order it.
func TestVersion(t *testing.T) {
	version := func(describe string) string {
		t.Helper()
		out, err := exec.Command("make", "--directory=..", "--no-print-directory", "--silent", "package-version",
			"VERSION="+describe, "SOURCE_DATE_EPOCH=1767225600").Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out))
	}
	inOrder := []struct{ describe, want string }{
		{"edba7c2", "0.1.0~git20260101.edba7c2"},
		{"1234567-dirty", "0.1.0~git20260101.1234567+dirty"},
		{"v0.1.0", "0.1.0"},
		{"v0.1.0-dirty", "0.1.0+dirty"},
		{"v0.1.0-12-gedba7c2", "0.1.0+git12.edba7c2"},
		{"v0.1.0-12-gedba7c2-dirty", "0.1.0+git12.edba7c2+dirty"},
		{"v0.2.0-rc1", "0.2.0~rc1"},
		{"v0.2.0-rc1-3-gedba7c2", "0.2.0~rc1+git3.edba7c2"},
		{"v0.2.0", "0.2.0"},
		{"v0.10.0", "0.10.0"},
	}
	for _, v := range inOrder {
		if got := version(v.describe); got != v.want {
			t.Errorf("%s becomes %s, want %s", v.describe, got, v.want)
		}
	}
	dpkg := apt.Program(t, "dpkg", "dpkg", "versions are put in order with dpkg")
	for i := 2; i < len(inOrder); i++ { // what comes before any tag is in no order but before it
		if out, err := exec.Command(dpkg, "--compare-versions", inOrder[i-1].want, "lt", inOrder[i].want).CombinedOutput(); err != nil {
			t.Errorf("%s does not come before %s: %v\n%s", inOrder[i-1].want, inOrder[i].want, err, out)
		}
	}
}
