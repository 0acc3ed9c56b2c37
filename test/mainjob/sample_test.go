//go:build e2e

package mainjob

import (
	"testing"

	"github.com/devmgrd/devmgrd/test/cluster/images/report"
	"github.com/devmgrd/devmgrd/test/node"
)

const sample = node.SampleResource

// samplePlugin runs Kubernetes' sample device plugin.
func (h *harness) samplePlugin() *pod {
	h.t.Helper()
	s, err := h.RunSamplePlugin(h.ctx)
	h.must(err)
	return h.owns(s, "sample-device-plugin")
}

// has returns the sample plugin's device that a container has. All of the plugin's answer is there: a mount, and by a CDI device a
// variable.
func (h *harness) has(p *pod, r report.Report) string {
	h.t.Helper()
	stamps, err := h.Stamps(h.ctx)
	h.must(err)
	for _, s := range stamps {
		if s.PodUID != p.UID || len(s.Devices[sample]) != 1 {
			continue
		}
		id := s.Devices[sample][0]
		if _, mounted := r.Mount("/tmp/" + id); !mounted {
			h.t.Errorf("pod %s lacks the mount /tmp/%s: %+v", p.name, id, r.Mounts)
		}
		if r.Env["CDI_DEVICE"] == "" {
			h.t.Errorf("pod %s lacks the variable of its CDI device: %v", p.name, r.Env)
		}
		return id
	}
	h.t.Errorf("no stamp says that pod %s has one %s: %+v", p.name, sample, stamps)
	return ""
}

// Kubernetes' own sample device plugin, unchanged and in a container, is redirected to devmgrd. Two pods get its devices, a third waits
// until one is free, and the plugin's restart and end cost no container its device.
func TestSamplePlugin_TwoDevices_ThirdPodWaits(t *testing.T) {
	h := start(t, "--set", "plugins.gracePeriod=1s")
	plugin := h.samplePlugin()
	h.inState(sample, "free", 2)

	first, second, third := h.pod("first", sample, 1), h.pod("second", sample, 1), h.pod("third", sample, 1)
	one, two := h.has(first, first.starts()), h.has(second, second.starts())
	if one == two {
		t.Errorf("both pods have %s", one)
	}
	third.refused("NotEnoughDevices: " + sample + ": 1 wanted, 0 of 2 free")
	h.listed(map[string][]string{"first": {one}, "second": {two}})
	first.remove()
	if got := h.has(third, third.starts()); got != one {
		t.Errorf("the third pod has %s, want %s, which is free", got, one)
	}
	h.listed(map[string][]string{"second": {two}, "third": {one}})

	// The plugin ends for longer than its grace period, and returns.
	plugin.remove()
	h.up(sample, false)
	if got := h.has(second, second.again()); got != two {
		t.Errorf("without its plugin the restarted container has %s, want %s", got, two)
	}
	third.remove()
	late := h.pod("late", sample, 1)
	late.refused("PluginMissing")
	h.samplePlugin()
	h.has(late, late.starts())
	h.listed(map[string][]string{"second": {two}, "late": {one}})
}
