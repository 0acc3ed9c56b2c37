package openers

import (
	"fmt"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/cgroups"
	"github.com/devmgrd/devmgrd/internal/device"
)

// A record is what a scan has found so far.
type record struct {
	scan    Scan
	index   map[Device]int // into devices
	devices []Device
	count   []int // openers of each device
	limit   int   // openers of one device with their details

	owner   *worker   // which may change it
	queue   []int     // the PIDs that are left in this round
	current int       // the PID at which the owner is; 0: the list of processes
	since   time.Time // when it came there
	slow    int       // processes and pods that the scan has waited for
	rounds  int
	seen    set
	unseen  []unseen                        // to be looked at again
	files   map[device.PodUID]int           // of each pod that have been looked at
	took    map[device.PodUID]time.Duration // by each pod
	unknown map[device.PodUID]bool          // pods with an Unknown
}

// An unseen process was not seen in full at the first look.
type unseen struct {
	pid     int
	pod     device.PodUID
	exiting bool
}

// A hold is how the current process holds a device.
type hold struct {
	device int // index
	how    How
}

func newRecord(devices []Device) *record {
	r := &record{index: make(map[Device]int, len(devices)), files: map[device.PodUID]int{}, took: map[device.PodUID]time.Duration{}, unknown: map[device.PodUID]bool{}}
	for _, d := range devices {
		if _, known := r.index[d]; !known {
			r.index[d] = len(r.devices)
			r.devices = append(r.devices, d)
		}
	}
	r.count = make([]int, len(r.devices))
	r.limit = min(maxOpeners, maxAllOpeners/len(r.devices))
	return r
}

func (r *record) addOpener(p Process, h hold) {
	d := r.devices[h.device]
	r.count[h.device]++
	switch {
	case r.count[h.device] <= r.limit:
		r.scan.Openers = append(r.scan.Openers, Opener{d, p, h.how})
	case !slices.Contains(r.scan.More, d):
		r.scan.More = append(r.scan.More, d)
	}
}

func (r *record) addUnknown(p Process, reason string) error {
	if pod := cgroups.PodOf(p.Cgroup); pod != "" {
		if !r.unknown[pod] {
			r.unknown[pod] = true
			r.scan.Unknown = append(r.scan.Unknown, Unknown{p, reason})
		}
		return nil
	}
	if len(r.scan.Unknown)-len(r.unknown) == maxUnknown {
		return fmt.Errorf("more than %d processes outside of pods are unknown, such as process %d (%q), which %s", maxUnknown, p.PID, p.Command, reason)
	}
	r.scan.Unknown = append(r.scan.Unknown, Unknown{p, reason})
	return nil
}

// A set holds PIDs, one bit for each: PIDs are below 2^22.
type set []uint64

// add adds a PID, and reports whether it was there.
func (s *set) add(pid int) bool {
	if words := pid/64 + 1 - len(*s); words > 0 {
		*s = append(*s, make([]uint64, words)...)
	}
	word, bit := &(*s)[pid/64], uint64(1)<<(pid%64)
	was := *word&bit != 0
	*word |= bit
	return was
}
