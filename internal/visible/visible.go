// Package visible formats values for people: foreign text (of plugins, pods, the API server), so that a reader sees each character
// of it, and ages. It is a base package: the commands use it for terminals, and the status page for browsers.
//
// A terminal acts on control characters, ESC and the C1 set among them. Terminals and browsers reorder the text around bidi
// controls, and show nothing for others: two names that look the same may be different ones. Each such character is written
// as a sign of its own, so that different texts look different.
package visible

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"
)

const brailleBlank = '\u2800' // a symbol by its class, and empty

// Text returns s with signs in place of invisible characters. The result is UTF-8 without control characters for any s.
func Text(s string) string { return Short(s, math.MaxInt) }

// Short returns Text of the first most characters, and an ellipsis if there are more.
func Short(s string, most int) string {
	var b strings.Builder
	n := 0
	for _, r := range s { // a byte that is not UTF-8 is U+FFFD here
		n++
		if n > most {
			return b.String() + "…"
		}
		switch {
		case r < ' ':
			b.WriteRune('␀' + r)
		case r == 0x7f:
			b.WriteRune('␡')
		case hidden(r):
			fmt.Fprintf(&b, "⟨%U⟩", r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Age formats a duration in its two largest units.
func Age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(0, int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
}

// hidden reports whether a character is not seen, or moves others. Of the spaces only ASCII's is seen as what it is.
func hidden(r rune) bool {
	return !unicode.IsPrint(r) || r == brailleBlank || unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}
