//go:build e2e

package e2e

import (
	"slices"
	"testing"
	"time"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/devmgrd/devmgrd/internal/plugintest"
	"github.com/devmgrd/devmgrd/test/node"
)

// A runtime that plugs devices into a virtual machine asks the kubelet's PodResources socket while the sandbox is made, as
// Kata Containers does. The plugin needs longer for Allocate than devmgrd lets the reader wait.
//
// With podResources.takeover the reader fails until the devices are there, and then gets those that the container gets.
// Without it the reader asks the kubelet, which knows of no devices.
func TestPodResources_ReadWhileTheSandboxIsMade_SlowAllocate(t *testing.T) {
	const slow = 4 * time.Second
	for name, args := range map[string][]string{"takeover": {"--set", takeover}, "no takeover": nil} {
		t.Run(name, func(t *testing.T) {
			r := startWith(t, gated(t, kubeletsResources), args...)
			p := r.plugin(gpu, 2)
			if args != nil {
				r.untilTold("devmgrd serves the kubelet's path", func() bool {
					answer, err := r.teller(kubeletsResources).GetAllocatableResources(r.ctx, &podresources.AllocatableResourcesRequest{})
					return err == nil && len(answer.Devices) == 2
				})
			}
			p.Before(plugintest.Allocate, plugintest.Delay(slow))
			r.must(r.Create(r.ctx, node.Pod("a", gpu, 1, "report", "--then-sleep")))
			got := r.running("a").Env["DEVICES"]
			visits := r.visits()["default/a"]
			t.Logf("the pod has %s; the reader was told %+v", got, visits)
			last := visits[len(visits)-1]
			switch {
			case args == nil && (len(visits) != 1 || last.Error != "" || len(last.Devices) > 0):
				t.Errorf("the kubelet has told %+v", visits)
			case args == nil:
			case last.Error != "" || !slices.Equal(last.Devices[gpu], []string{got}):
				t.Errorf("the pod has %q, and the reader was last told %+v", got, last)
			case len(visits) < 2:
				t.Errorf("the reader did not have to ask again: %+v", visits)
			}
			for _, v := range visits[:len(visits)-1] {
				if v.Error == "" {
					t.Errorf("the sandbox was made before the pod had its devices: %+v", v)
				}
			}
		})
	}
}
