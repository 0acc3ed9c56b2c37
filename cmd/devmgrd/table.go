package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A table is printed in columns, and not at all without rows.
type table struct {
	to    *tabwriter.Writer
	heads []string // nil: they have been printed
}

func newTable(to io.Writer, heads ...string) *table {
	return &table{tabwriter.NewWriter(to, 0, 0, 3, ' ', 0), heads}
}

func (t *table) row(cells ...string) {
	for i := range cells {
		cells[i] = plain(cells[i])
	}
	if t.heads != nil {
		fmt.Fprintln(t.to, strings.Join(t.heads, "\t"))
		t.heads = nil
	}
	fmt.Fprintln(t.to, strings.Join(cells, "\t"))
}

// end prints the table, and an empty line after it.
func (t *table) end() {
	if t.heads == nil {
		fmt.Fprintln(t.to)
	}
	t.to.Flush()
}

// plain has a question mark for each control character: what plugins and others have said does not steer a terminal.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '?'
		}
		return r
	}, s)
}

// list writes IDs into one cell.
func list(ids []device.ID) string {
	all := make([]string, len(ids))
	for i, id := range ids {
		all[i] = string(id)
	}
	return strings.Join(all, ",")
}
