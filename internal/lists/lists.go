// Package lists has what packages slices and maps lack. It is a base package.
package lists

import (
	"fmt"
	"slices"
)

// Map returns f of each element; nil for a nil list.
func Map[A, B any](list []A, f func(A) B) []B {
	if list == nil {
		return nil
	}
	all := make([]B, len(list))
	for i, a := range list {
		all[i] = f(a)
	}
	return all
}

// First returns a short list as it is, and the first names of a long one with the number of the others, for messages.
func First(names []string, most int) []string {
	if more := len(names) - most; more > 0 {
		return append(slices.Clone(names[:most]), fmt.Sprintf("and %d more", more))
	}
	return names
}

// Strings converts names and IDs to plain strings.
func Strings[S ~string](list []S) []string { return Map(list, func(s S) string { return string(s) }) }
