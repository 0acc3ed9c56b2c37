package reclaim

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
	"github.com/devmgrd/devmgrd/internal/units"
)

// maxList bounds the text of one list in a command's environment: the kernel takes 128 KiB for a variable with its name.
const maxList = 120 << 10

// command runs a resource's command for the devices of a pod: once, or as often as their names need, one run after the other. again: it may succeed
// later, and then all runs are repeated.
func (g *Gate) command(ctx context.Context, d device.Departure, r device.ResourceName) (again bool, err error) {
	ids, nodes, err := g.named(ctx, d, r)
	if err != nil {
		return true, err
	}
	for _, text := range slices.Concat(ids, nodes) {
		if strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c == 0x7f }) {
			return false, fmt.Errorf("release.command of %s cannot be told of %q: it has a space or a control character", r, text)
		}
	}
	var plugin units.Plugin
	if g.Plugin != nil {
		plugin = g.Plugin(r)
	}
	for len(ids)+len(nodes) > 0 {
		var someIDs, someNodes string
		someIDs, ids = join(ids)
		someNodes, nodes = join(nodes)
		done, err := g.turns.Take(ctx, plugin, g.Timeout)
		if err != nil {
			return true, err
		}
		again, err := g.runOnce(ctx, d, r, someIDs, someNodes)
		done()
		if err != nil {
			return again, err
		}
	}
	return false, nil
}

// named returns the names of a pod's devices of a resource, and the paths of their nodes.
func (g *Gate) named(ctx context.Context, d device.Departure, r device.ResourceName) (names, nodes []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, nodesLimit)
	defer cancel()
	var ids []device.ID
	found := map[string]bool{}
	for _, s := range device.Shares(d.Assignments) {
		if s.Resource != r || len(s.IDs) == 0 {
			continue
		}
		ids = append(ids, s.IDs...)
		of, err := g.Nodes.Of(ctx, r, s.Grant)
		if err != nil {
			return nil, nil, err
		}
		for _, n := range of {
			if !found[n.Path] {
				found[n.Path] = true
				nodes = append(nodes, n.Path)
			}
		}
	}
	slices.SortFunc(ids, device.CompareIDs)
	return lists.Strings(slices.Compact(ids)), nodes, nil
}

// join returns the first texts of a list with spaces between them, at most maxList bytes, and the others.
func join(list []string) (text string, others []string) {
	n, size := 0, 0
	for n < len(list) && (n == 0 || size+1+len(list[n]) <= maxList) {
		size += 1 + len(list[n])
		n++
	}
	return strings.Join(list[:n], " "), list[n:]
}

// runOnce runs a command for some of a pod's devices.
func (g *Gate) runOnce(ctx context.Context, d device.Departure, r device.ResourceName, ids, nodes string) (again bool, err error) {
	unit := units.Name(unitPrefix, string(d.Pod.UID), string(r))
	got, err := g.Units.Run(ctx, unit, g.Command(r), []string{
		"DEVMGRD_RESOURCE=" + string(r), "DEVMGRD_DEVICES=" + ids, "DEVMGRD_NODES=" + nodes,
		"DEVMGRD_POD=" + d.Pod.String(), "DEVMGRD_POD_UID=" + string(d.Pod.UID),
	}, g.Timeout)
	if err != nil {
		return true, fmt.Errorf("release.command of %s could not be run: %w", r, err)
	}
	again, err = judge(got)
	if err != nil {
		err = fmt.Errorf("release.command of %s %w; see journalctl -u %s", r, err, unit)
	}
	return again, err
}
