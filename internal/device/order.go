package device

import (
	"cmp"
	"strings"
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
