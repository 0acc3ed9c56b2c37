//go:build e2e

package chart

import (
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/test/node"
)

// An upgrade with another configuration and with one more right replaces devmgrd's pod and interrupts nothing, and neither does the removal.
func TestChart_InstalledUpgradedRemoved_PodsRunOn(t *testing.T) {
	h := start(t)
	h.confined()
	h.prints(h.helm("test", release, "--logs"), "Succeeded", "COMPONENT", "nri", "ok")
	first, device := h.runs("first")
	h.until("the pod has the event", func() bool { return strings.Contains(h.Events(h.ctx, "first"), "DevicesAssigned") })

	shown, err := h.WatchShown(h.ctx, node.SampleResource)
	h.must(err)
	h.upgrade("--set=config.log.level=debug,rbac.eviction=true")
	h.until("the plugin serves again", h.pluginServes)
	later, _ := h.runs("later")
	h.runsOn(first)
	h.must(node.Steady(shown(), 2))

	// The new right, and the new configuration.
	h.devmgrd("drain", node.SampleResource+"/"+device, "--reason", "dust")
	h.must(h.WaitPod(h.soon(), metav1.NamespaceDefault, "first", func(p *corev1.Pod) (bool, error) { return p == nil, nil }))
	if log := h.log(); !strings.Contains(log, "level=DEBUG") {
		t.Errorf("devmgrd has the old configuration:\n%s", log)
	}
	h.nothingForbidden()

	// The pods run on, the Node keeps its capacity, and the host its files, as docs/upgrade.md says.
	before := [2]int64{1, 1} // without the drained one
	h.until("the Node shows the other device", func() bool { return h.capacity() == before })
	h.helm("uninstall", release, "--wait")
	h.until("devmgrd's processes end", func() bool { return len(node.Processes(program)) == 0 })
	h.runsOn(later)
	if after := h.capacity(); after != before {
		t.Errorf("the Node has shown %d devices and shows %d", before, after)
	}
	for _, path := range []string{"/var/lib/devmgrd/state.db", "/run/devmgrd", "/var/lib/kubelet/device-plugins/devmgrd.txt"} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	for _, role := range []string{"devmgrd", "devmgrd-own-node"} {
		if _, err := h.Client().RbacV1().ClusterRoles().Get(h.ctx, role, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("cluster role %s: %v", role, err)
		}
	}
}

// confined checks that devmgrd's process has one capability, no way to more, and a seccomp profile.
func (h *harness) confined() {
	h.t.Helper()
	pids := node.Processes(program)
	if len(pids) == 0 {
		h.t.Errorf("no process runs %s", program)
	}
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		h.must(err)
		h.prints(string(text), "CapEff:\t0000000000000004\n", "CapBnd:\t0000000000000004\n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n") // CAP_DAC_READ_SEARCH
	}
}

// log returns the log of devmgrd's pod.
func (h *harness) log() string {
	h.t.Helper()
	pod := h.pod()
	log, err := h.PodLogs(h.ctx, pod.Namespace, pod.Name, "devmgrd")
	h.must(err)
	return log
}

// nothingForbidden checks that devmgrd's pod has had the rights for all that it did.
func (h *harness) nothingForbidden() {
	h.t.Helper()
	if log := h.log(); strings.Contains(log, "forbidden") {
		h.t.Errorf("the API server forbids devmgrd what it has to do:\n%s", log)
	}
}

// capacity returns the capacity and the allocatable of the sample plugin's resource.
func (h *harness) capacity() [2]int64 {
	h.t.Helper()
	capacity, allocatable, err := h.Shown(h.ctx, node.SampleResource)
	h.must(err)
	return [2]int64{capacity, allocatable}
}
