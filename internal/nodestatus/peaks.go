package nodestatus

import (
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// schedulerDelay is how long after a number has fallen the scheduler may still bind pods by the higher one: its watch of the Node may be
// behind, as after a restart of the API server.
const schedulerDelay = 30 * time.Second

// peaks are the highest numbers that the Node has shown lately. Up to a peak, pods that are bound and not yet admitted hold the
// number: the scheduler has bound them by it, and with a lower number the kubelet would fail them permanently. They do not hold it
// higher: a pod that was bound past the scheduler and asks for more is the kubelet's to reject.
type peaks map[device.ResourceName]peak

type peak struct {
	number int
	until  time.Time // the Node has shown it then
}

// observe notes what the Node shows. What another writer has raised above our number does not count.
func (all peaks) observe(seen nodeState, ours quantities, now time.Time) {
	for r, n := range seen.allocatable {
		if mine := ours[r]; mine != nil {
			n = min(n, *mine)
		}
		if was, known := all[r]; !known || n >= was.number || now.Sub(was.until) > schedulerDelay {
			all[r] = peak{n, now}
		}
	}
}

// hold returns the numbers of want, or what bound pods ask for where that is more, up to the peak.
func (all peaks) hold(want, bound map[device.ResourceName]int) map[device.ResourceName]int {
	held := make(map[device.ResourceName]int, len(want))
	for r, n := range want {
		held[r] = max(n, min(bound[r], all[r].number))
	}
	return held
}
