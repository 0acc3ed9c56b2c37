//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/cpuset"

	"github.com/devmgrd/devmgrd/test/cpupolicy"
	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// twoNodes returns a made-up machine of two NUMA nodes, with a real CPU each. The memory of both is where this machine's is.
func twoNodes(t *testing.T) cpupolicy.Machine {
	t.Helper()
	var own unix.CPUSet
	if err := unix.SchedGetaffinity(0, &own); err != nil {
		t.Fatal(err)
	}
	m := cpupolicy.Machine{}
	for cpu := 0; own.Count() > 0 && len(m) < 2; cpu++ {
		if own.IsSet(cpu) {
			m[int64(len(m))] = cpupolicy.Node{CPUs: cpuset.New(cpu)}
			own.Clear(cpu)
		}
	}
	if len(m) < 2 {
		t.Fatal("this test needs two CPUs")
	}
	return m
}

// allowed returns what the kernel lets the processes of a pod's container have: its CPUs and its memory nodes.
func (r *harness) allowed(name string) (cpus, mems string) {
	r.t.Helper()
	r.running(name)
	uid := string(r.uid(name))
	all, err := filepath.Glob("/proc/[0-9]*/cgroup")
	r.must(err)
	for _, file := range all {
		of, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(of), uid) {
			continue
		}
		dir := filepath.Dir(file)
		if command, err := os.ReadFile(filepath.Join(dir, "cmdline")); err != nil || !strings.Contains(string(command), "--then-sleep") {
			continue // the sandbox's
		}
		status, err := os.ReadFile(filepath.Join(dir, "status"))
		r.must(err)
		for line := range strings.Lines(string(status)) {
			switch key, value, _ := strings.Cut(line, ":"); key {
			case "Cpus_allowed_list":
				cpus = strings.TrimSpace(value)
			case "Mems_allowed_list":
				mems = strings.TrimSpace(value)
			}
		}
		return cpus, mems
	}
	r.t.Fatalf("pod %s has no process", name)
	return "", ""
}

// A CPU policy that follows PodResources puts each container on CPUs of its device's NUMA node, whichever of the two NRI plugins the runtime
// calls first. It knows all devices of each container before the container is created, also if they come late, and else when the pod's sandbox is made. A container
// for which the policy has no CPU there waits.
func TestTopology_CPUPolicy_CPUsAreNearDevices(t *testing.T) {
	machine := twoNodes(t)
	r := start(t)
	r.places()
	const far = "vendor.example/far"
	plugin := r.plugin(far, 2, func(p *plugintest.Plugin) {
		p.Set(plugintest.Dev("far-0", plugintest.Healthy, 1), plugintest.Dev("far-1", plugintest.Healthy, 1))
	})
	for order, index := range map[string]string{"the policy is asked first": "04", "devmgrd is asked first": "06"} {
		t.Run(order, func(t *testing.T) {
			r := r.in(t)
			policy := cpupolicy.NewPlugin(machine, r.teller(ourResources))
			policy.Strict = true
			defer r.joinsNRI("cpupolicy", index, policy)()

			create := func(name, device string, count int) {
				t.Helper()
				pod := node.Pod(name, device, count, "report", "--then-sleep")
				pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
				r.must(r.Create(r.ctx, pod))
			}
			// aligned checks on which CPUs a running pod is, by the kernel, and what the policy was told of its devices.
			aligned := func(name, device string, count int, numa int64) {
				t.Helper()
				cpus, mems := r.allowed(name)
				if want := machine[numa].CPUs.String(); cpus != want || mems != "0" {
					t.Errorf("pod %s has CPUs %s and memory %s, and its devices are near CPU %s", name, cpus, mems, want)
				}
				for _, answer := range policy.Answers() {
					if answer.Pod != name || name == "late" && answer.Err != nil {
						continue
					}
					near := cpupolicy.Places(answer.Devices)
					if answer.Err != nil || len(near) != count || len(near[0]) != 1 || near[0][0] != numa || answer.Devices[0].ResourceName != device {
						t.Errorf("PodResources said of container %q of pod %s: %v, %v", answer.Container, name, answer.Devices, answer.Err)
					}
				}
			}

			create("far", far, 1)
			aligned("far", far, 1, 1)
			create("second", far, 1) // the CPU near its device is taken
			r.told("second", "too few are free near the devices")
			if free := policy.Free(); !free.Equals(machine[0].CPUs) {
				t.Errorf("CPUs %s are free", free)
			}
			r.must(r.Delete(r.ctx, "far"))
			aligned("second", far, 1, 1)
			create("near", gpu, 2)
			aligned("near", gpu, 2, 0)
			r.must(r.Delete(r.ctx, "near"))
			r.must(r.Delete(r.ctx, "second"))
			r.until("the policy has all CPUs back", func() bool { return policy.Free().Size() == len(machine) })

			plugin.Stop()
			create("late", far, 1)
			r.told("late", "PluginStale")
			r.must(r.WaitPod(r.soon(), metav1.NamespaceDefault, "late", func(p *corev1.Pod) (bool, error) {
				for _, s := range p.Status.ContainerStatuses {
					if s.State.Waiting != nil && s.State.Waiting.Reason == "CreateContainerError" {
						return true, nil
					}
				}
				return false, nil
			}))
			if free := policy.Free(); free.Size() != len(machine) {
				t.Errorf("the refused container keeps CPUs: only %s are free", free)
			}
			asked := slices.ContainsFunc(policy.Answers(), func(a cpupolicy.Answer) bool { return a.Pod == "late" && a.Container != "" })
			if first := index < "05"; asked != first { // devmgrd's
				t.Errorf("the policy was asked for CPUs of the refused container: %t", asked)
			}
			plugin.Serve()
			plugin.MustRegister()
			aligned("late", far, 1, 1)
			r.must(r.Delete(r.ctx, "late"))
			r.until("the policy has all CPUs back", func() bool { return policy.Free().Size() == len(machine) })
		})
	}
}
