package cli

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/visible"
)

// A table prints rows in columns. Without rows it prints nothing.
type table struct {
	to    *tabwriter.Writer
	heads []string // nil: already printed
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

// plain escapes foreign text, so that all of it is visible and none of it controls the terminal.
func plain(s string) string { return visible.Text(s) }

// shown formats a device's ID so that users can read it and pass it to a command.
func shown[T ~string](id T) string { return device.QuoteID(device.ID(id)) }

// maxListed is how many IDs a cell holds at most: a column is as wide as its widest cell.
const maxListed = 8

// list formats IDs as one cell: all of them or, of many, the first few and the number of the rest.
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
