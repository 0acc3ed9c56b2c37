package device

import (
	"fmt"
	"strconv"
	"strings"
)

// Bounds of Abridge's result.
const (
	maxAbridged = 8  // IDs
	maxShownID  = 80 // bytes of one ID
)

// Abridge returns IDs for a log line: a short list in full, and the first IDs of a long one with the number of the others.
func Abridge(ids []ID) string {
	shown := make([]string, 0, maxAbridged)
	for _, id := range ids[:min(len(ids), maxAbridged)] {
		text := string(id)
		if len(text) > maxShownID {
			text = text[:maxShownID] + "..."
		}
		if quoted := strconv.Quote(text); quoted != `"`+text+`"` {
			text = quoted
		}
		shown = append(shown, text)
	}
	text := strings.Join(shown, " ")
	if more := len(ids) - len(shown); more > 0 {
		text = fmt.Sprintf("%s and %d more", text, more)
	}
	return text
}
