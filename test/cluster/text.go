package cluster

import "strings"

// lastLines is the end of a text, where programs say why they stopped. Long lines are cut.
func lastLines(text string, n int) string {
	const longest = 400
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	lines = lines[max(0, len(lines)-n):]
	for i, line := range lines {
		if len(line) > longest {
			lines[i] = strings.ToValidUTF8(line[:longest], "") + " ..."
		}
	}
	return strings.Join(lines, "\n")
}
