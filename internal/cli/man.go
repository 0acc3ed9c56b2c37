package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/version"
)

// newManCommand returns "devmgrd man", which writes the manual pages of packages. It is a command of this binary because
// only this binary has the commands. A library that writes manual pages would bring a Markdown parser into a daemon that
// runs as root.
func newManCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "man DIRECTORY",
		Short:   "Write the manual pages",
		Example: "  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) devmgrd man /tmp/pages",
		Hidden:  true,
		Args:    usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			day, err := manDay(os.Getenv("SOURCE_DATE_EPOCH"))
			if err != nil {
				return err
			}
			return writePages(cmd.Root(), args[0], day)
		},
	}
}

// manDay returns the date of the pages: the source's if the builder sets it, so that the same source yields the same
// pages, else today's.
func manDay(epoch string) (string, error) {
	at := time.Now()
	if epoch != "" {
		seconds, err := strconv.ParseInt(epoch, 10, 64)
		if err != nil {
			return "", usageError{fmt.Errorf("SOURCE_DATE_EPOCH: %q is not a number of seconds; set it to the commit's time, or unset it", epoch)}
		}
		at = time.Unix(seconds, 0)
	}
	return at.UTC().Format(time.DateOnly), nil
}

// writePages writes a page for each visible command, and one for the configuration file.
func writePages(root *cobra.Command, dir, day string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the directory of the manual pages: %w", err)
	}
	var errs []error
	for _, cmd := range shownCommands(root) {
		errs = append(errs, os.WriteFile(filepath.Join(dir, pageName(cmd)+".8"), []byte(commandPage(cmd, day)), 0o644))
	}
	errs = append(errs, os.WriteFile(filepath.Join(dir, "devmgrd.yaml.5"), []byte(configPage(day)), 0o644))
	return errors.Join(errs...)
}

// shownCommands returns a command and all its subcommands, except hidden ones.
func shownCommands(cmd *cobra.Command) []*cobra.Command {
	shown := []*cobra.Command{cmd}
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			shown = append(shown, shownCommands(c)...)
		}
	}
	return shown
}

func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

func commandPage(cmd *cobra.Command, day string) string {
	p := newPage(pageName(cmd), 8, day, "System Administration")
	p.section("NAME")
	p.text(pageName(cmd) + " - " + cmd.Short)
	p.section("SYNOPSIS")
	synopsis := cmd.UseLine()
	if cmd.HasAvailableSubCommands() {
		synopsis = cmd.CommandPath() + " COMMAND"
	}
	p.bold(synopsis)
	p.section("DESCRIPTION")
	p.prose(cmd.Long)

	if cmd.HasAvailableSubCommands() {
		p.section("COMMANDS")
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				p.term(pageName(c)+"(8)", c.Short)
			}
		}
	}
	if flags := cmd.Flags(); flags.HasAvailableFlags() {
		p.section("OPTIONS")
		flags.VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				p.term(flagTerm(f), flagText(f))
			}
		})
	}
	if cmd.Example != "" {
		p.section("EXAMPLES")
		p.verbatim(strings.Split(cmd.Example, "\n"))
	}
	if !cmd.HasParent() {
		p.section("ENVIRONMENT")
		p.term("DEVMGRD_...", "Each key of the configuration: DEVMGRD_ and the key in upper case with _ for a dot, such as DEVMGRD_LOG_LEVEL.")
		p.term("NODE_NAME", "The node's name, unless nodeName is set.")
		p.section("FILES")
		p.term(config.DefaultFile, "The configuration; see devmgrd.yaml(5).")
		p.term("/var/lib/devmgrd/state.db", "The state file: which container has which device.")
		p.term("/run/devmgrd", "Sockets of device plugins, of the commands and of PodResources.")
		p.section("EXIT STATUS")
		p.term("0", "Success.")
		p.term("1", "The command has failed; standard error says why.")
		p.term("2", "The command line or the configuration is wrong. Nothing was done.")
	}
	p.section("SEE ALSO")
	see := []string{"devmgrd.yaml(5)"}
	if cmd.HasParent() {
		see = append([]string{pageName(cmd.Parent()) + "(8)"}, see...)
	}
	p.text(strings.Join(see, ", "))
	return p.String()
}

