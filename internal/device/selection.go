package device

import (
	"slices"
	"strings"
)

// A Selection is which devices of a resource a container may have, by patterns of their IDs. An asterisk in a pattern stands for any text.
type Selection struct {
	Use   []string `json:"use,omitempty"` // one must match; empty: all do
	Avoid []string `json:"avoid,omitempty"`
}

// Selects reports whether a device may be used.
func (s Selection) Selects(id ID) bool {
	return (len(s.Use) == 0 || matchesAny(s.Use, string(id))) && !matchesAny(s.Avoid, string(id))
}

func (s Selection) equal(t Selection) bool {
	return slices.Equal(s.Use, t.Use) && slices.Equal(s.Avoid, t.Avoid)
}

func matchesAny(patterns []string, text string) bool {
	for _, p := range patterns {
		if matches(p, text) {
			return true
		}
	}
	return false
}

// matches reports whether a pattern matches the whole of a text.
func matches(pattern, text string) bool {
	parts := strings.Split(pattern, "*")
	first, last := parts[0], parts[len(parts)-1]
	if len(parts) == 1 {
		return pattern == text
	}
	if len(text) < len(first)+len(last) || !strings.HasPrefix(text, first) || !strings.HasSuffix(text, last) {
		return false
	}
	text = text[len(first) : len(text)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		_, rest, found := strings.Cut(text, part)
		if !found {
			return false
		}
		text = rest
	}
	return true
}
