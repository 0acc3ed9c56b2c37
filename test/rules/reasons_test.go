package rules

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
)

// docs/waiting.md has the table of reasons, and each reason leads to a section that exists.
func TestReasons_Documents_HaveTheTable(t *testing.T) {
	var table strings.Builder
	table.WriteString("| reason | meaning | remedy |\n|---|---|---|\n")
	for _, e := range device.Explanations() {
		file, anchor, _ := strings.Cut(e.Section, "#")
		if !anchors(t, filepath.Join(root, "docs", file))[anchor] {
			t.Errorf("%s leads to docs/%s: there is no such heading", e.Reason, e.Section)
		}
		short(t, string(e.Reason), e.Meaning)
		short(t, string(e.Reason), e.Remedy)
		fmt.Fprintf(&table, "| [`%s`](%s) | %s | %s |\n", e.Reason, strings.TrimPrefix(e.Section, "waiting.md"), e.Meaning, e.Remedy)
	}
	generated(t, "docs/waiting.md", "internal/device/reasons.go", table.String())
}

// The table of waits in docs/architecture.md has each reason, and no other.
func TestReasons_Architecture_HasAll(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, waits, _ := strings.Cut(string(text), "\n| reason | end of the wait |\n")
	waits, _, found := strings.Cut(waits, "\n\n")
	if !found {
		t.Fatal("there is no table of waits")
	}
	named := map[string]bool{}
	for row := range strings.Lines(waits) {
		cells := strings.Split(row, "|")
		for _, m := range regexp.MustCompile("`([A-Z][A-Za-z]+)`").FindAllStringSubmatch(cells[1], -1) {
			named[m[1]] = true
		}
	}
	for _, e := range device.Explanations() {
		if !named[string(e.Reason)] {
			t.Errorf("nothing ends %s", e.Reason)
		}
		delete(named, string(e.Reason))
	}
	for name := range named {
		t.Errorf("%s is no reason", name)
	}
}
