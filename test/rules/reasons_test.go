package rules

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
)

// docs/waiting.md has all reasons, and each reason leads to a section that exists.
func TestReasons_Documents_HaveAll(t *testing.T) {
	var table strings.Builder
	table.WriteString("\n")
	for _, e := range device.Explanations() {
		file, anchor, _ := strings.Cut(e.Section, "#")
		if !anchors(t, filepath.Join(root, "docs", file))[anchor] {
			t.Errorf("%s leads to docs/%s: there is no such heading", e.Reason, e.Section)
		}
		short(t, string(e.Reason), e.Meaning)
		short(t, string(e.Reason), e.Remedy)
		fmt.Fprintf(&table, "- [`%s`](%s): %s. *Remedy*: %s\n", e.Reason, strings.TrimPrefix(e.Section, "waiting.md"), e.Meaning, e.Remedy)
	}
	generated(t, "docs/waiting.md", "internal/device/reasons.go", table.String()+"\n")
}
