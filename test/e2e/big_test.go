//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/plugintest"
	"github.com/devmgrd/devmgrd/test/node"
)

// A plugin with 100 000 devices, whose IDs are as long as the API has them, is like any other.
func TestManyDevices(t *testing.T) {
	const count = 100_000
	r := start(t)
	all := make([]*plugintest.Device, count)
	for i := range all {
		all[i] = plugintest.Dev(fmt.Sprintf("%063d", i), plugintest.Healthy, int64(i%2))
	}
	p := plugintest.New(t, node.SocketDir, gpu, all...)
	p.Serve()
	began := time.Now()
	p.MustRegister()
	r.must(r.WaitShown(r.soon(time.Minute), gpu, count))
	registered := time.Since(began)

	began = time.Now()
	if got := r.run("a", gpu, 3); strings.Count(got.Env["DEVICES"], ",") != 2 {
		t.Errorf("the pod has %q, want three devices", got.Env["DEVICES"])
	}
	ran := time.Since(began)

	published := fmt.Sprintf("devmgrd_node_capacity{resource_name=%q}", gpu)
	began = time.Now()
	p.SetHealth(all[count-1].ID, plugintest.Unhealthy)
	r.until("the number has changed", func() bool { return r.metric(published) == count-1 })
	inside := time.Since(began)
	r.must(r.WaitShown(r.soon(time.Minute), gpu, count-1))
	outside := time.Since(began)
	p.SetHealth(all[0].ID, plugintest.Unhealthy) // in use: it counts still
	p.SetHealth(all[count-1].ID, plugintest.Healthy)
	r.must(r.WaitShown(r.soon(time.Minute), gpu, count))

	t.Logf("%d devices: on the Node %s after registering; a pod runs %s after its creation; a device's health: published %s, "+
		"on the Node %s after the plugin has sent its list; resident memory %.0f MiB",
		count, registered.Round(time.Millisecond), ran.Round(time.Millisecond), inside.Round(time.Millisecond), outside.Round(time.Millisecond),
		r.metric("process_resident_memory_bytes")/(1<<20))
}
