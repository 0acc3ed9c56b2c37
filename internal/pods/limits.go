package pods

import (
	"fmt"
	"strings"

	"github.com/devmgrd/devmgrd/internal/device"
)

// Anyone who may create pods decides what these cost here, in memory and under locks: a pod that is bound by hand may name thousands of
// resources that no plugin has. The kubelet keeps whole pods, and its own limit of pods is no limit for the API server.
const (
	maxNames    = 64        // extended resources of one pod
	maxClaims   = 64        // ResourceClaims of one pod
	maxPodSize  = 256 << 10 // bytes of one pod's requests, as size counts them
	maxPodsSize = 128 << 20 // of all pods of the node together
	// maxMirrorsSize is that of mirror pods. Others may be forged and, unlike pods that the kubelet runs, as many as the API server takes.
	maxMirrorsSize = 16 << 20
)

// perText is what a text takes in memory besides its bytes.
const perText = 64

// A room is how many bytes of a pod's texts are still read: the rest of a pod beyond its limit costs nothing at each of its changes.
type room struct{ left int }

func (r *room) take(text string) { r.left -= perText + len(text) }

// add appends a text of a pod to a list while there is room. The text may be a part of a much longer one, which is not kept.
func (r *room) add(all []string, text string) []string {
	if r.left > 0 {
		r.take(text)
		all = append(all, strings.Clone(text))
	}
	return all
}

// bounded returns the demand of a pod within the limits. A pod beyond them keeps its containers that request devices, which wait.
func bounded(d device.PodDemand, room *room) device.PodDemand {
	why := excess(d, room)
	if why == "" {
		return d
	}
	d.Containers, d.Sidecars = nil, 0
	for i, of := range d.Demands {
		d.Demands[i] = device.Demand{Container: of.Container, Kind: of.Kind, Blocked: device.PodTooLarge, Mistake: why}
	}
	return d
}

// excess returns which limit of one pod a demand exceeds; empty: none.
func excess(d device.PodDemand, room *room) string {
	names, large := len(resources(d)), room.left <= 0 || size(d) > maxPodSize
	switch {
	case names > maxNames:
		return fmt.Sprintf("the pod requests %d extended resources, and may request %d", names, maxNames)
	case claims(d) > maxClaims:
		return fmt.Sprintf("the pod names %d ResourceClaims, and may name %d", claims(d), maxClaims)
	case large && len(d.Demands) > 0:
		return fmt.Sprintf("the names of the resources, containers, variables, claims and volumes of the pod's containers take more than %d bytes", maxPodSize)
	case large:
		return "too many containers"
	}
	return ""
}

// resources returns the extended resources that a pod requests.
func resources(d device.PodDemand) map[device.ResourceName]bool {
	names := map[device.ResourceName]bool{}
	for _, of := range d.Demands {
		for r := range of.Wants {
			names[r] = true
		}
	}
	return names
}

// claims returns how many ResourceClaims a pod names.
func claims(d device.PodDemand) int {
	names := map[string]bool{}
	for _, of := range d.Demands {
		for _, use := range of.Claims {
			names[use.Claim] = true
		}
	}
	return len(names)
}

// size returns about how many bytes a demand takes in memory, with the allocator's tables of resources that only this pod names.
func size(d device.PodDemand) int {
	const pod, container, table, conditions = 512, 384, 1536, 3 << 10
	n := pod + table*len(resources(d))
	if len(d.Demands) > 0 {
		n += conditions // what the pod shows of devmgrd's
	}
	text := func(all ...string) {
		for _, s := range all {
			n += perText + len(s)
		}
	}
	text(d.Containers...)
	for _, of := range d.Demands {
		n += container
		text(of.Env...)
		text(of.Refs...)
		text(of.Volumes...)
		for r := range of.Wants {
			text(string(r))
		}
		for _, use := range of.Claims {
			text(use.Claim, use.Request, string(use.Resource))
		}
		for _, s := range of.Select {
			text(s.Use...)
			text(s.Avoid...)
		}
	}
	return n
}
