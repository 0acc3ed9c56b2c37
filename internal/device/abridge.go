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

// maxSummary bounds the containers' resources that one log line names.
const maxSummary = 16

// Summary returns the devices of a pod's containers for the log: the first maxSummary entries, and the number of further
// ones.
func Summary(all []Assignment) map[string]string {
	s, more := map[string]string{}, 0
	for _, as := range all {
		for _, share := range as.Shares {
			if len(s) == maxSummary {
				more++
				continue
			}
			s[as.Container.Name+":"+string(share.Resource)] = Abridge(share.IDs)
		}
	}
	if more > 0 {
		s["more"] = strconv.Itoa(more)
	}
	return s
}
