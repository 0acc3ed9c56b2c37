package preflight

import (
	"fmt"
	"strings"
)

const (
	// syncObjects is the minimum number of pods, and of containers, in one message from the runtime to an NRI plugin.
	syncObjects = 4
	// syncBytes bounds their total size: a message of 4 MiB, less the uncounted fields of each (mounts, names, the cgroup).
	syncBytes = 4<<20 - 512<<10

	maxNamed = 8
)

// sizes looks for pods and containers that the runtime cannot list to NRI plugins. How the runtime groups them into messages is not
// known, so the largest ones count.
func (j *judge) sizes(f Facts) {
	r := f.Runtime
	switch {
	case r.Err != nil:
		return
	case r.SizesErr != nil:
		j.warn("sizes", "check again; crictl inspect shows one container", "the sizes of the runtime's containers are not known: %v", r.SizesErr)
		return
	}
	sum := 0
	var large []Size
	for _, all := range [][]Size{r.Containers, r.Sandboxes} {
		for _, one := range all[:min(len(all), syncObjects)] {
			sum += one.Bytes
		}
		for _, one := range all {
			if one.Bytes > syncBytes/syncObjects/2 && len(large) < maxNamed {
				large = append(large, one)
			}
		}
	}
	if sum <= syncBytes {
		j.ok("sizes", "the runtime can list its %d containers to NRI plugins", len(r.Containers))
		return
	}
	var names []string
	for _, one := range large {
		names = append(names, fmt.Sprintf("%s (%d bytes)", one.Name, one.Bytes))
	}
	const remedy = "delete these pods, or shorten their arguments, variables and annotations; kubectl apply -f /usr/share/devmgrd/kubernetes/pod-size.yaml keeps such pods out of the cluster"
	text := fmt.Sprintf("four containers and four pods have up to %d bytes together, but the runtime cannot list more than 4 MiB of them to an NRI plugin: %s", sum, strings.Join(names, ", "))
	if f.Daemon != nil && strings.Contains(strings.Join(f.Daemon.Problems, "\n"), "before it has listed its containers") {
		j.fail("sizes", remedy, "%s", text)
		return
	}
	j.warn("sizes", remedy, "%s: devmgrd may not connect after its next start", text)
}