func flagTerm(f *pflag.Flag) string {
	name, _ := pflag.UnquoteUsage(f)
	term := "--" + f.Name
	if f.Shorthand != "" {
		term = "-" + f.Shorthand + ", " + term
	}
	return strings.TrimSpace(term + " " + name)
}

func flagText(f *pflag.Flag) string {
	_, text := pflag.UnquoteUsage(f)
	switch f.DefValue {
	case "", "false", "[]", "0", "0s":
		return text
	}
	return text + " (default " + f.DefValue + ")"
}

// Lines of the configuration's reference other than prose: a heading, and a key with its default.
var (
	heading = regexp.MustCompile(`^([a-zA-Z]+):$`)
	keyLine = regexp.MustCompile(`^ *#([a-zA-Z]+): (.*)$`)
)

// configPage returns the commented configuration file as a manual page.
func configPage(day string) string {
	p := newPage("devmgrd.yaml", 5, day, "File Formats")
	p.section("NAME")
	p.text("devmgrd.yaml - the configuration of devmgrd")
	p.section("SYNOPSIS")
	p.bold(config.DefaultFile)
	p.section("DESCRIPTION")

	const top = "THE NODE"
	var prefix, group string
	var words []string // of the comment that the next key, heading or empty line ends
	intro := true      // until the first empty line
	for line := range strings.Lines(config.Reference) {
		line = strings.TrimRight(line, "\n")
		if m := keyLine.FindStringSubmatch(line); m != nil {
			if group == "" {
				group = top
				p.section(top)
			}
			p.term(prefix+m[1], strings.Join(words, " "))
			p.continued("Default: " + m[2])
			words = nil
			continue
		}
		if m := heading.FindStringSubmatch(line); m != nil {
			prefix, group = m[1]+".", strings.ToUpper(m[1])
			p.section(group)
			p.text(strings.Join(words, " "))
			words = nil
			continue
		}
		text := strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "#"))
		switch {
		case text != "":
			words = append(words, text)
		case intro && len(words) > 0:
			p.paragraph()
			p.text(strings.Join(words, " "))
			words, intro = nil, line != ""
		}
	}
	p.section("SEE ALSO")
	p.text("devmgrd(8), devmgrd-config(8)")
	return p.String()
}

// A page is a manual page under construction, in the language of man(7).
type page struct{ strings.Builder }

func newPage(name string, section int, day, title string) *page {
	p := &page{}
	fmt.Fprintf(p, ".TH \"%s\" \"%d\" \"%s\" \"devmgrd %s\" \"%s\"\n.nh\n.ad l\n", roff(strings.ToUpper(name)), section, day, roff(version.Get().Version), title)
	return p
}

func (p *page) section(name string) { fmt.Fprintf(p, ".SH %s\n", name) }

func (p *page) paragraph() { p.WriteString(".PP\n") }

func (p *page) text(s string) { fmt.Fprintln(p, roff(s)) }

func (p *page) bold(s string) { fmt.Fprintf(p, ".B %s\n", roff(s)) }

func (p *page) term(term, text string) {
	fmt.Fprintf(p, ".TP\n.B %s\n%s\n", roff(term), roff(text))
}

// continued adds a line to the meaning of the last term.
func (p *page) continued(s string) { fmt.Fprintf(p, ".br\n%s\n", roff(s)) }

// prose writes paragraphs, and keeps indented lines as they are.
func (p *page) prose(s string) {
	for i, part := range strings.Split(s, "\n\n") {
		if i > 0 {
			p.paragraph()
		}
		lines := strings.Split(part, "\n")
		if strings.HasPrefix(part, " ") {
			p.verbatim(lines)
			continue
		}
		p.text(strings.Join(lines, " "))
	}
}

func (p *page) verbatim(lines []string) {
	p.WriteString(".nf\n")
	for _, line := range lines {
		p.text(line)
	}
	p.WriteString(".fi\n")
}

// roff escapes text so that no part of it is a request: backslashes, hyphens (which readers may copy), and a dot or an
// apostrophe at the beginning.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}
