package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// churn plays random steps: pods are bound, run, end and return, some share claims, and some of those request devices by number as well,
// plugins fail, rename their devices, succeed each other and list only free devices, containers are refused, commits fail, the runtime, devmgrd and the machine restart, and releases are proved late. After each
// step the invariants hold, and no two pods of the model use the same hardware, unless they do by one claim. After the end of all faults but
// one, every pod is served.
func churn(r *harness, seed uint64) {
	c := newChurning(r, seed)
	for range 300 {
		did := c.step()
		if more := c.other(); more != "" {
			did += ", then " + more
		}
		did += c.leave()
		r.check()
		c.judge()
		if r.t.Failed() {
			r.t.Errorf("the last step was: %s", did)
			return
		}
	}
	c.settle()
}

// A churning has a model of the node besides the allocator: hardware, a plugin that lists it, and containers that use it.
type churning struct {
	*harness
	*rand.Rand
	others          *rand.Rand                  // the dice of other
	reads           *rand.Rand                  // those of unread
	leaves          *rand.Rand                  // the dice of leave and listPods
	pods            map[string]device.PodDemand // in the API server
	deleted         map[string]device.PodDemand // those that were
	leaving         map[string]device.PodDemand // of these, those whose objects are there still
	made            map[string]*made            // the runtime's containers, by its IDs
	connected       bool                        // the runtime is synchronized
	broken          bool                        // writes to the state file fail
	badDevice       atomic.Int64                // the number of a device that the plugin refuses; -1: none
	calls, prepared atomic.Int64
	well            atomic.Bool // the plugins refuse nothing but the bad device
	renamed         int
	prefix          map[device.ResourceName]string
	claims          map[string]*sharedClaim // by name; those that pods in the API server use
	claimed         int                     // claims so far
	claiming        int                     // pods with claims so far
	fpgas           fpgasInUse
	users           map[device.ID]string // of FPGAs: by which claim, or as of which pod, a container has run with it last
	proved          provedFPGAs
	outdated        provedFPGAs // those that have been released since the plugin was last asked for them
	again           provedFPGAs // those of which a grant was refused: the plugin is asked again, though another pod of the claim may run with them
	subsets         bool        // containers of one claim have some of its devices, not all
	boots           int
	ran             map[device.PodUID]bool                      // pods of which a container has started, or may have
	absent          map[device.ResourceName]map[device.ID]int64 // Device.Added of devices that a plugin has stopped listing, see relist
}

// A made is a container of the model.
type made struct {
	device.Running
	uses    map[device.ResourceName][]int // hardware
	started bool
}

func newChurning(r *harness, seed uint64) *churning {
	c := &churning{
		harness: r, Rand: rand.New(rand.NewPCG(seed, 1)), others: rand.New(rand.NewPCG(seed, 2)), leaves: rand.New(rand.NewPCG(seed, 3)), reads: rand.New(rand.NewPCG(seed, 4)), absent: map[device.ResourceName]map[device.ID]int64{}, ran: map[device.PodUID]bool{}, pods: map[string]device.PodDemand{}, deleted: map[string]device.PodDemand{}, leaving: map[string]device.PodDemand{},
		made: map[string]*made{}, connected: true,
		prefix: map[device.ResourceName]string{gpu: "d", nic: "d", fpga: "d"}, claims: map[string]*sharedClaim{}, fpgas: fpgasInUse{by: map[device.ID]int{}},
		users: map[device.ID]string{}, subsets: seed%4 == 1,
		proved: provedFPGAs{ids: map[device.ID]bool{}}, outdated: provedFPGAs{ids: map[device.ID]bool{}}, again: provedFPGAs{ids: map[device.ID]bool{}},
	}
	if r.releaser != nil {
		r.releaser.proves = func(d device.Departure) {
			c.proved.set(d.Assignments, true)
			c.outdated.set(d.Assignments, true)
		}
	}
	c.badDevice.Store(-1)
	r.plugins.allocates(c.allocate)
	r.plugins.preparesDevices(func(ids []device.ID) {
		if c.fpgas.any(ids) {
			r.t.Errorf("PreStartContainer for %v, which a container runs with", ids)
		}
	})
	r.plugins.prepares(func(context.Context) error {
		if c.prepared.Add(1)%3 == 0 && !c.well.Load() {
			return errPlugin
		}
		return nil
	})
	r.plugins.stock(fpga, fpgas)
	r.plugins.offer(fpga, func(o *device.Offer) { o.PreStart = seed%3 == 0 })
	r.RuntimeSynced(nil, nil)
	if seed%2 == 0 {
		r.plugins.prefers(gpu, func(ctx context.Context, available, must []device.ID, size int) ([]device.ID, error) {
			time.Sleep(time.Duration(c.calls.Add(1)%3) * time.Second)
			switch c.calls.Load() % 7 {
			case 0:
				return nil, errPlugin
			case 1:
				return available[:1], nil
			}
			return last(ctx, available, must, size)
		})
	}
	return c
}

