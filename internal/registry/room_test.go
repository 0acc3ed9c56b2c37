package registry_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// counting counts what is asked of an Allocator whose pods use all resources.
type counting struct {
	kept
	questions *atomic.Int64
}

func (c counting) Uses(names []device.ResourceName) map[device.ResourceName]device.Use {
	c.questions.Add(1)
	return c.kept.Uses(names)
}

// A pod has used up its quota by lost resources that are in use, and registers again and again. A refusal costs few questions, however many are lost.
func TestRegister_QuotaIsUsedUp_AsksOnceForAllLostResources(t *testing.T) {
	t.Parallel()
	var lost []device.PluginRecord
	for i := range 120 {
		lost = append(lost, device.PluginRecord{Resource: device.ResourceName(fmt.Sprintf("junk.example/%d", i)), Endpoint: fmt.Sprintf("%d.sock", i), Reported: true, Lost: true,
			Away: time.Now().Add(-time.Hour), Pod: device.PluginPod{Pod: pluginPod("greedy"), ServiceAccount: "junk"}})
	}
	f := prepare(t, ownDirs(socketDir(t)), known(lost...))
	c := counting{kept{forgetful{f}}, new(atomic.Int64)}
	f.with.Allocator, f.with.Accounts = c, accounts{"greedy": "junk"}
	f.run()
	p := plugintest.New(t, f.directory("greedy").Sockets, "junk.example/more", plugintest.Devices(1)...)
	p.Serve()
	const times = 10
	for range times {
		if err := p.Register(); err == nil {
			t.Fatal("it is accepted")
		}
	}
	if n := c.questions.Load(); n > 2*times {
		t.Errorf("%d refusals have asked %d times", times, n)
	}
}
