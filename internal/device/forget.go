package device

import (
	"fmt"
	"strings"

	"github.com/devmgrd/devmgrd/internal/lists"
)

// An InUseError reports why a resource cannot be forgotten: a Serving plugin, or Pods that have or request its devices.
type InUseError struct {
	Resource ResourceName
	Serving  bool
	Pods     []Pod
}

// maxNamed is the number of pods that a message names.
const maxNamed = 5

func (e *InUseError) Error() string {
	if e.Serving {
		return fmt.Sprintf("%s is in use: its device plugin is serving; stop the plugin first", e.Resource)
	}
	names := lists.Map(e.Pods, func(p Pod) string {
		if p.Name == "" {
			return "a pod with UID " + string(p.UID)
		}
		return p.String()
	})
	return fmt.Sprintf("%s is in use by %s: pods that hold or request its devices must end first", e.Resource, strings.Join(lists.First(names, maxNamed), ", "))
}
