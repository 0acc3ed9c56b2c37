//go:build e2e

package mainjob

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// devmgrd, containerd and the plugin are killed, in turn and with a pod that comes or goes meanwhile. Containers run on, a restarted
// container has the devices that it had, and a device is free when its pod has gone.
func TestKill9_EachComponent_NothingIsLost(t *testing.T) {
	h := start(t)
	plugin := h.serve(gpu, 4)
	a, b := h.pod("a", gpu, 2), h.pod("b", gpu, 1)
	held, one := devices(a.starts()), devices(b.starts())
	same := func(after string) {
		t.Helper()
		if !h.alive(a, b) {
			t.Errorf("%s a container has ended", after)
		}
		if got := devices(a.again()); !slices.Equal(got, held) {
			t.Errorf("%s pod a has %q, want %q", after, got, held)
		}
		h.listed(map[string][]string{"a": held, "b": one})
		h.inState(gpu, "assigned", 3)
		h.inState(gpu, "free", 1)
	}
	h.kill(h.Devmgrd)
	same("after devmgrd's end")
	h.kill(h.Runtime)
	same("after containerd's end")
	plugin.Kill()
	plugin.Serve()
	plugin.MustRegister()
	same("after the plugin's end")
	h.must(h.Runtime.Kill())
	h.must(h.Devmgrd.Kill())
	h.must(h.Runtime.Start(h.ctx))
	h.must(h.WaitRuntime(h.ctx))
	h.must(h.StartDevmgrd(h.ctx))
	same("after the end of both")

	// A pod that goes while devmgrd is away releases its devices; one that comes is refused until devmgrd is back.
	h.must(h.Devmgrd.Kill())
	a.remove()
	c := h.pod("c", gpu, 3)
	h.must(h.StartDevmgrd(h.ctx))
	if got := devices(c.starts()); len(got) != 3 || slices.Contains(got, one[0]) {
		t.Errorf("pod c has %q, and pod b %q", got, one)
	}

	// A pod that waited before devmgrd was killed starts as well.
	d := h.pod("d", gpu, 4)
	d.refused("NotEnoughDevices: " + gpu + ": 4 wanted, 0 of 4 free")
	h.must(h.Devmgrd.Kill())
	b.remove() // a containerd that was restarted announces no end of earlier pods' sandboxes: devmgrd finds out when it connects
	c.remove()
	h.must(h.StartDevmgrd(h.ctx))
	if got := devices(d.starts()); len(got) != 4 {
		t.Errorf("pod d has %q", got)
	}
	d.remove()
	h.inState(gpu, "free", 4)
}

// The state file is lost while pods run. Their devices are theirs, by the stamps that containerd keeps, and no other pod gets them.
func TestStateFile_Lost_PodsKeepTheirDevices(t *testing.T) {
	h := start(t)
	plugin := h.serve(gpu, 3)
	a := h.pod("a", gpu, 2)
	held := devices(a.starts())
	h.must(h.Devmgrd.Kill())
	h.must(os.Remove(filepath.Join(node.StateDir, "state.db")))
	h.must(h.StartDevmgrd(h.ctx))
	plugin.MustRegister() // without its state file devmgrd does not know where the plugin is
	h.inState(gpu, "free", 1)

	b := h.pod("b", gpu, 2)
	b.refused("NotEnoughDevices: " + gpu + ": 2 wanted, 1 of 3 free")
	if got := devices(a.again()); !slices.Equal(got, held) {
		t.Errorf("pod a has %q, want %q", got, held)
	}
	h.listed(map[string][]string{"a": held})
	a.remove()
	if got := devices(b.starts()); len(got) != 2 {
		t.Errorf("pod b has %q", got)
	}
}

// A container whose devices are not there yet is refused with the reason, and starts when they are; a pod that requests nothing never
// waits.
func TestContainer_WithoutItsDevice_IsRefusedAndStartsLater(t *testing.T) {
	h := start(t)
	h.pod("plain", "", 0).starts()
	one, two := h.pod("one", gpu, 1), h.pod("two", gpu, 2)
	one.refused("PluginMissing")
	plugin := h.serve(gpu, 2)
	one.starts()
	stamps, err := h.Stamps(h.ctx)
	h.must(err)
	if len(stamps) != 1 || stamps[0].Pod != "plain/one" || len(stamps[0].Devices[gpu]) != 1 {
		t.Errorf("the stamps are %+v, want one device of pod one", stamps)
	}
	two.refused("NotEnoughDevices: " + gpu + ": 2 wanted, 1 of 2 free")

	// The plugin gets a third device, which is unhealthy at first.
	plugin.Set(append(plugintest.Devices(2), plugintest.Dev("dev-000002", plugintest.Unhealthy))...)
	two.refused("DeviceUnhealthy")
	plugin.SetHealth("dev-000002", plugintest.Healthy)
	if got := devices(two.starts()); len(got) != 2 {
		t.Errorf("pod two has %q", got)
	}

	// A plugin that hangs keeps its own pod waiting, and no other.
	const nic = "vendor.example/nic"
	h.serve(nic, 1, func(p *plugintest.Plugin) { p.Before(plugintest.Allocate, plugintest.Hang) })
	slow := h.pod("slow", nic, 1)
	slow.refused("Allocating")
	two.remove()
	h.pod("three", gpu, 1).starts()
}
