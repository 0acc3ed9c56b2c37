package nodestatus

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube"
)

// A sight is what one look at our Node tells us. Sights are replaced, never edited.
type sight struct {
	there       bool   // the object exists
	version     uint64 // its resourceVersion
	capacity    map[device.ResourceName]int
	allocatable map[device.ResourceName]int
}

// sightOf reads a Node as the watch or a patch's answer delivers it.
func sightOf(obj any) (sight, bool) {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return sight{}, false
	}
	return sight{true, kube.ParseVersion(n.ResourceVersion), extended(n.Status.Capacity), extended(n.Status.Allocatable)}, true
}

// goneAt reads the version of the Node's end.
func goneAt(obj any) uint64 {
	if tomb, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tomb.Obj
	}
	if n, ok := obj.(*corev1.Node); ok {
		return kube.ParseVersion(n.ResourceVersion)
	}
	return 0
}

// extended picks the extended resources. The API server takes whole numbers only for these.
func extended(list corev1.ResourceList) map[device.ResourceName]int {
	numbers := map[device.ResourceName]int{}
	for name, quantity := range list {
		if !strings.Contains(string(name), "/") {
			continue // cpu, memory and the like
		}
		if resource, err := device.ParseResourceName(string(name)); err == nil {
			numbers[resource] = int(quantity.Value())
		}
	}
	return numbers
}

// differences gives the numbers of want that the Node does not show, as capacity and as allocatable.
func (s sight) differences(want map[device.ResourceName]int) map[device.ResourceName]int {
	diff := maps.Clone(want)
	maps.DeleteFunc(diff, func(r device.ResourceName, n int) bool {
		capacity, ok := s.capacity[r]
		allocatable, also := s.allocatable[r]
		return ok && also && capacity == n && allocatable == n
	})
	return diff
}

// raised gives the numbers of want, or of the Node's capacity where that is more.
func (s sight) raised(want map[device.ResourceName]int) map[device.ResourceName]int {
	raised := make(map[device.ResourceName]int, len(want))
	for r, n := range want {
		raised[r] = max(n, s.capacity[r])
	}
	return raised
}

// patch makes a JSON merge patch (RFC 7386) for the status of a Node that sets these numbers and touches nothing else.
func patch(numbers map[device.ResourceName]int) ([]byte, error) {
	list := map[device.ResourceName]string{}
	for r, n := range numbers {
		list[r] = strconv.Itoa(n)
	}
	body, err := json.Marshal(map[string]any{"status": map[string]any{"capacity": list, "allocatable": list}})
	if err != nil {
		return nil, fmt.Errorf("writing a patch: %w", err)
	}
	return body, nil
}

// newObjects gives what the watch decodes into.
func newObjects() (object, list runtime.Object) { return &corev1.Node{}, &corev1.NodeList{} }
