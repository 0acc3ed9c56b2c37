package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

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

// list writes IDs into one cell.
func list(ids []device.ID) string {
	all := make([]string, len(ids))
	for i, id := range ids {
		all[i] = string(id)
	}
	return strings.Join(all, ",")
}
