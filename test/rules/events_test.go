package rules

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/devmgrd/devmgrd/internal/pods"
)

// docs/watch.md has the events.
func TestEvents_Documents_HaveThem(t *testing.T) {
	var table strings.Builder
	table.WriteString("\n")
	for _, k := range pods.Kinds() {
		short(t, k.Reason, k.Meaning)
		kind := ""
		if k.Type != corev1.EventTypeWarning {
			kind = ", " + k.Type
		}
		fmt.Fprintf(&table, "- `%s` (%s%s): %s\n", k.Reason, strings.Join(k.Objects, ", "), kind, k.Meaning)
	}
	generated(t, "docs/watch.md", "internal/pods/events.go", table.String()+"\n")
}
