//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/devmgrd/devmgrd/internal/plugintest"
)

// A device fails under a pod: its owner is told, the container keeps running with it and, as health.onDeviceFailure says, the pod
// is evicted. The pod next to it is not touched.
func TestADeviceFailsUnderAPod(t *testing.T) {
	for _, policy := range []string{"event", "evict"} {
		t.Run(policy, func(t *testing.T) {
			r := start(t, "--set", "health.onDeviceFailure="+policy)
			p := r.plugin(gpu, 2)
			r.run("holder", gpu, 1)
			r.run("beside", gpu, 1)
			stays := r.followPod("beside")
			var held string
			out := r.says("assignments default/holder")
			for _, d := range p.Listed() {
				if strings.Contains(out, d.ID) {
					held = d.ID
				}
			}
			p.SetHealth(held, plugintest.Unhealthy)
			r.told("holder", "DeviceFailed")
			r.until("it is counted", func() bool { return r.metric(fmt.Sprintf("devmgrd_device_failures_total{resource_name=%q}", gpu)) == 1 })
			r.says("devices", held, "assigned", "failed 1 times in the last hour", "unhealthy")
			if policy == "event" {
				if r.says("explain default/holder", "ready", held); len(r.running("holder").Env) == 0 {
					t.Error("the holder is gone")
				}
			} else {
				r.must(r.WaitPod(r.soon(time.Minute), "default", "holder", func(p *corev1.Pod) (bool, error) { return p == nil, nil }))
				r.must(r.WaitShown(r.soon(20*time.Second), gpu, 1))
			}
			stays()
		})
	}
}