// allocate always refuses the bad device, refuses others occasionally, and is sometimes slow: lists change, and the daemon
// restarts, in the middle of a call.
func (c *churning) allocate(ctx context.Context, r device.ResourceName, ids []device.ID) error {
	if r == fpga && !c.subsets && c.fpgas.any(ids) && !c.again.has(ids[0]) {
		c.t.Errorf("Allocate for %v, which a container runs with", ids)
	}
	n := c.calls.Add(1)
	if takes := time.Duration(n%3) * time.Second; n%4 == 0 || r == nic && n%2 == 0 {
		if r == nic {
			takes *= 10
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(takes):
		}
	}
	if bad := c.badDevice.Load(); n%5 == 0 && !c.well.Load() || bad >= 0 && r == gpu && slices.Contains(hardware(ids), int(bad)) {
		return errPlugin
	}
	if r == fpga {
		c.outdated.setIDs(ids, false)
	}
	return nil
}

// hardware returns the hardware behind IDs, whatever the plugin calls it: the number at the end of each ID.
func hardware(ids []device.ID) []int {
	all := make([]int, len(ids))
	for i, id := range ids {
		n, err := strconv.Atoi(string(id[strings.LastIndexByte(string(id), 'd')+1:]))
		if err != nil {
			panic(err)
		}
		all[i] = n
	}
	return all
}

// list has a plugin list n devices, each under its present name. A device that returns after an absence is new, as in the
// registry when other devices were listed meanwhile.
func (c *churning) list(r device.ResourceName, n, nodes int, sick ...int) {
	time.Sleep(time.Microsecond) // no two things happen at one time
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprint(c.prefix[r], i)
	}
	c.plugins.offer(r, func(o *device.Offer) {
		before := o.Inventory.Devices
		o.Inventory.Devices = dated(*o, ids)
		c.returned(r, before, o.Inventory.Devices)
		o.Reported, o.State = true, device.Serving
		for i, d := range o.Inventory.Devices {
			at := hardware([]device.ID{d.ID})[0]
			o.Inventory.Devices[i].Healthy = !slices.Contains(sick, at)
			if nodes > 0 {
				o.Inventory.Devices[i].NUMA = []int{at % nodes}
			}
		}
	})
}

func (c *churning) pick(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	slices.Sort(names)
	return names[c.IntN(len(names))]
}

func (c *churning) somePod() string { return c.pick(slices.Collect(maps.Keys(c.pods))) }

func (c *churning) someContainer() *made { return c.made[c.pick(slices.Collect(maps.Keys(c.made)))] }

