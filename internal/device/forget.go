package device

import (
	"fmt"
	"strings"
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
	names := make([]string, min(len(e.Pods), maxNamed))
	for i := range names {
		if names[i] = e.Pods[i].String(); e.Pods[i].Name == "" {
			names[i] = "a pod with UID " + string(e.Pods[i].UID)
		}
	}
	more := ""
	if len(e.Pods) > maxNamed {
		more = fmt.Sprintf(" and %d more", len(e.Pods)-maxNamed)
	}
	return fmt.Sprintf("%s is in use by %s%s: pods that hold or request its devices must end first", e.Resource, strings.Join(names, ", "), more)
}
