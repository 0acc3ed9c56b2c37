package device

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// CompareIDs orders IDs by number: gpu-2 comes before gpu-10. A number is a digit and the hexadecimal digits that follow it,
// so PCI addresses and UUIDs keep their own order too: 0000:3b:00.2 is after 0000:10:00.2. IDs that differ only in leading
// zeros are ordered as text: the order is total.
func CompareIDs(a, b ID) int {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	i = numberStart(a, i)
	for x, y := a[i:], b[i:]; ; {
		switch {
		case x == "" || y == "":
			if c := cmp.Compare(len(x), len(y)); c != 0 {
				return c
			}
			return strings.Compare(string(a), string(b))
		case isDigit(x[0]) && isDigit(y[0]):
			m, restX := cutNumber(x)
			n, restY := cutNumber(y)
			if c := cmp.Or(cmp.Compare(len(m), len(n)), cmp.Compare(m, n)); c != 0 {
				return c
			}
			x, y = restX, restY
		case x[0] != y[0]:
			return cmp.Compare(x[0], y[0])
		default:
			x, y = x[1:], y[1:]
		}
	}
}

// numberStart returns the start of the number that contains the byte before i, or i.
func numberStart(id ID, i int) int {
	start := i
	for start > 0 && isHexDigit(id[start-1]) {
		start--
	}
	for start < i && !isDigit(id[start]) {
		start++
	}
	return start
}

// cutNumber returns the number at the beginning of id, without leading zeros, and the rest of id.
func cutNumber(id ID) (number, rest ID) {
	zeros := 0
	for zeros < len(id) && id[zeros] == '0' {
		zeros++
	}
	end := zeros
	for end < len(id) && isHexDigit(id[end]) {
		end++
	}
	return id[zeros:end], id[end:]
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isHexDigit(c byte) bool { return isDigit(c) || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F' }

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

// Digest returns a short value for a list of devices: equal for equal lists, and different for different ones.
func Digest(ids []ID) string {
	h := sha256.New()
	var size [binary.MaxVarintLen64]byte
	for _, id := range ids {
		h.Write(binary.AppendUvarint(size[:0], uint64(len(id))))
		h.Write([]byte(id))
	}
	return hex.EncodeToString(h.Sum(nil))
}

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
	for c, share := range Shares(all) {
		if len(s) == maxSummary {
			more++
			continue
		}
		s[c.Name+":"+string(share.Resource)] = Abridge(share.IDs)
	}
	if more > 0 {
		s["more"] = strconv.Itoa(more)
	}
	return s
}

// A Key identifies a device on the node: IDs are unique within a resource only.
type Key struct {
	Resource ResourceName
	ID       ID
}