// step performs one random step and returns its description.
func (c *churning) step() string {
	r := c.harness
	resource := []device.ResourceName{gpu, nic}[c.IntN(2)]
	switch c.IntN(28) {
	case 23:
		return c.giveBack()
	case 24, 25:
		return c.prove()
	case 26:
		switch c.IntN(4) {
		case 0:
			return c.reboot()
		case 1:
			return c.succeed()
		}
		return "nothing"
	case 27:
		return c.bindClaim()
	case 20, 21:
		return c.bindClaim()
	case 22:
		c.list(fpga, fpgas, 0, c.IntN(fpgas+3))
		r.plugins.offer(fpga, func(o *device.Offer) { o.State = device.OfferState(c.IntN(3)) })
		return "list the FPGAs, or end their plugin"
	case 0, 1, 2, 3:
		n := fmt.Sprintf("%c%d", 'a'+c.IntN(26), c.IntN(100))
		_, is := c.pods[n]
		if _, was := c.deleted[n]; is || was {
			return "nothing" // names are UIDs here, and a UID is never reused
		}
		var demands []device.Demand
		for i := range c.IntN(4) {
			kind := []device.Kind{device.Init, device.Sidecar, device.App}[c.IntN(3)]
			d := wants(fmt.Sprint(i), kind, gpu, 1+c.IntN(3))
			if c.IntN(2) == 0 {
				d.Wants[nic] = 1
			}
			demands = append(demands, d)
		}
		c.pods[n] = pod(n, demands...)
		r.Bind(c.pods[n])
		return "bind " + n
	case 4, 5: // by force: its containers run on
		n := c.somePod()
		c.delete(n)
		return "delete " + n
	case 6, 7:
		return c.create(c.somePod(), c.IntN(8) == 0)
	case 8:
		return c.start(c.someContainer())
	case 9, 10:
		one := c.someContainer()
		if one == nil {
			return "nothing"
		}
		c.end(one)
		return "end container " + one.ID
	case 11:
		n := c.IntN(30)
		c.list(gpu, n+1, 1+c.IntN(4), c.IntN(n+1))
		return fmt.Sprintf("list %d GPUs", n+1)
	case 12:
		c.list(nic, 8, 2)
		r.plugins.offer(nic, func(o *device.Offer) { o.State = device.OfferState(c.IntN(3)) })
		return "list the NICs, or end their plugin"
	case 13:
		one := []device.Cordon{{Resource: resource, ID: device.ID(fmt.Sprint(c.prefix[resource], c.IntN(30)))}}
		change := r.Cordon
		if c.IntN(2) == 0 {
			change = r.Uncordon
		}
		if _, err := change(one); err != nil && !c.broken && !errors.As(err, new(*device.UnknownDeviceError)) {
			r.t.Error(err)
		}
		return "cordon or uncordon"
	case 14:
		d := time.Duration(c.IntN(5)) * time.Second
		if c.IntN(5) == 0 {
			d = 40 * time.Second // a container that ignores SIGTERM outlives what is due after a pod's end
		}
		r.after(d)
		return d.String() + " pass"
	case 15:
		return c.rename(resource)
	case 16:
		for i := range 5 { // one device of all flaps
			c.list(gpu, 8, 0, []int{0, -1}[i%2])
			r.after(time.Duration(c.IntN(1500)) * time.Millisecond)
		}
		return "a device flaps"
	case 17:
		c.badDevice.Store(int64(c.IntN(8)) - 2)
		return fmt.Sprintf("device %d is refused", c.badDevice.Load())
	case 18:
		return c.breakDisk(c.IntN(3))
	}
	return c.reconnect(c.IntN(4))
}

// giveBack has a pod with a claim be in the API server again that was deleted, as when the API server has been restored from a backup.
func (c *churning) giveBack() string {
	var all []string
	for n, p := range c.deleted {
		if _, is := c.pods[n]; !is && p.Shares() && p.Requests()[fpga] == 0 && c.PodByUID(device.PodUID(n)).PodAllocation != nil {
			all = append(all, n)
		}
	}
	n := c.pick(all)
	p, is := c.deleted[n]
	if !is {
		return "nothing"
	}
	for _, one := range c.claims {
		if claim, _ := claimOf(p); one.uid == claim {
			one.pods[n] = true
			c.outdated.setIDs(one.ids, false) // it goes on with its grant
			c.pods[n] = p
			delete(c.deleted, n)
			delete(c.leaving, n)
			c.Bind(p)
			return n + " is back"
		}
	}
	return "nothing"
}

// prove has the releases of all pods but one be proved.
func (c *churning) prove() string {
	if c.releaser == nil {
		return "nothing"
	}
	c.releaser.mu.Lock()
	held := slices.Collect(maps.Keys(c.releaser.held))
	c.releaser.mu.Unlock()
	slices.Sort(held)
	for _, uid := range held {
		if c.IntN(3) > 0 {
			c.releaser.holds(uid, device.Release{})
		}
	}
	return "releases are proved"
}

