// Package table prints rows in columns for terminals.
package table

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
	"github.com/devmgrd/devmgrd/internal/visible"
)

// A Table prints rows in columns. Without rows it prints nothing.
type Table struct {
	to    *tabwriter.Writer
	heads []string // nil: already printed
}

// New returns a table with these heads.
func New(to io.Writer, heads ...string) *Table {
	return &Table{tabwriter.NewWriter(to, 0, 0, 3, ' ', 0), heads}
}

// Row adds a row. Control and invisible characters of foreign text are shown as signs.
func (t *Table) Row(cells ...string) {
	for i := range cells {
		cells[i] = visible.Text(cells[i])
	}
	if t.heads != nil {
		fmt.Fprintln(t.to, strings.Join(t.heads, "\t"))
		t.heads = nil
	}
	fmt.Fprintln(t.to, strings.Join(cells, "\t"))
}

// Flush prints the table.
func (t *Table) Flush() { t.to.Flush() }

// FlushOr prints the table, or a text if it has no rows.
func (t *Table) FlushOr(text string) {
	if t.heads != nil {
		fmt.Fprintln(t.to, text)
	}
	t.to.Flush()
}

// End prints the table, and an empty line after it.
func (t *Table) End() {
	if t.heads == nil {
		fmt.Fprintln(t.to)
	}
	t.to.Flush()
}

// MaxListed is how many IDs a cell holds at most: a column is as wide as its widest cell.
const MaxListed = 8

// IDs formats device IDs as one cell: all of them or, of many, the first few and the number of the rest.
func IDs[T ~string](ids []T) string {
	few := ids
	if len(ids) > MaxListed {
		few = ids[:MaxListed/2]
	}
	text := strings.Join(lists.Map(few, func(id T) string { return device.QuoteID(device.ID(id)) }), ",")
	if more := len(ids) - len(few); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
