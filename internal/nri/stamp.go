package nri

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/nri/pkg/api"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
)

// stampKey is the annotation that names the devices of a container. The runtime keeps it with the container and lists it
// after a restart of either side: a second copy of the state file that no crash can take away. Its value is an object with
// one member for each resource:
//
//	{"vendor.com/gpu":["id1","id2"]}                                  short lists
//	{"vendor.com/mem":{"count":4,"ranges":[["x-7","x-9"],["y"]]}}     long ones: first and last ID of consecutive numbers
//	{"vendor.com/mem":{"count":60000,"sha256":"..."}}                 what would be longer still: device.Digest
//
// A container has to fit into one NRI message of 4 MiB, or no plugin can be synchronized with it. The list behind a digest is
// in the state file alone. Where that is lost, nothing of the resource is given out until the container has ended.
const stampKey = "devmgrd.io/assignment"

// Limits of a stamp in bytes. maxStamp bounds the annotation that devmgrd reads: NRI's messages are no longer.
const (
	maxPlain  = 4 << 10  // a stamp of lists only
	maxList   = 1 << 10  // one resource as a list, in a longer stamp
	maxRanges = 4 << 10  // one resource as ranges
	maxRanged = 16 << 10 // all resources as lists or ranges: beyond that, digests
	maxStamp  = 4 << 20
)

// maxExpanded bounds the devices in all stamps of one synchronization, and maxCopied those that pods' own annotations name, and those in the stamp of a container that starts. Lists and ranges beyond it count as
// a digest without a match.
const (
	maxExpanded = 1 << 20
	maxCopied   = 4 << 10
)

// fromPod reports whether a container's stamp is a copy of an annotation of its pod: CRI-O copies all of them, and containerd those that its configuration
// names. The hook removes or replaces the copy (withoutCopy), but not where a container is created while devmgrd is away. Such a stamp counts as far as the pod requests
// the devices, as any does; its digests do not count, as no request fits them.
func fromPod(pod *api.PodSandbox, ctr *api.Container) bool {
	text := pod.GetAnnotations()[stampKey]
	return text != "" && text == ctr.GetAnnotations()[stampKey]
}

// withoutCopy removes a stamp that a container has and that devmgrd has not given to it.
func withoutCopy(adj *api.ContainerAdjustment, ctr *api.Container) {
	if _, has := ctr.GetAnnotations()[stampKey]; !has {
		return
	}
	if _, given := adj.GetAnnotations()[stampKey]; !given {
		adj.RemoveAnnotation(stampKey)
	}
}

// A sealed is the value of a resource with a long list.
type sealed struct {
	Count  int        `json:"count"`
	Ranges [][]string `json:"ranges,omitempty"`
	SHA256 string     `json:"sha256,omitempty"`
}

// stamp returns the value of the annotation.
func stamp(as device.Assignment) string {
	plain := map[device.ResourceName]any{}
	for _, s := range as.Shares {
		plain[s.Resource] = s.IDs
	}
	if text := marshal(plain); len(text) <= maxPlain {
		return text
	}
	ranged, digests := map[device.ResourceName]any{}, map[device.ResourceName]any{}
	for _, s := range as.Shares {
		digest := sealed{Count: len(s.IDs), SHA256: device.Digest(s.IDs)}
		list, ranges := any(s.IDs), any(sealed{Count: len(s.IDs), Ranges: rangesOf(s.IDs)})
		switch {
		case len(marshal(list)) <= maxList:
			ranged[s.Resource], digests[s.Resource] = list, digest
			if len(marshal(list)) <= len(marshal(digest)) {
				digests[s.Resource] = list
			}
			continue
		case len(marshal(ranges)) <= maxRanges:
			ranged[s.Resource] = ranges
		default:
			ranged[s.Resource] = digest
		}
		digests[s.Resource] = digest
	}
	if text := marshal(ranged); len(text) <= maxRanged {
		return text
	}
	return marshal(digests)
}

func marshal(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings can be marshalled
	}
	return string(text)
}