// reboot has the machine boot: no container is left.
func (c *churning) reboot() string {
	for id, one := range c.made {
		if one.started {
			c.fpgas.add(one.Stamp[fpga], -1)
		}
		c.plugins.setAlive(id, false)
		delete(c.made, id)
	}
	clear(c.users) // who had which device matters for its pod only: one that has not run since may get another
	c.boots++
	c.boot = fmt.Sprint("boot ", c.boots)
	c.connected, c.broken = false, false
	c.restart()
	c.recalled()
	if c.IntN(2) == 0 {
		c.sync()
	}
	c.after(time.Duration(c.IntN(3)) * time.Second)
	c.listPods()
	return "reboot"
}

// listPods has the API server list its pods. Those that were being deleted may be gone.
func (c *churning) listPods() {
	if c.leaves.IntN(2) == 0 {
		clear(c.leaving)
	}
	all := slices.AppendSeq(slices.Collect(maps.Values(c.pods)), maps.Values(c.leaving))
	slices.SortFunc(all, func(a, b device.PodDemand) int { return strings.Compare(a.Pod.Name, b.Pod.Name) })
	c.Replace(c.unread(all))
	synctest.Wait()
	c.judge()
	c.after(time.Duration(c.reads.IntN(3)) * time.Second)
	c.judge()
	c.Replace(all)
}

// leave has the status of pods that are being deleted change, a container of one be created that the kubelet has begun with, or their objects go.
func (c *churning) leave() (did string) {
	names := slices.Sorted(maps.Keys(c.leaving))
	if len(names) == 0 {
		return ""
	}
	n := names[c.leaves.IntN(len(names))]
	switch c.leaves.IntN(8) {
	case 0, 1, 2:
		c.Bind(c.leaving[n])
		return ", then the status of " + n + " changes"
	case 3:
		if p := c.leaving[n]; p.Shares() || p.Requests()[fpga] > 0 { // the devices may have been proved free
			return ""
		}
		return ", then " + c.create(n, c.leaves.IntN(8) == 0)
	case 4:
		delete(c.leaving, n)
		c.Drop(device.PodUID(n))
		return ", then " + n + " is gone"
	}
	return ""
}

// delete removes a pod from the API server, whatever state its containers are in. Its object may stay there.
func (c *churning) delete(pod string) {
	for name, one := range c.claims {
		delete(one.pods, pod)
		if len(one.pods) == 0 {
			delete(c.claims, name)
		}
	}
	p, is := c.pods[pod]
	if is {
		c.deleted[pod] = p
		if c.releaser != nil && c.IntN(2) == 0 {
			c.releaser.holds(device.PodUID(pod), opener)
		}
	}
	delete(c.pods, pod)
	if is && c.others.IntN(2) == 0 {
		p.Leaving = true
		c.leaving[pod] = p
		c.Bind(p)
		return
	}
	delete(c.leaving, pod)
	c.Drop(device.PodUID(pod))
}

// uses reports whether the runtime has containers of a pod.
func (c *churning) uses(pod string) bool {
	for _, one := range c.made {
		if string(one.Container.Pod) == pod {
			return true
		}
	}
	return false
}

// create has the runtime create a container, as far as the allocator permits. The runtime fails sometimes.
func (c *churning) create(pod string, fails bool) string {
	p, is := c.pods[pod]
	if l, leaves := c.leaving[pod]; leaves {
		p, is = l, true
	}
	if !is || !c.connected {
		return "nothing"
	}
	if (p.Shares() || p.Requests()[fpga] > 0) && c.uses(pod) {
		return "nothing" // the kubelet makes no second instance of a container that exists
	}
	one := &made{Running: running(fmt.Sprint(c.Uint64()), pod, "0"), uses: map[device.ResourceName][]int{}}
	st := c.RuntimeCreating(one.Running)
	if st.State != device.Ready {
		return "create nothing"
	}
	one.Stamp = map[device.ResourceName][]device.ID{}
	for _, s := range st.Assignment.Shares {
		one.uses[s.Resource], one.Stamp[s.Resource] = hardware(s.IDs), s.IDs
	}
	for _, id := range one.Stamp[fpga] {
		if was, now := c.users[id], c.user(pod, id); c.releaser != nil && was != "" && was != now && !c.proved.has(id) {
			c.t.Errorf("%s has %s by %s, and its release by %s has not been proved", pod, id, now, was)
		}
		if c.outdated.has(id) {
			c.t.Errorf("%s has %s by a grant from before its release", pod, id)
		}
	}
	demand, _ := p.Of("0")
	for r, n := range demand.Wants {
		if len(one.uses[r]) != n {
			c.t.Errorf("a container of %s is created with %d of %d devices of %s", pod, len(one.uses[r]), n, r)
		}
	}
	if fails {
		c.RuntimeAborted(one.Running)
		return "create a container of " + pod + ", which fails"
	}
	c.RuntimeInjected(one.Running)
	c.made[one.ID] = one
	return "create a container of " + pod
}

