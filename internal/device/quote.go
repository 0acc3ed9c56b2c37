package device

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// QuoteID returns an ID as people read it: as it is or, with spaces, characters that cannot be seen, invalid UTF-8 or a
// quote in front, as a Go string literal, which is how the log writes it.
func QuoteID(id ID) string {
	s := string(id)
	hidden := func(r rune) bool { return r == utf8.RuneError || unicode.IsSpace(r) || !unicode.IsPrint(r) }
	if s == "" || s[0] == '"' || strings.ContainsFunc(s, hidden) {
		return strconv.Quote(s)
	}
	return s
}

// UnquoteID takes back what QuoteID returns. Other text is an ID as it is.
func UnquoteID(s string) ID {
	if strings.HasPrefix(s, `"`) {
		if id, err := strconv.Unquote(s); err == nil {
			return ID(id)
		}
	}
	return ID(s)
}
