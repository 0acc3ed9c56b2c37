package statuspage

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
)

// Limits of the page's content. A full page has one or two megabytes, or a few where names are very long.
const (
	maxCells    = 512  // devices of one resource
	maxAllCells = 2048 // devices of all
	maxTiles    = 64   // devices of one resource with their names; more are shown small
	maxHolds    = 500  // rows of assignments
	maxWaits    = 100  // pods that wait
	maxStrays   = 5    // containers that were not redirected
	maxIDs      = 64   // devices in one row
	maxName     = 128  // characters of a name
	maxText     = 1000 // characters of a message
)

// answers are the data of the page.
type answers struct {
	status  *adminv1.GetStatusResponse
	plugins *adminv1.ListPluginsResponse
	devices []listing // of status.Resources
	holds   *adminv1.ListAssignmentsResponse
	spans   *adminv1.ListHistoryResponse // empty if the state file cannot be read
	waits   []*adminv1.ExplainResponse   // of the first of status.Waiting
}

// gather makes one call after the other. Each answer is consistent in itself; a change between two of them leads to the next
// page.
func gather(ctx context.Context, from Source) (a answers, err error) {
	a.status, err = from.GetStatus(ctx, &adminv1.GetStatusRequest{})
	if err != nil {
		return a, fmt.Errorf("asking for the status: %w", err)
	}
	a.plugins, err = from.ListPlugins(ctx, &adminv1.ListPluginsRequest{})
	if err != nil {
		return a, fmt.Errorf("asking for the plugins: %w", err)
	}
	room := maxAllCells
	for _, r := range a.status.Resources {
		l := listingOf(from.EachDevice(r.Name), room)
		a.devices, room = append(a.devices, l), room-len(l.shown)
	}
	a.holds, err = from.ListAssignments(ctx, &adminv1.ListAssignmentsRequest{})
	if err != nil {
		return a, fmt.Errorf("asking for the assignments: %w", err)
	}
	// Open spans have the beginnings of the current assignments. The page can do without them.
	a.spans, err = from.ListHistory(ctx, &adminv1.ListHistoryRequest{Since: durationpb.New(0)})
	if err != nil {
		a.spans = &adminv1.ListHistoryResponse{}
	}
	for _, w := range a.status.Waiting[:min(len(a.status.Waiting), maxWaits)] {
		e, err := from.Explain(ctx, &adminv1.ExplainRequest{Namespace: w.Namespace, Name: w.Name})
		if err == nil && e.Verdict == "waiting" { // else the pod has its devices by now, or has gone
			a.waits = append(a.waits, e)
		}
	}
	return a, nil
}
