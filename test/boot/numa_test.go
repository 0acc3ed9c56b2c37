//go:build e2e

package boot

import (
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/devmgrd/devmgrd/test/node"
)

// pins starts the CPU policy as a service of the host, and waits until the runtime asks it.
func (h *harness) pins(index string) {
	h.t.Helper()
	policy, err := os.ReadFile(os.Getenv(policyVariable))
	h.must(err)
	h.must(h.machine.Put(h.ctx, map[string]string{"/usr/local/bin/policy": string(policy), "/etc/systemd/system/vendor-policy.service": `[Unit]
Description=the vendor's CPU policy
[Service]
Type=notify
ExecStart=/usr/local/bin/policy ` + index + `
StandardOutput=append:/run/vendor-policy
Restart=always
RestartSec=1
`}))
	h.types("chmod 755 /usr/local/bin/policy; systemctl daemon-reload")
	h.until("the runtime has synchronized the policy", func() bool {
		_, err := h.machine.Shell(h.ctx, "systemctl restart vendor-policy")
		return err == nil
	})
}

// allowed returns the CPUs and memory nodes of a pod's process, as the kernel has them.
func (h *harness) allowed(name string) string {
	h.t.Helper()
	id := strings.TrimPrefix(h.container(name).ContainerID, "containerd://")
	return h.types("grep allowed_list /proc/$(ctr --namespace=k8s.io tasks list | awk '$1 == \"" + id + "\" { print $2 }')/status")
}

// Pods run on the CPU and the memory of the NUMA node of their devices, on the kernel's own nodes: the CPU policy has all devices of a
// container before it chooses, whichever of the two NRI plugins the runtime calls first.
func TestNUMA_CPUPolicy_PodsRunNearTheirDevices(t *testing.T) {
	h := start(t)
	h.cleanup(func() { h.types("rm -f /usr/local/bin/policy /run/vendor-policy") })
	h.driver()
	h.service("gpu0=/dev/vendor/gpu0:rw@0", "gpu1=/dev/vendor/gpu1:rw@1")
	for index, devmgrdFirst := range map[string]bool{"04": false, "06": true} { // devmgrd's is 05
		h.pins(index)
		near := func(numa, device string) {
			t.Helper()
			name := device + "-" + index
			pod := node.Pod(name, gpu, 1, "report", "--then-sleep")
			pod.Annotations = map[string]string{node.RequiredPlugins + "/pod": `["policy"]`} // it waits while the policy is away
			pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
			h.must(h.Create(h.ctx, pod))
			h.running(name)
			said := fmt.Sprintf("%s has [%s] near [[%s]], and devmgrd was asked first: %t\n", name, device, numa, devmgrdFirst)
			if got := h.types("cat /run/vendor-policy") + "\n"; !strings.Contains(got, said) {
				t.Errorf("the policy says:\n%swant: %s", got, said)
			}
			cpus := h.types("cat /sys/devices/system/node/node" + numa + "/cpulist")
			if got, want := h.allowed(name), fmt.Sprintf("Cpus_allowed_list:\t%s\nMems_allowed_list:\t%s", cpus, numa); got != want {
				t.Errorf("the process of pod %s has:\n%s\nwant:\n%s", name, got, want)
			}
		}
		h.types("devmgrd cordon " + gpu + "/gpu0")
		near("1", "gpu1") // without its device the policy would choose a CPU of node 0
		h.types("devmgrd uncordon " + gpu + "/gpu0")
		near("0", "gpu0")
		h.must(h.Delete(h.soon(), "gpu1-"+index))
		h.must(h.Delete(h.soon(), "gpu0-"+index))
	}
}
