package allocator_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// provedFPGAs are the FPGAs whose release has been proved since something else has happened to them.
type provedFPGAs struct {
	mu  sync.Mutex
	ids map[device.ID]bool
}

func (f *provedFPGAs) set(all []device.Assignment, is bool) {
	for _, s := range device.Shares(all) {
		if s.Resource == fpga {
			f.setIDs(s.IDs, is)
		}
	}
}

func (f *provedFPGAs) setIDs(ids []device.ID, is bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range ids {
		f.ids[id] = is
	}
}

func (f *provedFPGAs) has(id device.ID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ids[id]
}

// A sharedClaim is a claim of which the scheduler has chosen the devices.
type sharedClaim struct {
	uid  device.ClaimUID
	ids  []device.ID
	pods map[string]bool // the claim is reserved for
}

// fpgasInUse are the FPGAs that containers run with.
type fpgasInUse struct {
	mu sync.Mutex
	by map[device.ID]int // number of containers
}

func (f *fpgasInUse) add(ids []device.ID, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range ids {
		f.by[id] += n
	}
}

func (f *fpgasInUse) any(ids []device.ID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(ids, func(id device.ID) bool { return f.by[id] > 0 })
}

const fpgas = 4

// bindClaim has the scheduler bind a pod with a claim: with a new one, for devices that are in no other claim, or with one that other pods
// have. Deleting a pod frees its claims' devices for the scheduler at once.
func (c *churning) bindClaim() string {
	name := c.pick(slices.Collect(maps.Keys(c.claims)))
	one := c.claims[name]
	if one == nil || c.IntN(2) == 0 {
		free := c.unclaimed()
		most := len(free) - c.byNumber()
		if most <= 0 {
			return "nothing"
		}
		c.Shuffle(len(free), func(i, j int) { free[i], free[j] = free[j], free[i] })
		c.claimed++
		name = fmt.Sprint("claim-", c.claimed)
		one = &sharedClaim{device.ClaimUID(name), slices.Sorted(slices.Values(free[:1+c.IntN(most)])), map[string]bool{}}
		c.claims[name] = one
	}
	return fmt.Sprintf("bind %s with %s: %v", c.use(one, c.IntN(3) == 0), name, one.ids)
}

// use binds a pod with a claim, which also requests a NIC if slow: the plugin of the NICs takes its time. use returns the pod's name.
func (c *churning) use(one *sharedClaim, slow bool) string {
	c.claiming++
	n := fmt.Sprint("claim", c.claiming) // never one of a pod that the allocator may know with another claim
	one.pods[n] = true
	var demands []device.Demand
	for i := range 1 + c.IntN(2) {
		ids := one.ids
		if c.subsets {
			at := c.IntN(len(ids))
			ids = ids[at : at+1+c.IntN(len(ids)-at)]
		}
		demands = append(demands, claims(wants(fmt.Sprint(i), c.kind(), fpga, len(ids)), one.uid, ids...))
	}
	if slow {
		demands[0].Wants[nic] = 1
	}
	if c.byNumber() == 0 && len(c.unclaimed()) > 0 && c.IntN(3) == 0 { // the Node shows the number, while claims are still allocated
		demands = slices.Insert(demands, c.IntN(len(demands)+1), wants("", c.kind(), fpga, 1))
		for i := range demands {
			demands[i].Container.Name = fmt.Sprint(i)
		}
	}
	c.pods[n] = pod(n, demands...)
	c.Bind(c.pods[n])
	return n
}

// succeed has a pod join a claim while the pods that have its devices end.
func (c *churning) succeed() string {
	name := c.pick(slices.Collect(maps.Keys(c.claims)))
	one, is := c.claims[name]
	if !is {
		return "nothing"
	}
	before := slices.Sorted(maps.Keys(one.pods))
	c.list(nic, 8, 2)
	n := c.use(one, true)
	c.after(time.Second)
	for _, old := range before {
		for _, id := range slices.Sorted(maps.Keys(c.made)) {
			if string(c.made[id].Container.Pod) == old {
				c.end(c.made[id])
			}
		}
		c.delete(old)
	}
	c.prove()
	c.after(time.Duration(c.IntN(30)) * time.Second)
	c.create(n, false)
	return fmt.Sprintf("%s joins %s while %v end", n, name, before)
}

// kind returns the kind of a container of a pod with claims.
func (c *churning) kind() device.Kind {
	return []device.Kind{device.App, device.App, device.Init}[c.IntN(3)]
}

// unclaimed returns the FPGAs that are in no claim.
func (c *churning) unclaimed() []device.ID {
	free := []device.ID{"d0", "d1", "d2", "d3"}
	for _, one := range c.claims {
		free = slices.DeleteFunc(free, func(id device.ID) bool { return slices.Contains(one.ids, id) })
	}
	return free
}

// byNumber returns how many FPGAs the pods in the API server request by number.
func (c *churning) byNumber() (n int) {
	for _, p := range c.pods {
		n += p.Requests()[fpga]
	}
	return n
}

// claimOf returns the claim of a pod, and the devices that its containers have by it; empty: it has none.
func claimOf(p device.PodDemand) (claim device.ClaimUID, ids map[device.ID]bool) {
	ids = map[device.ID]bool{}
	for _, d := range p.Demands {
		for id, by := range d.Claimed[fpga] {
			claim, ids[id] = by, true
		}
	}
	return claim, ids
}

// demand returns what a pod requests or, if it has been deleted, has requested.
func (c *churning) demand(pod string) device.PodDemand {
	if d, is := c.pods[pod]; is {
		return d
	}
	return c.deleted[pod]
}

// user returns the claim by which a pod has a device, or the pod.
func (c *churning) user(pod string, id device.ID) string {
	return cmp.Or(string(c.demand(pod).Claim(fpga, id)), pod)
}

// claimHasRun reports whether a pod with the claim of this one has run.
func (c *churning) claimHasRun(pod string) bool {
	for other := range c.ran {
		if c.share(pod, string(other)) {
			return true
		}
	}
	return false
}

// share reports whether two pods have one claim.
func (c *churning) share(a, b string) bool {
	claim := func(pod string) device.ClaimUID {
		claim, _ := claimOf(c.demand(pod))
		return claim
	}
	return strings.HasPrefix(a, "claim") && strings.HasPrefix(b, "claim") && claim(a) == claim(b)
}

// unread returns the pods as a devmgrd knows them that has just started: of their claims nothing has been read, or a part.
func (c *churning) unread(all []device.PodDemand) []device.PodDemand {
	all = slices.Clone(all)
	for i, p := range all {
		all[i].Demands = slices.Clone(p.Demands)
		for j, d := range p.Demands {
			if len(d.Claimed) == 0 {
				continue
			}
			ids := d.Fixed[fpga][c.reads.IntN(len(d.Fixed[fpga])+1):]
			claim := d.Claimed[fpga][d.Fixed[fpga][0]]
			d.Wants, d.Fixed, d.Claimed = maps.Clone(d.Wants), nil, nil
			delete(d.Wants, fpga)
			if len(ids) > 0 {
				d.Wants[fpga], d.Fixed = len(ids), map[device.ResourceName][]device.ID{fpga: ids}
				d.Claimed = map[device.ResourceName]map[device.ID]device.ClaimUID{fpga: {}}
				for _, id := range ids {
					d.Claimed[fpga][id] = claim
				}
			}
			d.Mistake, d.Blocked = "not read", []device.Reason{device.Allocating, device.ClaimUnknown, device.DeviceGone}[c.reads.IntN(3)]
			all[i].Demands[j] = d
		}
	}
	return all
}
