package nodestatus

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube"
)

// A nodeState is the part of devmgrd's Node that the publisher uses. States are replaced, never edited.
type nodeState struct {
	there       bool // the object exists
	name        string
	uid         types.UID
	version     uint64 // its resourceVersion
	capacity    map[device.ResourceName]int
	allocatable map[device.ResourceName]int
	conditions  map[string]shownCondition // devmgrd's, by type
	cordons     *string                   // the annotation that declares them; nil: there is none
	written     time.Time                 // the latest write, by the API server's clock; zero: not known
}

// nodeStateOf reads a Node from the watch or from a patch's answer.
func nodeStateOf(n *corev1.Node) nodeState {
	var cordons *string
	if text, declared := n.Annotations[device.CordonAnnotation]; declared {
		cordons = &text
	}
	return nodeState{
		there: true, name: n.Name, uid: n.UID, version: kube.ParseVersion(n.ResourceVersion),
		capacity: extended(n.Status.Capacity), allocatable: extended(n.Status.Allocatable),
		conditions: conditionsOf(n), cordons: cordons, written: lastWrite(n),
	}
}

// lastWrite returns when a client has last changed which fields of the Node it manages.
func lastWrite(n *corev1.Node) (at time.Time) {
	for _, m := range n.ManagedFields {
		if m.Time != nil && m.Time.After(at) {
			at = m.Time.Time
		}
	}
	return at
}

// extended returns the extended resources. The API server accepts only whole numbers for these.
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

// differences returns the entries of want that the Node does not show, as capacity and as allocatable.
func (s nodeState) differences(want map[device.ResourceName]int) map[device.ResourceName]int {
	diff := maps.Clone(want)
	maps.DeleteFunc(diff, func(r device.ResourceName, n int) bool { return s.is(r, &n) })
	return diff
}

// is reports whether the Node shows n of a resource, as capacity and as allocatable; nil: whether it shows neither.
func (s nodeState) is(r device.ResourceName, n *int) bool {
	if n == nil {
		return !s.shows(r)
	}
	capacity, shown := s.capacity[r]
	allocatable, also := s.allocatable[r]
	return shown && also && capacity == *n && allocatable == *n
}

// quantities are the values that a patch sets; nil: the patch removes the resource from the Node.
type quantities map[device.ResourceName]*int

// step returns the next patch on the way to diff, and how long to wait if there is none. An allocatable is not lowered directly:
// step removes the resource from the Node first and restores the lower value after a rest, whose remaining time rest returns. Without a
// value the scheduler stops binding pods, and a pod that it has just bound reaches a kubelet that does not check a resource
// which the Node does not show. With a lower value the kubelet would fail that pod permanently.
func (s nodeState) step(diff map[device.ResourceName]int, rest func(device.ResourceName) time.Duration) (next quantities, wait time.Duration) {
	next = quantities{}
	for r, n := range diff {
		switch left := rest(r); {
		case n < s.allocatable[r]:
			next[r] = nil
		case left > 0 && !s.shows(r):
			if wait == 0 || left < wait {
				wait = left
			}
		default:
			next[r] = &n
		}
	}
	return next, wait
}

// shows reports whether the Node has any value of the resource.
func (s nodeState) shows(r device.ResourceName) bool {
	_, capacity := s.capacity[r]
	_, allocatable := s.allocatable[r]
	return capacity || allocatable
}

// shown returns the resources, of those given, of which the Node has any value.
func (s nodeState) shown(of []device.ResourceName) (all []device.ResourceName) {
	for _, r := range of {
		if s.shows(r) {
			all = append(all, r)
		}
	}
	return all
}

// overwritten returns, in order, the resources for which the Node does not show the values of devmgrd's patches.
func (s nodeState) overwritten(ours quantities) (all []device.ResourceName) {
	for r, n := range ours {
		if !s.is(r, n) {
			all = append(all, r)
		}
	}
	slices.Sort(all)
	return all
}

// lacks returns the number of wanted values that the Node does not show.
func (s nodeState) lacks(want quantities) (left int) {
	for r, n := range want {
		if !s.is(r, n) {
			left++
		}
	}
	return left
}

// patch returns a JSON merge patch (RFC 7386) for a Node's status that sets these values and changes nothing else.
func patch(next quantities) ([]byte, error) {
	list := map[device.ResourceName]any{}
	for r, n := range next {
		list[r] = nil
		if n != nil {
			list[r] = strconv.Itoa(*n)
		}
	}
	body, err := json.Marshal(map[string]any{"status": map[string]any{"capacity": list, "allocatable": list}})
	if err != nil {
		return nil, fmt.Errorf("writing a patch: %w", err)
	}
	return body, nil
}
