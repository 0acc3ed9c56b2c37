package device

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// QuoteID returns an ID for display: unchanged or, if it has spaces, invisible characters, invalid UTF-8 or a leading quote,
// as a Go string literal, as in the log.
func QuoteID(id ID) string {
	s := string(id)
	hidden := func(r rune) bool { return r == utf8.RuneError || unicode.IsSpace(r) || !unicode.IsPrint(r) }
	if s == "" || s[0] == '"' || strings.ContainsFunc(s, hidden) {
		return strconv.Quote(s)
	}
	return s
}

// UnquoteID reverses QuoteID. Other text is an ID as it stands.
func UnquoteID(s string) ID {
	if strings.HasPrefix(s, `"`) {
		if id, err := strconv.Unquote(s); err == nil {
			return ID(id)
		}
	}
	return ID(s)
}
