package main

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/devmgrd/devmgrd/config"
)

// daemonSections are what devmgrd(8) has besides the text of the command.
const daemonSections = `
## ENVIRONMENT

**DEVMGRD_...**
: Each key of the configuration: DEVMGRD_ and the key in upper case with _ for a dot, such as DEVMGRD_LOG_LEVEL.

**NODE_NAME**
: The node's name, unless nodeName is set.

## FILES

**` + config.DefaultFile + `**
: The configuration; see devmgrd.yaml(5).

**/var/lib/devmgrd/state.db**
: The state file: which container has which device.

**/run/devmgrd**
: Sockets of device plugins, of the commands and of PodResources.

## EXIT STATUS

**0**
: Success.

**1**
: The command has failed; standard error has the reason.

**2**
: The command line or the configuration is wrong. Nothing was done.
`

// Lines of the configuration's reference other than prose: a heading, and a key with its default.
var (
	heading = regexp.MustCompile(`^([a-zA-Z]+):$`)
	keyLine = regexp.MustCompile(`^ *#([a-zA-Z]+): (.*)$`)
)

// configPage returns the commented configuration file as a manual page in Markdown.
func configPage(month, source string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%% \"DEVMGRD.YAML\" \"5\" \"%s\" \"%s\" \"File Formats\"\n", month, source)
	fmt.Fprintf(&b, "# NAME\n\ndevmgrd.yaml - the configuration of devmgrd\n\n# SYNOPSIS\n\n**%s**\n\n# DESCRIPTION\n\n", config.DefaultFile)
	var prefix string
	var words []string // of the comment that the next key, heading or empty line ends
	intro, first := true, true
	for line := range strings.Lines(config.Reference) {
		line = strings.TrimRight(line, "\n")
		if m := keyLine.FindStringSubmatch(line); m != nil {
			if first && prefix == "" {
				b.WriteString("# THE NODE\n\n")
			}
			first = false
			fmt.Fprintf(&b, "**%s%s**\n: %s Default: %s\n\n", prefix, m[1], literal(strings.Join(words, " ")), literal(m[2]))
			words = nil
			continue
		}
		if m := heading.FindStringSubmatch(line); m != nil {
			prefix = m[1] + "."
			fmt.Fprintf(&b, "# %s\n\n%s\n\n", strings.ToUpper(m[1]), literal(strings.Join(words, " ")))
			words = nil
			continue
		}
		text := strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "#"))
		switch {
		case text != "":
			words = append(words, text)
		case intro && len(words) > 0:
			fmt.Fprintf(&b, "%s\n\n", literal(strings.Join(words, " ")))
			words, intro = nil, line != ""
		}
	}
	b.WriteString("# SEE ALSO\n\n**devmgrd(8)**, **devmgrd-config(8)**\n")
	return b.String()
}

// literal escapes what Markdown would interpret.
func literal(s string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "_", `\_`, "<", `\<`, "[", `\[`, "`", "\\`").Replace(s)
}
