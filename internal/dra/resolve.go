package dra

import (
	"fmt"
	"maps"
	"slices"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
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
	for _, one := range p.claims {
		p.waits = p.waits || one.unlisted() // also where no container of this pod uses the device
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
			if of := p.claims[use.Claim]; of != nil {
				for _, one := range of.results {
					if one.of(use.Request) {
						n++
					}
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
	r := resolution{pod: p, demand: d}
	for _, name := range slices.Sorted(maps.Keys(d.Wants)) {
		switch needs, known := c.NeedsClaim(name, p.demand.Created); {
		case !known:
			r.wait(device.Allocating, "devmgrd is reading whether the Node shows %s", name)
		case needs:
			r.wait(device.NoClaim, "container %s requests %s, which this node offers through Dynamic Resource Allocation, and the pod has no claim for it", d.Container.Name, name)
		}
	}
	for _, use := range d.Claims {
		known, read := p.claims[use.Claim]
		switch {
		case read:
			r.add(use, known)
		case use.Claim == "":
			r.block(device.ClaimUnknown, "a ResourceClaim of the pod has not been made yet")
		case p.problem == "":
			r.block(device.Allocating, "devmgrd is reading ResourceClaim %s", use.Claim)
		default:
			r.block(device.ClaimUnknown, "%s", p.problem)
		}
	}
	return r.result()
}

// A resolution collects the devices that the claims of one container name.
type resolution struct {
	pod      *claimingPod
	demand   device.Demand
	fixed    map[device.ResourceName][]device.ID
	claimed  map[device.ResourceName]map[device.ID]device.ClaimUID
	requests map[device.ResourceName][]device.ClaimRequest
}

// block notes why the container cannot have its devices; the first reason stays.
func (r *resolution) block(why device.Reason, format string, args ...any) {
	if r.demand.Mistake == "" {
		r.demand.Blocked, r.demand.Mistake = why, device.ClipTo(fmt.Sprintf(format, args...), maxMistake)
	}
}

// wait is block for a reason that ends without a change of the pod or its claims.
func (r *resolution) wait(why device.Reason, format string, args ...any) {
	r.pod.waits = true
	r.block(why, format, args...)
}

// add adds the devices of a claim that a container uses.
func (r *resolution) add(use device.ClaimUse, of *claim) {
	for i, one := range of.results {
		switch chosen := of.devices[i]; {
		case !one.of(use.Request):
		case one.admin:
			r.block(device.NoClaim, "ResourceClaim %s has adminAccess, which devmgrd does not offer", use.Claim)
		case chosen.Resource == "":
			r.wait(device.DeviceGone, "the scheduler has chosen device %s of pool %s in ResourceClaim %s, which no device plugin lists", one.device, one.pool, use.Claim)
		default:
			r.addDevice(use, of.uid, one, chosen)
		}
	}
}

func (r *resolution) addDevice(use device.ClaimUse, claim device.ClaimUID, one result, chosen device.Key) {
	name, id := chosen.Resource, chosen.ID
	if r.fixed == nil {
		r.fixed, r.requests = map[device.ResourceName][]device.ID{}, map[device.ResourceName][]device.ClaimRequest{}
	}
	if by := (device.ClaimRequest{Claim: claim, Request: one.base()}); !slices.Contains(r.requests[name], by) {
		r.requests[name] = append(r.requests[name], by)
	}
	if slices.Contains(r.fixed[name], id) {
		return
	}
	r.fixed[name] = append(r.fixed[name], id)
	if use.Resource == name {
		return // the scheduler has made the claim for the pod's request
	}
	if r.claimed == nil {
		r.claimed = map[device.ResourceName]map[device.ID]device.ClaimUID{}
	}
	lists.Inner(r.claimed, name)[id] = claim
}

// result returns the container's demand.
func (r *resolution) result() device.Demand {
	if len(r.fixed) == 0 {
		return r.demand
	}
	for _, by := range r.requests {
		slices.SortFunc(by, device.ClaimRequest.Compare)
	}
	wants := map[device.ResourceName]int{}
	maps.Copy(wants, r.demand.Wants)
	for _, name := range slices.Sorted(maps.Keys(r.fixed)) {
		if wants[name] > 0 { // the pod was bound while the Node showed the resource
			r.block(device.NoClaim, "container %s requests %s, and has devices of it by a claim as well: give them to two containers", r.demand.Container.Name, name)
		}
		slices.SortFunc(r.fixed[name], device.CompareIDs)
		wants[name] = len(r.fixed[name])
	}
	r.demand.Fixed, r.demand.Claimed, r.demand.Requests, r.demand.Wants = r.fixed, r.claimed, r.requests, wants
	return r.demand
}
