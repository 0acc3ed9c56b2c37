package node

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Processes returns the IDs of the processes whose program has this path on their own root, also if the file has been removed.
func Processes(program string) (pids []int) {
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range links {
		exe, err := os.Readlink(link)
		if err != nil || strings.TrimSuffix(exe, " (deleted)") != program {
			continue // of another program, or it has ended meanwhile
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