// start has the runtime start a container. While the allocator is disconnected nothing prevents the start.
func (c *churning) start(one *made) string {
	if one == nil || one.started {
		return "nothing"
	}
	if c.connected {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := c.RuntimeStarting(ctx, one.Running); err != nil {
			c.end(one)
			return "a container of " + string(one.Container.Pod) + " must not start"
		}
	}
	one.started, c.ran[one.Container.Pod] = true, true
	c.proved.setIDs(one.Stamp[fpga], false)
	for _, id := range one.Stamp[fpga] {
		c.users[id] = c.user(string(one.Container.Pod), id)
	}
	c.fpgas.add(one.Stamp[fpga], 1)
	c.plugins.setAlive(one.ID, true)
	return "start a container of " + string(one.Container.Pod)
}

func (c *churning) end(one *made) {
	delete(c.made, one.ID)
	if one.started {
		c.fpgas.add(one.Stamp[fpga], -1)
	}
	c.plugins.setAlive(one.ID, false)
	if c.connected {
		c.RuntimeStopped(one.Running)
	} else {
		c.ran[one.Container.Pod] = true // as far as the allocator can know
	}
}

// rename has a plugin list the same hardware under other IDs, or under the first ones again.
func (c *churning) rename(r device.ResourceName) string {
	c.renamed++
	c.prefix[r] = fmt.Sprintf("r%d-d", c.renamed)
	if c.IntN(3) == 0 {
		c.prefix[r] = "d"
	}
	c.list(r, 8+c.IntN(8), 2)
	return fmt.Sprintf("%s is renamed to %s...", r, c.prefix[r])
}

// breakDisk makes commits fail before they write anything (0), or after they have written everything (1), or ends the fault.
func (c *churning) breakDisk(how int) string {
	c.disk.fails(nil)
	c.disk.failsLate(nil)
	c.broken = how < 2
	switch how {
	case 0:
		c.disk.fails(func() {})
		return "commits fail before they write"
	case 1:
		c.disk.failsLate(errSync)
		return "commits write, and fail"
	}
	return "commits succeed"
}

// reconnect disconnects the runtime, connects it, or restarts the daemon at any moment.
func (c *churning) reconnect(how int) string {
	switch how {
	case 0:
		c.connected = false
		c.RuntimeLost()
		return "the runtime is lost"
	case 1:
		c.connected, c.broken = false, false
		c.restart()
		c.recalled()
		c.listPods()
		if c.IntN(2) == 0 {
			c.sync()
		}
		return "restart"
	}
	c.sync()
	return "the runtime is back"
}

// sync reports the runtime's containers to the allocator. Those not started yet may start at any time.
func (c *churning) sync() {
	var all []device.Running
	for _, one := range c.made {
		one.Idle = !one.started
		all = append(all, one.Running)
	}
	c.connected = true
	c.RuntimeSynced(all, nil)
}

