package rules

import (
	"fmt"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/internal/pods"
)

// docs/watch.md has the table of events.
func TestEvents_Documents_HaveTheTable(t *testing.T) {
	var table strings.Builder
	table.WriteString("| event | type | on | meaning |\n|---|---|---|---|\n")
	for _, k := range pods.Kinds() {
		short(t, k.Reason, k.Meaning)
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", k.Reason, k.Type, strings.Join(k.Objects, ", "), k.Meaning)
	}
	generated(t, "docs/watch.md", "internal/pods/events.go", table.String())
}
