package nodestatus

import (
	"maps"

	"github.com/devmgrd/devmgrd/internal/device"
)

// kept returns want without falls below the given values.
func kept(want, values map[device.ResourceName]int) map[device.ResourceName]int {
	kept := maps.Clone(want)
	for r, n := range values {
		if _, wanted := want[r]; wanted {
			kept[r] = max(want[r], n)
		}
	}
	return kept
}

// capped returns want with rises above the given values only as far as pods are bound. Resources without such a value are not capped.
func capped(want, values, bound map[device.ResourceName]int) map[device.ResourceName]int {
	capped := maps.Clone(want)
	for r, n := range values {
		if _, wanted := want[r]; wanted {
			capped[r] = min(want[r], max(n, bound[r]))
		}
	}
	return capped
}

// over returns the values of below, with those of above instead where there are any.
func over(below, above map[device.ResourceName]int) map[device.ResourceName]int {
	all := make(map[device.ResourceName]int, len(below)+len(above))
	maps.Copy(all, below)
	maps.Copy(all, above)
	return all
}

// higher returns the values, or those of the other map where they are higher.
func higher(values, others map[device.ResourceName]int) map[device.ResourceName]int {
	all := maps.Clone(values)
	for r, n := range values {
		all[r] = max(n, others[r])
	}
	return all
}

// positive returns the values above zero.
func positive(values map[device.ResourceName]int) map[device.ResourceName]int {
	all := map[device.ResourceName]int{}
	for r, n := range values {
		if n > 0 {
			all[r] = n
		}
	}
	return all
}