// judge compares the containers' devices, and the Node's capacity, with the hardware.
func (c *churning) judge() {
	type piece struct {
		device.ResourceName
		n int
	}
	hands, orphaned := map[piece]string{}, map[device.ResourceName]int{}
	for _, h := range c.Snapshot().Pods { // devices of a deleted pod count until its containers have ended and a commit says so
		if _, is := c.leaving[h.Pod.Name]; !is && !h.Active {
			for r, n := range c.deleted[h.Pod.Name].Requests() {
				orphaned[r] += n
			}
			_, ids := claimOf(c.deleted[h.Pod.Name])
			orphaned[fpga] += len(ids)
		}
	}
	use := func(pod string, r device.ResourceName, n int) {
		if was, used := hands[piece{r, n}]; used && was != pod && !(r == fpga && c.share(was, pod)) {
			c.t.Errorf("device %d of %s is in the hands of two pods: %s and %s", n, r, was, pod)
		}
		hands[piece{r, n}] = pod
	}
	for _, one := range c.made {
		pod := string(one.Container.Pod)
		_, is := c.pods[pod]
		for r, all := range one.uses {
			for _, n := range all {
				if one.started {
					use(pod, r, n)
				}
			}
		}
		if st := c.Readiness(one.Container); is && one.started && c.connected && !c.has(st, one) {
			c.t.Errorf("a container of %s runs with %v, and the pod stands %v with %v: %v", pod, one.Stamp, st.State, st.Assignment, st.Wait)
		}
	}
	requests := map[device.ResourceName]int{}
	for name, p := range c.pods {
		for _, d := range p.Demands {
			synctest.Wait() // a preparation may be in progress
			refused, why := c.WouldRefuse(p.Pod.UID)
			served, st := c.PodByUID(p.Pod.UID).State == device.Ready, c.Readiness(d.Container)
			if st.State == device.Ready && why != nil && refused == d.Container.Name || st.State == device.Waiting && why == nil && served && c.connected {
				c.t.Errorf("the hook answers %v (%v) for %s of %s, and explain says that %q is refused: %v", st.State, st.Wait, d.Container.Name, name, refused, why)
			}
			if st.State == device.Ready {
				for _, s := range st.Assignment.Shares {
					for _, n := range hardware(s.IDs) {
						use(name, s.Resource, n)
					}
				}
			}
		}
		for r, n := range p.Requests() {
			requests[r] += n
		}
	}
	for _, p := range c.leaving {
		for r, n := range p.Requests() {
			requests[r] += n
		}
	}
	resources := c.Resources()
	for r, n := range resources.Capacity() {
		free := 0
		for _, d := range resources.Offers()[r].Inventory.Devices {
			if _, used := hands[piece{r, hardware([]device.ID{d.ID})[0]}]; !used && d.Healthy && !resources.ByName[r].OutOfService[d.ID] {
				free++
			}
		}
		if room := n - requests[r]; room > free+orphaned[r] {
			c.t.Errorf("the Node shows %d devices of %s and its pods ask for %d: the scheduler may bind pods for %d more, and %d are free, %d of pods that have been deleted",
				n, r, requests[r], room, free, orphaned[r])
		}
	}
}

// has reports whether a container's pod is recorded with the devices that the container uses.
func (c *churning) has(st device.Readiness, one *made) bool {
	if st.State != device.Ready {
		return false
	}
	for _, s := range st.Assignment.Shares {
		if !slices.Equal(hardware(s.IDs), one.uses[s.Resource]) {
			return false
		}
	}
	return len(st.Assignment.Shares) == len(one.uses)
}

// served reports whether a pod that requests devices has them, prepared or not.
func (c *churning) served(p device.PodDemand) bool {
	if len(p.Demands) == 0 {
		return false
	}
	st := c.Readiness(p.Demands[0].Container)
	return st.State == device.Ready || st.Wait.Reason == device.Preparing
}

// spare is the number of devices beyond the pods' requests: the one that is always refused.
const spare = 1

