package registry_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/registry"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// handOvers are the service accounts of two pods that hand resources to each other.
var handOvers = map[string]accounts{
	"of one account":      {"a": "junk", "b": "junk", "honest": "vendor"},
	"of two accounts":     {"a": "junk", "b": "trash", "honest": "vendor"},
	"of unknown accounts": nil,
}

// takesOver has pod b take a resource over from p of pod a, which ends then, and reports whether b has it.
func (f *harness) takesOver(t *testing.T, p *plugintest.Plugin, devices ...*plugintest.Device) bool {
	name := device.ResourceName(p.Resource)
	has := func() bool {
		return f.Registrations()[name].Pod.Name == "b" && len(f.Offers()[name].Inventory.Devices) == len(devices)
	}
	q := plugintest.New(t, f.directory("b").Sockets, p.Resource, devices...)
	q.Serve()
	if err := q.Register(); err == nil {
		f.eventually("b has it, or no room", func() bool { return has() || q.EndedStreams() > 0 })
	}
	if !has() {
		q.Kill()
		return false
	}
	p.Kill()
	f.eventually("a has left", func() bool { return len(f.Registrations()[name].Reserve) == 0 })
	return true
}

// answered reports whether a resource's list has been accepted or refused.
func (f *harness) answered(name device.ResourceName) func() bool {
	return func() bool { return len(f.Offers()[name].Inventory.Devices) > 0 || f.Offers()[name].LastError != "" }
}

// leavesBytes fails if there is no room for lists of an honest pod and of the host.
func (f *harness) leavesBytes(t *testing.T) {
	t.Helper()
	for i, dir := range []string{f.directory("honest").Sockets, f.dir} {
		name := device.ResourceName(fmt.Sprintf("vendor.example/%d", i))
		plugintest.Start(t, dir, string(name), longList(40)...)
		f.eventually("it is answered", f.answered(name))
		if o := f.Offers()[name]; o.LastError != "" {
			t.Errorf("a list of 40 devices is refused: %s", o.LastError)
		}
	}
}

// A pod registers all that it may, and another one takes that over, again and again. There is a place for the resources of an honest pod.
func TestQuota_PodsTakeOverInTurn_OthersHavePlaces(t *testing.T) {
	t.Parallel()
	for name, of := range handOvers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := prepare(t, ownDirs(socketDir(t)), func(c *registry.Config) { c.MaxResources = 32 })
			f.with.Allocator, f.with.Accounts = forgetful{f}, of
			f.run()
			for more := true; more; {
				var taken []*plugintest.Plugin
				for {
					p := plugintest.New(t, f.directory("a").Sockets, fmt.Sprintf("junk.example/%d", len(f.Offers())), plugintest.Devices(1)...)
					p.Serve()
					if err := p.Register(); err != nil {
						p.Kill()
						break
					}
					taken = append(taken, p)
				}
				more = false
				for _, p := range taken {
					more = f.takesOver(t, p, plugintest.Devices(1)...) || more
				}
			}
			t.Logf("two pods have %d places of 32", len(f.Offers()))
			for i := range 3 {
				plugintest.Start(t, f.directory("honest").Sockets, fmt.Sprintf("vendor.example/%d", i), plugintest.Devices(1)...)
			}
		})
	}
}

// The same with long lists.
func TestQuota_PodsTakeOverInTurn_OthersHaveBytes(t *testing.T) {
	t.Parallel()
	for name, of := range handOvers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := prepare(t, ownDirs(socketDir(t)), func(c *registry.Config) { c.MaxTotalBytes = 1 << 20 })
			f.with.Allocator, f.with.Accounts = forgetful{f}, of
			f.run()
			for i, n := range []int{450, 225, 112, 56, 28, 14, 7} { // 910 are the limit
				p := plugintest.New(t, f.directory("a").Sockets, fmt.Sprintf("junk.example/%d", i), longList(n)...)
				p.Serve()
				p.MustRegister()
				f.eventually("it is answered", f.answered(device.ResourceName(p.Resource)))
				f.takesOver(t, p, longList(n)...)
			}
			f.leavesBytes(t)
		})
	}
}

