package allocator_test

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// other plays one of these now and then: two plugins of one resource, a plugin that lists only free devices, a container that is refused, and a pod
// that requests FPGAs by number, next to those with claims.
func (c *churning) other() string {
	if c.others.IntN(4) > 0 {
		return ""
	}
	resource := []device.ResourceName{gpu, nic, fpga}[c.others.IntN(3)]
	switch c.others.IntN(4) {
	case 0:
		return c.succeedPlugin(resource)
	case 1:
		return c.listFree(resource)
	case 2:
		return c.refuse()
	}
	return c.bindNumber()
}

// succeedPlugin has another plugin of a resource serve, as when the newer one of two has listed its devices, or has ended. The two may differ about the
// health of a device, and about how many there are.
func (c *churning) succeedPlugin(r device.ResourceName) string {
	var ids []device.ID
	for _, d := range c.plugins.Offers()[r].Inventory.Devices {
		ids = append(ids, d.ID)
	}
	if len(ids) > 1 && c.others.IntN(3) == 0 {
		ids = ids[:len(ids)-1]
	}
	failing := c.others.IntN(len(ids) + 4)
	c.relist(r, ids, func(o *device.Offer) {
		if failing < len(ids) {
			o.Inventory.Devices[failing].Healthy = false
		}
	})
	return fmt.Sprintf("another plugin of %s serves, with %d devices", r, len(ids))
}

// listFree has a plugin restart that lists only devices that no container has then, as plugins of network cards do.
func (c *churning) listFree(r device.ResourceName) string {
	taken := map[int]bool{}
	for _, one := range c.made {
		for _, n := range one.uses[r] {
			taken[n] = taken[n] || one.started
		}
	}
	var ids []device.ID
	for _, d := range c.plugins.Offers()[r].Inventory.Devices {
		if !taken[hardware([]device.ID{d.ID})[0]] {
			ids = append(ids, d.ID)
		}
	}
	c.relist(r, ids, func(*device.Offer) {})
	return fmt.Sprintf("a plugin restarts, and lists only the %d free devices of %s", len(ids), r)
}

// relist has another connection list some of the devices that are listed. The others keep their dates if they are listed again before a new
// device is, as in the registry.
func (c *churning) relist(r device.ResourceName, ids []device.ID, edit func(*device.Offer)) {
	time.Sleep(time.Microsecond) // no two things happen at one time
	c.plugins.offer(r, func(o *device.Offer) {
		if c.absent[r] == nil {
			c.absent[r] = map[device.ID]int64{}
		}
		var devices []device.Device
		for _, d := range o.Inventory.Devices {
			if slices.Contains(ids, d.ID) {
				devices = append(devices, d)
			} else {
				c.absent[r][d.ID] = d.Added
			}
		}
		o.Inventory.Devices, o.Reported, o.State = devices, true, device.Serving
		o.Session++
		edit(o)
	})
}

// returned dates devices that are listed again as before, unless a new one is listed as well.
func (c *churning) returned(r device.ResourceName, before, now []device.Device) {
	known := map[device.ID]bool{}
	for _, d := range before {
		known[d.ID] = true
	}
	if !slices.ContainsFunc(now, func(d device.Device) bool { _, absent := c.absent[r][d.ID]; return !known[d.ID] && !absent }) {
		for i, d := range now {
			if added, absent := c.absent[r][d.ID]; absent && !known[d.ID] {
				now[i].Added = added
			}
		}
	}
	delete(c.absent, r)
}

// refuse has the runtime's hook refuse a container that has its devices and no instance: the host lacks what the grant names, and the plugin is asked
// again, or another cause that passes.
func (c *churning) refuse() string {
	var all []device.Container
	for _, name := range slices.Sorted(maps.Keys(c.pods)) {
		for _, d := range c.pods[name].Demands {
			exists := func(one *made) bool { return one.Container == d.Container }
			if c.Readiness(d.Container).State == device.Ready && !slices.ContainsFunc(slices.Collect(maps.Values(c.made)), exists) {
				all = append(all, d.Container)
			}
		}
	}
	if len(all) == 0 || !c.connected {
		return "nothing"
	}
	one, lapsed := all[c.others.IntN(len(all))], c.others.IntN(2) == 0
	if c.ran[one.Pod] {
		lapsed = false // a pod that has run gets no others, and waits if the plugin has renamed them
	}
	if lapsed {
		c.again.set([]device.Assignment{c.Readiness(one).Assignment}, true)
	}
	c.Refused(one, device.Wait{Reason: device.HostDeviceMissing, Message: "the host does not have it"}, lapsed)
	return fmt.Sprintf("container %s of %s is refused, its grant lapses: %v", one.Name, one.Pod, lapsed)
}

// recalled records that devmgrd has started: it takes each pod that had devices for one that has run.
func (c *churning) recalled() {
	for n := range c.pods {
		c.ran[device.PodUID(n)] = true
	}
}

// bindNumber binds a pod that requests FPGAs by number, if the Node shows as many besides those of claims.
func (c *churning) bindNumber() string {
	free := len(c.unclaimed()) - c.byNumber()
	if free <= 0 {
		return "nothing"
	}
	c.claiming++
	n := fmt.Sprint("number", c.claiming) // never one of a pod that the allocator may know
	var demands []device.Demand
	for range 1 + c.others.IntN(2) {
		if free > 0 {
			want := 1 + c.others.IntN(free)
			demands = append(demands, wants(fmt.Sprint(len(demands)), device.App, fpga, want))
			free -= want
		}
	}
	c.pods[n] = pod(n, demands...)
	c.Bind(c.pods[n])
	return "bind " + n
}
