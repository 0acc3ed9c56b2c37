package containers

import (
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
)

// Containers are the runtime's containers, by pod.
type Containers map[device.PodUID]Pod

// A Pod is the containers of one pod, by the runtime's IDs.
type Pod map[string]*Container

// A Container is one container of the runtime, from before its creation until its end.
type Container struct {
	Name           string
	Sandbox        string                // the runtime's ID of its sandbox
	Made           time.Time             // zero: not known
	Stamped        bool                  // by the hook, or it says that it has devices which it requests
	Granted        bool                  // it says that it has devices that the state file assigns to it
	Reported       bool                  // the missing stamp has been reported
	Said           device.Choice         // the devices that it says it has, while its request is not known
	Disbelieved    bool                  // that it says more than it requests has been logged
	UnknownDevices []device.ResourceName // resources of its devices that only a lost state file named, or that are too many
	Started        bool                  // its processes have run, or it ran before devmgrd started
	Fresh          bool                  // created with a grant that no container had used before

	// Idle: the container has not started since its creation, or since the runtime has listed it as created. The kubelet starts a container right after
	// its creation. One that stays idle could not be started, of which containerd reports nothing, or is left over from a power cut.
	Idle bool
	// Injected is when devmgrd has answered its creation; zero: the runtime has listed it.
	Injected time.Time
	// Barred: the pod's devices were released while the container was idle. It must not start.
	Barred bool
}

// Add records a container that exists, or is about to.
func (cs Containers) Add(r device.Running, stamped bool) *Container {
	pod := lists.Inner(cs, r.Container.Pod)
	c := &Container{Name: r.Container.Name, Sandbox: r.Sandbox, Made: r.Made, Stamped: stamped, Idle: r.Idle}
	if before := pod[r.ID]; before != nil {
		c.UnknownDevices = before.UnknownDevices
	}
	pod[r.ID] = c
	return c
}

// Remove forgets a container and returns it; nil: it is not known. last reports that its pod has no other.
func (cs Containers) Remove(pod device.PodUID, id string) (c *Container, last bool) {
	c = cs[pod][id]
	if c == nil {
		return nil, false
	}
	delete(cs[pod], id)
	if len(cs[pod]) > 0 {
		return c, false
	}
	delete(cs, pod)
	return c, true
}

// MayRun reports whether any container of the pod may run.
func (p Pod) MayRun() bool { return p.any(func(c *Container) bool { return !c.Idle }) }

// Unknown reports whether a container of the pod has unknown devices.
func (p Pod) Unknown() bool {
	return p.any(func(c *Container) bool { return len(c.UnknownDevices) > 0 })
}

// Has reports whether the pod has a container of that name that is not barred.
func (p Pod) Has(name string) bool {
	return p.any(func(c *Container) bool { return c.Name == name && !c.Barred })
}

// Runs reports whether a container of that name may run.
func (p Pod) Runs(name string) bool {
	return p.any(func(c *Container) bool { return c.Name == name && !c.Idle })
}

// InjectedLast returns when devmgrd has last answered the creation of one of the pod's idle containers; zero: the runtime has listed all of them.
func (p Pod) InjectedLast() (last time.Time) {
	for _, c := range p {
		if c.Idle && c.Injected.After(last) {
			last = c.Injected
		}
	}
	return last
}

func (p Pod) any(is func(*Container) bool) bool {
	for _, c := range p {
		if is(c) {
			return true
		}
	}
	return false
}

// Bar keeps the idle containers of a pod from starting, if all of them are proven idle and none starts now: the pod's devices are about to be
// released. It reports whether they are.
func (p Pod) Bar(proven map[*Container]bool, noneStarts func(Pod) bool) bool {
	if p.any(func(c *Container) bool { return !c.Idle || !proven[c] }) || !noneStarts(p) {
		return false
	}
	for _, c := range p {
		c.Barred = true
	}
	return true
}

// Devices are devices of containers, by pod and container.
type Devices map[device.PodUID]map[string]device.Choice

// Add adds devices of a container. Those that it has already stay once.
func (ds Devices) Add(c device.Container, r device.ResourceName, ids []device.ID) {
	choice := lists.Inner(lists.Inner(ds, c.Pod), c.Name)
	all := choice[r]
	known := make(map[device.ID]bool, len(all)+len(ids))
	for _, id := range all {
		known[id] = true
	}
	for _, id := range ids {
		if !known[id] {
			known[id] = true
			all = append(all, id)
		}
	}
	choice[r] = all
}