// In the common directory: a pod registers all that it may, and another one listens at the same sockets once it has ended, again and again.
func TestQuota_PodsHandOverSocketsInTurn_OthersHavePlaces(t *testing.T) {
	t.Parallel()
	const a, b, honest = "0a1b2c3d-1111-2222-3333-4444555566a0", "0a1b2c3d-1111-2222-3333-4444555566b0", "0a1b2c3d-1111-2222-3333-4444555566c0"
	f := prepare(t, func(c *registry.Config) { c.MaxResources = 16 })
	f.with.Allocator = forgetful{f}
	f.run()
	first := 0
	for range 3 {
		n, end := startGreedyPod(t, f.dir, a, fmt.Sprintf("GREEDY_FIRST=%d", first), "GREEDY_SOCKET=*.sock")
		all := func(is func(device.Offer) bool) func() bool {
			return func() bool {
				for i := range n {
					if !is(f.Offers()[device.ResourceName(fmt.Sprintf("%s.example/%d", a, first+i))]) {
						return false
					}
				}
				return true
			}
		}
		end()
		f.eventually("its plugins are away", all(func(o device.Offer) bool { return !o.Connected }))
		startGreedyPod(t, f.dir, b, fmt.Sprintf("GREEDY_FIRST=%d", first), fmt.Sprintf("GREEDY_MOST=%d", first+n), "GREEDY_SOCKET=*.sock", "GREEDY_QUIET=1")
		f.eventually("the other pod's are there, or refused", all(func(o device.Offer) bool {
			return o.State == device.Serving || strings.Contains(o.LastError, "the plugins of pod "+b+" would have")
		}))
		first += n
	}
	if got := greedyPod(t, f.dir, honest, "GREEDY_MOST=2", "GREEDY_SOCKET=honest-*.sock"); got != 2 {
		t.Errorf("an honest pod has %d resources, want 2", got)
	}
}

// A pod registers a long list and ends, and a pod of another account takes the resource over.
func TestQuota_PodTakesOverFromOneThatIsAway_OthersHaveBytes(t *testing.T) {
	t.Parallel()
	f := prepare(t, ownDirs(socketDir(t)), func(c *registry.Config) { c.MaxTotalBytes = 1 << 20 })
	f.with.Allocator, f.with.Accounts = forgetful{f}, accounts{"a": "junk", "b": "trash", "honest": "vendor"}
	f.run()
	for i, n := range []int{450, 225, 112, 56, 28, 14, 7} { // 910 are the limit
		name := device.ResourceName(fmt.Sprintf("junk.example/%d", i))
		p := plugintest.New(t, f.directory("a").Sockets, string(name), longList(n)...)
		p.Serve()
		p.MustRegister()
		f.eventually("it is answered", f.answered(name))
		p.Kill()
		f.eventually("a is away", func() bool { return f.Offers()[name].State != device.Serving })
		q := plugintest.New(t, f.directory("b").Sockets, string(name), longList(n)...)
		q.Serve()
		if q.Register() == nil {
			f.eventually("b has it, or no room", func() bool {
				return f.Offers()[name].State == device.Serving || q.EndedStreams() > 0
			})
		}
	}
	f.leavesBytes(t)
}

// What pod b has from a, of its account, counts for a also when a pod of another account has had it for a moment, and after a restart of devmgrd.
func TestQuota_HandedOver_CountsForTheAccount(t *testing.T) {
	t.Parallel()
	plugins := socketDir(t)
	limits := func(c *registry.Config) { c.MaxResources = 32 }
	of := accounts{"a": "junk", "b": "junk", "c": "trash"}
	f := prepare(t, ownDirs(plugins), limits)
	f.with.Allocator, f.with.Accounts = forgetful{f}, of
	f.run()
	register := func(f *harness, pod string, name device.ResourceName) (*plugintest.Plugin, error) {
		p := plugintest.New(t, f.directory(pod).Sockets, string(name), plugintest.Devices(1)...)
		p.Serve()
		if err := p.Register(); err != nil {
			p.Kill()
			return nil, err
		}
		f.eventually("it has it", func() bool {
			return f.Registrations()[name].Pod.Name == pod && f.Offers()[name].State == device.Serving
		})
		return p, nil
	}
	fill := func(f *harness, from int) (n int) {
		for {
			name := device.ResourceName(fmt.Sprintf("junk.example/%d", from+n))
			p, err := register(f, "a", name)
			if err != nil {
				return n
			}
			n++
			if !f.takesOver(t, p, plugintest.Devices(1)...) {
				t.Fatal("b has not taken it over")
			}
			if c, err := register(f, "c", name); err == nil {
				c.Kill()
				f.eventually("b has it again", func() bool {
					return f.Registrations()[name].Pod.Name == "b" && len(f.Registrations()[name].Reserve) == 0
				})
			}
		}
	}
	if n, more := fill(f, 0), fill(f, 100); n != 15 || more != 0 {
		t.Errorf("a has registered %d, and then %d more, want 15 and none", n, more)
	}
	f.stop()
	g := prepare(t, ownDirs(plugins), limits, at(f.dir), known(f.memory.all()...))
	g.with.Allocator, g.with.Accounts = forgetful{g}, of
	g.run()
	if more := fill(g, 200); more != 0 {
		t.Errorf("after a restart of devmgrd a has registered %d more", more)
	}
}
