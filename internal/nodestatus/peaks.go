package nodestatus

import (
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// watchDelay is how long the watches of others may be behind. After a fall of the capacity the scheduler may still bind pods by the higher
// value for as long. After an outage of the API server, the scheduler's watch of pods and the kubelet's may be back before their watches of
// the Node: the published values are held for as long.
const watchDelay = 30 * time.Second

// peaks are the highest values that the Node has recently shown. Up to the peak, pods that are bound and not yet admitted
// hold up the capacity: the scheduler has bound them by that value, and with a lower one the kubelet would fail them
// permanently. They do not hold it above the peak: a pod that was bound past the scheduler and requests more is the kubelet's
// to reject.
type peaks map[device.ResourceName]peak

type peak struct {
	number int
	until  time.Time // when the Node last showed it
}

// observe records what the Node shows. A value that another writer has raised above devmgrd's does not count.
func (all peaks) observe(seen nodeState, ours quantities, now time.Time) {
	for r, n := range seen.allocatable {
		if mine := ours[r]; mine != nil {
			n = min(n, *mine)
		}
		if was, known := all[r]; !known || n >= was.number || now.Sub(was.until) > watchDelay {
			all[r] = peak{n, now}
		}
	}
}
