package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/visible"
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

// plain returns text of others so that all of it is seen and nothing steers a terminal.
func plain(s string) string { return visible.Text(s) }

// shown writes a device's ID as it can be read, and be named again in a command.
func shown[T ~string](id T) string { return device.QuoteID(device.ID(id)) }

// maxListed is how many IDs a cell holds at most: a column is as wide as its widest cell.
const maxListed = 8

// list writes IDs into one cell: all of them or, of many, the first few and how many there are besides.
func list[T ~string](ids []T) string {
	few := ids
	if len(ids) > maxListed {
		few = ids[:maxListed/2]
	}
	all := make([]string, len(few))
	for i, id := range few {
		all[i] = shown(id)
	}
	text := strings.Join(all, ",")
	if more := len(ids) - len(few); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
