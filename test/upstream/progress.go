package upstream

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// finished is ginkgo's line at the end of a spec: "• [1.2 seconds]", "• [FAILED] [1.2 seconds]".
var finished = regexp.MustCompile(`^• (?:\[([A-Z ]+)\] )?\[([0-9.]+) seconds\]`)

// Progress copies ginkgo's text to log, and writes a line to w for each spec that has ended. The lines are for those who
// wait; the results come from the report.
func Progress(w, log io.Writer, text io.Reader) {
	lines := bufio.NewReader(io.TeeReader(text, log))
	spec, ruled := "", false
	for {
		line, err := lines.ReadString('\n')
		line = strings.TrimSpace(line)
		if ended := finished.FindStringSubmatch(line); ended != nil {
			outcome := Pass
			if ended[1] != "" {
				outcome = Fail
			}
			fmt.Fprintf(w, "%s %6s s  %s\n", outcome, ended[2], untagged(spec))
		}
		if ruled && line != "" {
			spec = line
		}
		ruled = line != "" && strings.Trim(line, "-") == ""
		if err != nil {
			return
		}
	}
}
