package device

import (
	"crypto/sha256"
	"slices"
	"strconv"
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

// A SelectionKey stands for a Selection. It is short, however long the patterns are.
type SelectionKey [sha256.Size]byte

// Key returns a key that two selections have in common only if they are equal.
func (s Selection) Key() SelectionKey {
	var text []byte
	for _, list := range [][]string{s.Use, s.Avoid} {
		for _, p := range list {
			text = append(strconv.AppendInt(text, int64(len(p)), 10), ' ')
			text = append(text, p...)
		}
		text = append(text, ',')
	}
	return sha256.Sum256(text)
}

func (s Selection) equal(t Selection) bool {
	return slices.Equal(s.Use, t.Use) && slices.Equal(s.Avoid, t.Avoid)
}

func matchesAny(patterns []string, text string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, text) })
}

// matches reports whether a pattern matches the whole of a text.
func matches(pattern, text string) bool {
	first, rest, more := strings.Cut(pattern, "*")
	if !more {
		return pattern == text
	}
	text, found := strings.CutPrefix(text, first)
	for found {
		var part string
		if part, rest, more = strings.Cut(rest, "*"); !more {
			return strings.HasSuffix(text, part)
		}
		_, text, found = strings.Cut(text, part)
	}
	return false
}
