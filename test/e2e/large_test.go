//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/plugintest"
	"github.com/devmgrd/devmgrd/test/node"
)

// One container has 60 000 devices, as many as one Allocate request holds with IDs of the usual length: their names alone
// have the size of an NRI message. devmgrd reconnects to the runtime all the same, and the devices come back.
func TestContainer_With60000Devices_SurvivesRestarts(t *testing.T) {
	const count = 60_000
	r := start(t)
	all := make([]*plugintest.Device, count)
	for i := range all {
		all[i] = plugintest.Dev(fmt.Sprintf("GPU-8f6d2c4e-1111-2222-3333-444455556666-_-%06d", i), plugintest.Healthy)
	}
	p := plugintest.New(t, node.SocketDir, gpu, all...)
	p.OnAllocate = func(_ context.Context, request *plugintest.AllocateRequest) (*plugintest.AllocateResponse, error) {
		number := fmt.Sprint(len(request.ContainerRequests[0].DevicesIds))
		return &plugintest.AllocateResponse{ContainerResponses: []*plugintest.Answer{{Envs: map[string]string{"DEVICES": number}}}}, nil
	}
	p.Serve()
	p.MustRegister()
	r.must(r.WaitShown(r.soon(time.Minute), gpu, count))
	if got := r.run("a", gpu, count).Env["DEVICES"]; got != fmt.Sprint(count) {
		t.Errorf("the pod has %q devices, want %d", got, count)
	}
	r.states(0, count, 0)

	stayed := r.followPod("a")
	r.must(r.Devmgrd.Kill())
	r.must(r.StartDevmgrd(r.ctx))
	r.states(0, count, 0)
	stayed()
	if n := r.metric("devmgrd_started_without_devices_total"); n != 0 {
		t.Errorf("%v containers were taken for bare", n)
	}
	r.must(r.Containerd.Kill())
	r.until("devmgrd has noticed", func() bool { return r.metric("devmgrd_nri_connected") == 0 })
	r.must(r.Containerd.Start(r.ctx))
	r.must(r.WaitContainerd(r.ctx))
	r.until("devmgrd is connected again", func() bool { return r.metric("devmgrd_nri_connected") == 1 })
	r.states(0, count, 0)

	r.must(r.Delete(r.ctx, "a"))
	r.states(count, 0, 0)
}
