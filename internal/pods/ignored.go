package pods

import (
	"strings"

	"github.com/devmgrd/devmgrd/internal/device"
)

// ignored are the extended resources that no device plugin serves: names, or "domain/*".
type ignored map[string]bool

func ignoring(patterns []string) ignored {
	set := ignored{}
	for _, p := range patterns {
		set[p] = true
	}
	return set
}

func (set ignored) has(r device.ResourceName) bool {
	domain, _, _ := strings.Cut(string(r), "/")
	return set[string(r)] || set[domain+"/*"]
}
