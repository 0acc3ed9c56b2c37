package pluginrules

import (
	"path"
	"slices"
	"strings"
)

// matches reports whether a pattern in the form of path.Match matches a name: "*" stands for any characters but a slash, "?" for one of
// them, and "[0-9]" for one of a class.
func matches(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return ok && err == nil
}

// matchesAny reports whether one of the patterns matches a name.
func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, name) })
}

// covers reports whether a path is one that the pattern matches, or below one. Both are absolute and clean.
func covers(pattern, at string) bool {
	if pattern == "/" {
		return true
	}
	for {
		var want, name string
		want, pattern, _ = strings.Cut(strings.TrimPrefix(pattern, "/"), "/")
		name, at, _ = strings.Cut(strings.TrimPrefix(at, "/"), "/")
		if name == "" || !matches(want, name) {
			return false
		}
		if pattern == "" {
			return true
		}
	}
}

// coversAny reports whether one of the patterns covers a path.
func coversAny(patterns []string, at string) bool {
	at = path.Clean(at)
	return slices.ContainsFunc(patterns, func(p string) bool { return strings.HasPrefix(p, "/") && covers(p, at) })
}

// generalize returns a pattern for a name: it matches names that differ in numbers and in device IDs only, of which it keeps what comes
// before their numbers. IDs of fewer than 4 bytes count as numbers only. An ID never becomes the whole of a name, or of one of a
// path's first two parts: a plugin could choose an ID so that the pattern allows anything.
func generalize(name string, ids []string) string {
	parts := strings.Split(name, "/")
	for i, part := range parts {
		pattern := generalizePart(part, ids)
		if pattern == "*" && (parts[0] != "" || i < 3) {
			pattern = escape(part)
		}
		parts[i] = pattern
	}
	return strings.Join(parts, "/")
}

func generalizePart(name string, ids []string) string {
	var b strings.Builder
	for name != "" {
		if n := longestPrefix(name, ids); n > 0 {
			b.WriteString(escape(stem(name[:n])))
			b.WriteByte('*')
			name = name[n:]
			continue
		}
		if n := len(name) - len(strings.TrimLeft(name, "0123456789")); n > 0 {
			b.WriteString("[0-9]*")
			name = name[n:]
			continue
		}
		b.WriteString(escape(name[:1]))
		name = name[1:]
	}
	return b.String()
}

// stem returns what IDs of a kind have in common: what comes before the part with the first digit. GPU- of GPU-fa12-3, gpu of gpu7, nothing
// of 0000:3b:00.0 or of an ID without digits.
func stem(id string) string {
	first := strings.IndexAny(id, "0123456789")
	if first < 0 {
		return ""
	}
	if end := strings.LastIndexAny(id[:first], "-_:."); end >= 0 {
		return id[:end+1]
	}
	return id[:first]
}

// longestPrefix returns the length of the longest ID that a name begins with. An ID with a slash is no part of a path's name.
func longestPrefix(name string, ids []string) int {
	longest := 0
	for _, id := range ids {
		if len(id) >= 4 && len(id) > longest && !strings.Contains(id, "/") && strings.HasPrefix(name, id) {
			longest = len(id)
		}
	}
	return longest
}
