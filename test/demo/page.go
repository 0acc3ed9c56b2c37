package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
)

const (
	width = 96
	text  = "   "    // before what the demo says
	shown = "      " // before what it shows of others
)

// A page lays the story out in the terminal: numbered headings, sentences, and what others have said.
type page struct {
	to   io.Writer
	bold bool
}

func newPage(to *os.File) *page {
	info, err := to.Stat()
	terminal := err == nil && info.Mode()&os.ModeCharDevice != 0
	return &page{to: to, bold: terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
}

// title begins an act.
func (p *page) title(title string) {
	line := title
	if p.bold {
		line = "\x1b[1m" + line + "\x1b[0m"
	}
	fmt.Fprintf(p.to, "\n%s\n%s\n", line, strings.Repeat("=", len(title)))
}

// head begins a step.
func (p *page) head(number int, title string) {
	line := fmt.Sprintf("%d  %s", number, title)
	if p.bold {
		line = "\x1b[1m" + line + "\x1b[0m"
	}
	fmt.Fprintf(p.to, "\n%s\n\n", line)
}

// say prints a sentence.
func (p *page) say(format string, args ...any) {
	p.wrap(fmt.Sprintf(format, args...), text, text)
}

// show prints lines as they are.
func (p *page) show(lines ...string) {
	for _, line := range lines {
		fmt.Fprintln(p.to, strings.TrimRight(shown+line, " "))
	}
}

// quote prints long lines, such as those of a log.
func (p *page) quote(lines ...string) {
	for _, line := range lines {
		p.wrap(line, shown, shown+"  ")
	}
}

// table prints rows with aligned columns.
func (p *page) table(rows ...[]string) {
	w := tabwriter.NewWriter(p.to, 0, 0, 3, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, shown+strings.Join(row, "\t"))
	}
	w.Flush()
}

func (p *page) gap() { fmt.Fprintln(p.to) }

// wrap breaks a text at spaces. A word that is too long stands on a line of its own.
func (p *page) wrap(s, first, other string) {
	line, indent := "", first
	for _, word := range strings.Fields(s) {
		switch {
		case line == "":
			line = indent + word
		case len(line)+1+len(word) > width:
			fmt.Fprintln(p.to, line)
			indent = other
			line = indent + word
		default:
			line += " " + word
		}
	}
	if line != "" {
		fmt.Fprintln(p.to, line)
	}
}