// settle ends all faults except the refused device, and all pods that have been served. Then the other pods are served.
func (c *churning) settle() {
	c.breakDisk(2)
	c.sync()
	defer func() {
		if c.releaser != nil && len(c.releaser.asked()) > 0 {
			c.t.Errorf("releases are still being proved: %v", c.releaser.asked())
		}
	}()
	c.list(gpu, 0, 0)
	c.list(nic, 0, 0)
	c.after(time.Minute) // all calls have ended, and nothing can begin
	for _, one := range slices.Collect(maps.Values(c.made)) {
		c.delete(string(one.Container.Pod))
		if one.started || c.IntN(2) == 0 { // else it could not be started, and the runtime reports nothing of that
			c.end(one)
		}
	}
	requests := map[device.ResourceName]int{}
	for n, p := range c.pods {
		if c.served(p) || len(c.PodByUID(device.PodUID(n)).Assignments) > 0 && c.claimHasRun(n) {
			c.delete(n) // the latter keeps what a pod of its claim has run with, gets no others, and waits if the plugin has renamed its NIC
			continue
		}
		for r, n := range p.Requests() {
			requests[r] += n
		}
	}
	c.list(fpga, fpgas, 0)
	c.after(time.Second)
	for i := range fpgas {
		if _, err := c.Uncordon([]device.Cordon{{Resource: fpga, ID: device.ID(fmt.Sprint("d", i))}}); err != nil {
			c.t.Error(err)
		}
	}
	for range 20 {
		c.prove()
	}
	c.badDevice.Store(0)
	if c.boots > 0 {
		c.badDevice.Store(-1) // a pod may have been assigned it before
	}
	c.well.Store(true)
	c.prefix[gpu], c.prefix[nic] = "new-d", "new-d"
	c.list(gpu, spare+requests[gpu], 0)
	c.list(nic, requests[nic], 0)
	c.after(5 * time.Minute)
	for n, p := range c.pods {
		if p.Requests()[fpga] > 0 && c.served(p) {
			c.delete(n) // it may have a device that a claim names
		}
	}
	for range 20 {
		c.prove()
	}
	c.after(5 * time.Minute)
	c.check()
	c.judge()
	for n, p := range c.pods {
		for _, d := range p.Demands {
			if st := c.Readiness(d.Container); st.State != device.Ready {
				if st.Wait.Reason == device.Preparing { // since now: another container had the devices
					c.after(time.Minute)
					if c.Readiness(d.Container).State == device.Ready {
						continue
					}
				}
				c.t.Errorf("when all is well %s/%s waits with %+v", n, d.Container.Name, st.Wait)
				return
			}
		}
	}
}

// unrest changes the offers of two resources, of a thousand devices each, without a pause while pods come and go.
func unrest(r *harness) {
	var ids [1000]device.ID
	for i := range ids {
		ids[i] = device.ID(fmt.Sprintf("d%03d", i))
	}
	changes := 0
	change := func() { // in turn whether there are preferences, and health; now and then also places, and how many there are
		list := changes / 2
		for _, res := range []device.ResourceName{gpu, nic} {
			r.plugins.offer(res, func(o *device.Offer) {
				o.Reported, o.State, o.Prefers = true, device.Serving, changes%2 > 0
				if changes%2 > 0 {
					return
				}
				o.Inventory.Devices = make([]device.Device, len(ids)-list/9%50)
				for i := range o.Inventory.Devices {
					o.Inventory.Devices[i] = device.Device{ID: ids[i], Healthy: (i+list)%3 > 0, NUMA: []int{(i + list/3) % 4}}
				}
			})
		}
		changes++
	}
	change()
	r.plugins.prefers(nic, last)
	r.RuntimeSynced(nil, nil)
	synctest.Wait()
	over, changed := make(chan struct{}), make(chan struct{})
	var plugin sync.WaitGroup
	plugin.Go(func() {
		for {
			change()
			select {
			case <-over:
				return
			case changed <- struct{}{}: // a goroutine waits for it
			default:
			}
		}
	})
	for i := range 60 {
		both := wants("main", device.App, gpu, 3)
		both.Wants[nic] = 2
		p := pod(fmt.Sprint(i), wants("init", device.Init, gpu, 2), both)
		r.Bind(p)
		<-changed
		s := r.Readiness(p.Demands[1].Container)
		for ; s.State == device.Pending; s = r.Readiness(p.Demands[1].Container) {
			<-s.Done
		}
		if s.State != device.Ready {
			r.t.Errorf("pod %d stands %+v", i, s)
		}
		if n := r.Resources().Capacity()[gpu]; n < 600 {
			r.t.Errorf("%d are published", n)
		}
		r.Drop(device.PodUID(fmt.Sprint(i - 3)))
	}
	close(over)
	plugin.Wait()
	for range 12 { // each kind of change alone
		r.check()
		change()
	}
	r.check()
	r.Replace(nil)
}
