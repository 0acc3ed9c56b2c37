package node

import (
	"slices"
	"strings"
)

// ReadOnly reports whether a command of devmgrd changes nothing, so that a test may repeat it until its output is as wanted.
func ReadOnly(command string) bool {
	return slices.ContainsFunc([]string{"status", "plugins", "devices", "assignments", "explain", "history", "rules suggest", "rules check"},
		func(reads string) bool { return command == reads || strings.HasPrefix(command, reads+" ") })
}

// Missing returns the first of these words that a text does not have after the others, or "".
func Missing(text string, words []string) string {
	for _, w := range words {
		_, after, found := strings.Cut(text, w)
		if !found {
			return w
		}
		text = after
	}
	return ""
}