// stamped returns the devices and the digests of an annotation. Any client of the runtime can write the annotation, so invalid
// resources and devices are left out, and an unreadable value is a digest without a match. left is the number of devices that
// may still be read.
func stamped(annotations map[string]string, left *int) (ids map[device.ResourceName][]device.ID, digests map[device.ResourceName]string) {
	text := annotations[stampKey]
	var found map[string]json.RawMessage
	if len(text) > maxStamp || json.Unmarshal([]byte(text), &found) != nil {
		return nil, nil
	}
	for name, value := range found {
		resource, err := device.ParseResourceName(name)
		if err != nil {
			continue
		}
		var all []device.ID
		var digest string
		if bytes.HasPrefix(value, []byte("{")) {
			all, digest = unseal(value, left)
		} else {
			if json.Unmarshal(value, &all) != nil {
				continue
			}
			if all = slices.DeleteFunc(all, func(id device.ID) bool { return id == "" }); len(all) == 0 {
				continue
			}
			if len(all) > *left {
				all = nil
			}
			*left -= len(all)
		}
		if all != nil {
			lists.Put(&ids, resource, all)
		} else {
			lists.Put(&digests, resource, digest)
		}
	}
	return ids, digests
}

// unseal returns the devices of a value's ranges in ascending order, or else its digest.
func unseal(value []byte, left *int) ([]device.ID, string) {
	var s sealed
	if json.Unmarshal(value, &s) != nil {
		return nil, ""
	}
	if s.SHA256 != "" || s.Count <= 0 || s.Count > *left {
		return nil, s.SHA256
	}
	var all []device.ID
	for _, r := range s.Ranges {
		ids, ok := expandRange(r, s.Count-len(all))
		if !ok {
			return nil, ""
		}
		all = append(all, ids...)
	}
	if len(all) != s.Count {
		return nil, ""
	}
	*left -= len(all)
	slices.Sort(all)
	return all, ""
}

// A numbered is an ID that ends in a number: the text before it, and the number of digits if it is fixed (0: it is not).
type numbered struct {
	prefix string
	width  int
}

// splitNumber splits an ID before its last number, of at most nine digits.
func splitNumber(id string) (as numbered, n int, ok bool) {
	at := len(id)
	for at > 0 && len(id)-at < 9 && id[at-1] >= '0' && id[at-1] <= '9' {
		at--
	}
	if at == len(id) {
		return as, 0, false
	}
	n, err := strconv.Atoi(id[at:])
	if err != nil {
		return as, 0, false
	}
	as.prefix = id[:at]
	if digits := id[at:]; digits[0] == '0' && len(digits) > 1 {
		as.width = len(digits)
	}
	return as, n, true
}

func (as numbered) id(n int) string {
	digits := strconv.Itoa(n)
	return as.prefix + strings.Repeat("0", max(0, as.width-len(digits))) + digits
}

// rangesOf returns ranges of IDs: each is one ID, or the first and the last of consecutive numbers. IDs are unique.
func rangesOf(ids []device.ID) [][]string {
	numbers := map[numbered][]int{}
	var order []numbered
	var all [][]string
	for _, id := range ids {
		as, n, ok := splitNumber(string(id))
		if !ok {
			all = append(all, []string{string(id)})
			continue
		}
		if numbers[as] == nil {
			order = append(order, as)
		}
		numbers[as] = append(numbers[as], n)
	}
	for _, as := range order {
		of := numbers[as]
		slices.Sort(of)
		for i := 0; i < len(of); {
			end := i + 1
			for end < len(of) && of[end] == of[end-1]+1 {
				end++
			}
			if end == i+1 {
				all = append(all, []string{as.id(of[i])})
			} else {
				all = append(all, []string{as.id(of[i]), as.id(of[end-1])})
			}
			i = end
		}
	}
	return all
}

// expandRange returns the IDs of one range; false: it has more than most, or is none.
func expandRange(r []string, most int) ([]device.ID, bool) {
	switch {
	case len(r) == 1 && r[0] != "" && most > 0:
		return []device.ID{device.ID(r[0])}, true
	case len(r) != 2:
		return nil, false
	}
	from, first, ok := splitNumber(r[0])
	to, last, also := splitNumber(r[1])
	if !ok || !also || from != to || last < first || last-first >= most {
		return nil, false
	}
	all := make([]device.ID, 0, last-first+1)
	for n := first; n <= last; n++ {
		all = append(all, device.ID(from.id(n)))
	}
	return all, true
}
