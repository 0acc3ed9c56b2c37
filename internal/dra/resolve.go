package dra

import (
	"fmt"
	"maps"
	"slices"

	"github.com/devmgrd/devmgrd/internal/device"
)

// maxPodUses bounds how many devices the containers of a pod use by claims, each container's counted, and maxUses those of all pods: any number
// of containers of any number of pods may use the devices of one claim.
// A pod with fewUses always has room, and so has a namespace's largest pod: otherwise a tenant's large pods would leave none to others.
const maxPodUses, maxUses, fewUses = 1024, 16384, 128

// resolveLocked turns a pod's claims into the devices that they name.
func (c *Claims) resolveLocked(p *claimingPod) {
	c.countLocked(p, 0)
	p.resolved, p.waits = p.demand, false
	p.resolved.Demands = nil
	full := ""
	switch uses := p.devices(); {
	case uses > maxPodUses:
		full = fmt.Sprintf("the pod's containers use more than %d devices by ResourceClaims, each container's counted: have fewer containers use a claim", maxPodUses)
	case c.uses+uses > maxUses && uses > fewUses && c.usesOf[p.demand.Pod.Namespace]+uses > maxPodUses:
		full = fmt.Sprintf("the containers of this node's pods use more than %d devices by ResourceClaims; a pod with more than %d waits until others have ended", maxUses, fewUses)
		p.waits = true
	default:
		c.countLocked(p, uses)
	}
	for _, d := range p.demand.Demands {
		if full != "" {
			d = device.Demand{Container: d.Container, Kind: d.Kind, Blocked: device.PodTooLarge, Mistake: full}
		} else {
			d = c.resolveContainer(p, d)
		}
		if len(d.Wants) > 0 || d.Mistake != "" {
			p.resolved.Demands = append(p.resolved.Demands, d)
		}
	}
}

// countLocked sets how many devices a pod's containers use.
func (c *Claims) countLocked(p *claimingPod, uses int) {
	more, of := uses-p.uses, p.demand.Pod.Namespace
	p.uses = uses
	c.uses += more
	c.usesOf[of] += more
	if c.usesOf[of] == 0 {
		delete(c.usesOf, of)
	}
}

// devices returns how many devices the pod's containers use by claims that have been read, or a number above maxPodUses.
func (p *claimingPod) devices() (n int) {
	for _, d := range p.demand.Demands {
		for _, use := range d.Claims {
			for _, one := range p.claims[use.Claim].results {
				if one.of(use.Request) {
					n++
				}
			}
			if n > maxPodUses {
				return n
			}
		}
	}
	return n
}

// resolveContainer returns a container's demand with the devices that its claims name.
func (c *Claims) resolveContainer(p *claimingPod, d device.Demand) device.Demand {
	block := func(why device.Reason, format string, args ...any) {
		if d.Mistake == "" {
			d.Blocked, d.Mistake = why, device.ClipTo(fmt.Sprintf(format, args...), maxMistake)
		}
	}
	for _, r := range slices.Sorted(maps.Keys(d.Wants)) {
		switch needs, known := c.NeedsClaim(r, p.demand.Created); {
		case !known:
			p.waits = true
			block(device.Allocating, "devmgrd is reading whether the Node shows %s", r)
		case needs:
			p.waits = true
			block(device.NoClaim, "container %s requests %s, which this node offers through Dynamic Resource Allocation, and the pod has no claim for it", d.Container.Name, r)
		}
	}
	if len(d.Claims) == 0 {
		return d
	}
	fixed, claimed := map[device.ResourceName][]device.ID{}, map[device.ResourceName]map[device.ID]device.ClaimUID{}
	requests := map[device.ResourceName][]device.ClaimRequest{}
	for _, use := range d.Claims {
		known, read := p.claims[use.Claim]
		if !read {
			if use.Claim == "" {
				block(device.ClaimUnknown, "a ResourceClaim of the pod has not been made yet")
			} else if p.problem == "" {
				block(device.Allocating, "devmgrd is reading ResourceClaim %s", use.Claim)
			} else {
				block(device.ClaimUnknown, "%s", p.problem)
			}
			continue
		}
		for _, one := range known.results {
			if !one.of(use.Request) {
				continue
			}
			if one.admin {
				block(device.NoClaim, "ResourceClaim %s has adminAccess, which devmgrd does not offer", use.Claim)
				continue
			}
			chosen, listed := p.found[one]
			if !listed {
				if chosen, listed = c.index.find(one); listed {
					p.found[one] = chosen
				}
			}
			r, id := chosen.Resource, chosen.ID
			if !listed {
				p.waits = true
				block(device.DeviceGone, "the scheduler has chosen device %s of pool %s in ResourceClaim %s, which no device plugin lists", one.device, one.pool, use.Claim)
				continue
			}
			if by := (device.ClaimRequest{Claim: known.uid, Request: one.base()}); !slices.Contains(requests[r], by) {
				requests[r] = append(requests[r], by)
			}
			if slices.Contains(fixed[r], id) {
				continue
			}
			fixed[r] = append(fixed[r], id)
			if use.Resource == r {
				continue // the scheduler has made the claim for the pod's request
			}
			if claimed[r] == nil {
				claimed[r] = map[device.ID]device.ClaimUID{}
			}
			claimed[r][id] = known.uid
		}
	}
	if len(fixed) == 0 {
		return d
	}
	for _, by := range requests {
		slices.SortFunc(by, device.ClaimRequest.Compare)
	}
	d.Fixed, d.Requests, d.Wants = fixed, requests, maps.Clone(d.Wants)
	if d.Wants == nil {
		d.Wants = map[device.ResourceName]int{}
	}
	for r, ids := range fixed {
		if d.Wants[r] > 0 { // the pod was bound while the Node showed the resource
			block(device.NoClaim, "container %s requests %s, and has devices of it by a claim as well: give them to two containers", d.Container.Name, r)
		}
		slices.SortFunc(ids, device.CompareIDs)
		d.Wants[r] = len(ids)
	}
	if len(claimed) > 0 {
		d.Claimed = claimed
	}
	return d
}
