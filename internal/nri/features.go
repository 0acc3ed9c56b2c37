package nri

import (
	"strconv"
	"strings"
)

// features are what a runtime can be told through NRI. Older ones ignore what they do not know, without an error, so
// devmgrd has to know.
type features struct {
	runtime string // name and version, for people
	cdi     bool   // it injects CDI devices
	rules   bool   // it takes rules of the devices cgroup
	// It asks ValidateContainerAdjustment. One that does not know the event takes no plugin that wants to be asked.
	validates bool
}

// featuresOf goes by the releases' source: containerd injects CDI devices since 2.1 (and since 1.7.30 in the 1.7
// series), and takes device rules and has validators since 2.2 (NRI 0.10); CRI-O has all of it since 1.34. Of other
// runtimes nothing is known.
func featuresOf(runtime, version string) features {
	a := features{runtime: runtime + " " + version}
	at := func(major, minor, patch int) bool {
		v := numbers(version)
		for i, n := range [3]int{major, minor, patch} {
			if v[i] != n {
				return v[i] > n
			}
		}
		return true
	}
	switch runtime {
	case "containerd":
		a.cdi = at(2, 1, 0) || at(1, 7, 30) && !at(1, 8, 0)
		a.rules, a.validates = at(2, 2, 0), at(2, 2, 0)
	case "cri-o":
		a.cdi, a.rules, a.validates = at(1, 34, 0), at(1, 34, 0), at(1, 34, 0)
	}
	return a
}

// numbers reads the first three numbers of a version such as "v2.4.2-rc.1+unknown".
func numbers(version string) (v [3]int) {
	version, _, _ = strings.Cut(strings.TrimPrefix(version, "v"), "+")
	version, _, _ = strings.Cut(version, "-")
	for i, part := range strings.SplitN(version, ".", 3) {
		v[i], _ = strconv.Atoi(part)
	}
	return v
}
