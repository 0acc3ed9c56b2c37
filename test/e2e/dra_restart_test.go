//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

func TestDRA_KubeletRestarts_SlicesAreBackAndPodsRunOn(t *testing.T) {
	r := start(t, "--set", "dra.resources="+gpu)
	r.class(gpu)
	r.offered(gpu, 2)
	r.run("a", gpu, 1)
	lives := r.lives("a")
	r.must(r.Kubelet.Kill())
	r.must(r.Kubelet.Start(r.ctx))
	r.until("the slices are back", func() bool { return len(r.sliced()) == 2 })
	r.run("b", gpu, 1)
	if now := r.lives("a"); !slices.Equal(now, lives) {
		t.Errorf("before: %q, after: %q", lives, now)
	}
	r.must(r.Devmgrd.Kill())
	r.must(r.StartDevmgrd(r.soon()))
	r.run("c", "", 0)
}

// Moving a resource there and back, while pods of both kinds run and the kubelet restarts at each step.
func TestDRA_MovedThereAndBack_NoPodIsTouched(t *testing.T) {
	r := start(t)
	r.class(gpu)
	r.plugin(gpu, 4)
	r.run("counted", gpu, 1)
	containers := map[string][]string{}
	undisturbed := func(pods ...string) {
		t.Helper()
		r.must(r.Kubelet.Kill())
		r.must(r.Kubelet.Start(r.ctx))
		r.must(r.WaitNodeReady(r.soon()))
		for _, pod := range pods {
			r.running(pod)
			now := r.lives(pod)
			if before := containers[pod]; before != nil && !slices.Equal(now, before) {
				t.Errorf("before: %q, after: %q", before, now)
			}
			containers[pod] = now
		}
	}
	undisturbed("counted")

	r.restartedWith("--set", "dra.resources="+gpu)
	r.must(r.WaitShown(r.soon(), gpu, -1))
	r.until("the slices show the devices that no pod has", func() bool { return len(r.sliced()) == 3 })
	r.run("requested", gpu, 1)
	r.claim("own", "vendor.example-gpu", 1)
	r.must(r.Create(r.ctx, claiming("claimed", "own")))
	r.running("claimed")
	undisturbed("counted", "requested", "claimed")
	r.until("the slices are back", func() bool { return len(r.sliced()) == 3 })

	r.restartedWith()
	r.must(r.WaitShown(r.soon(), gpu, 3)) // the scheduler does not count the one of the claim
	r.until("the slices are gone", func() bool { return len(r.sliced()) == 0 })
	undisturbed("counted", "requested", "claimed")
	r.run("last", gpu, 1) // of three, two are requested by pods that run
	r.must(r.Create(r.ctx, node.Pod("beyond", gpu, 1, "report")))
	r.unscheduled("beyond")
}

// A resource that no pod uses is moved back. Its slices leave at once, so that the scheduler chooses no device from them for which there is
// no driver.
func TestDRA_MovedBackWithoutPods_SlicesLeaveAtOnce(t *testing.T) {
	r := start(t, "--set", "dra.resources="+gpu)
	r.class(gpu)
	r.offered(gpu, 2)
	r.restartedWith()
	r.until("the slices are gone", func() bool { return len(r.sliced()) == 0 })
	// The kubelet removes those of an absent driver after 30 s.
	r.until("devmgrd has removed them", func() bool { return r.metric(`devmgrd_resource_slice_writes_total{result="ok",verb="delete"}`) > 0 })
	r.must(r.WaitShown(r.soon(), gpu, 2))
	r.run("a", gpu, 2)
}

// devmgrd and the kubelet are killed at each step of a pod's way.
func TestDRA_KilledAtEachStep_PodsHaveTheDevicesOfTheirClaims(t *testing.T) {
	r := start(t, "--set", "dra.resources="+gpu)
	r.class(gpu)
	p := r.offered(gpu, 8)
	r.claim("own", "vendor.example-gpu", 2)
	began := time.Now()
	lap := func(what string) {
		t.Logf("%s: %s", what, time.Since(began).Round(100*time.Millisecond))
		began = time.Now()
	}

	// Away while the pod is bound.
	r.must(r.Devmgrd.Kill())
	r.must(r.Create(r.ctx, node.Pod("a", gpu, 1, "report", "--then-sleep")))
	r.bound("a")
	r.must(r.StartDevmgrd(r.soon()))
	r.exact("a")
	lap("away while the pod is bound")

	// The plugin works on Allocate, for a request and for a claim.
	open := make(chan struct{})
	p.Before(plugintest.Allocate, plugintest.HoldUntil(open))
	calls := p.Calls(plugintest.Allocate)
	r.must(r.Create(r.ctx, node.Pod("b", gpu, 1, "report", "--then-sleep")))
	r.must(r.Create(r.ctx, claiming("c", "own")))
	r.bound("b")
	r.bound("c")
	r.until("one is allocated", func() bool { return p.Calls(plugintest.Allocate) > calls }) // the plugin has one call at a time
	r.must(r.Devmgrd.Kill())
	r.must(r.Kubelet.Kill())
	r.must(r.Kubelet.Start(r.ctx))
	r.must(r.StartDevmgrd(r.soon()))
	r.until("one is allocated again", func() bool { return p.Calls(plugintest.Allocate) > calls+1 })
	lap("killed while the plugin works on Allocate")
	r.must(r.Devmgrd.Kill())
	close(open)
	r.must(r.StartDevmgrd(r.soon()))
	r.distinct("a", "b", "c")
	lap("killed again")

	// The devices have just been assigned.
	r.must(r.Create(r.ctx, tried("d", 2)))
	r.until("pod d has its devices", func() bool { return r.inState(gpu, "assigned") == 6 })
	r.must(r.Kubelet.Kill())
	r.must(r.Devmgrd.Kill())
	r.must(r.Kubelet.Start(r.ctx))
	r.must(r.StartDevmgrd(r.soon()))
	r.distinct("a", "b", "c", "d")
	lap("killed after the commit")
}

// tried returns a pod that is started again if a kubelet is killed while its container starts: containerd then ends the container.
func tried(name string, devices int) *corev1.Pod {
	p := node.Pod(name, gpu, devices, "report", "--then-sleep")
	p.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
	return p
}

// devmgrd is killed at any moment of the start and the end of pods, and the kubelet after it. Containers that end meanwhile are made again.
func TestDRA_KilledAtAnyMoment_PodsHaveTheDevicesOfTheirClaims(t *testing.T) {
	r := start(t, "--set", "dra.resources="+gpu)
	r.must(r.FailClosed(r.ctx)) // a container that is created without devmgrd has no devices
	r.class(gpu)
	r.offered(gpu, 5)
	before := r.stays("stays", 1)
	for _, name := range []string{"ends-0", "ends-1"} {
		r.run(name, gpu, 2)
		r.must(r.Client().CoreV1().Pods(metav1.NamespaceDefault).Delete(r.ctx, name, metav1.DeleteOptions{}))
	}
	for i := range 4 {
		r.must(r.Create(r.ctx, tried(fmt.Sprint("last-", i), 1)))
		r.killed()
	}
	r.must(r.Kubelet.Kill())
	r.must(r.Kubelet.Start(r.ctx))
	if now := r.again("stays"); now != before {
		t.Errorf("the pod had %s and has %s", before, now)
	}
	r.distinct("stays", "last-0", "last-1", "last-2", "last-3")
}

// The state file is lost. Containers keep the devices of their claims, and no other pod gets them.
func TestDRA_StateFileLost_PodsKeepTheDevicesOfTheirClaims(t *testing.T) {
	r := start(t, "--set", "dra.resources="+gpu)
	r.class(gpu)
	p := r.offered(gpu, 4)
	r.run("ends", gpu, 1)
	before := r.stays("requests", 1)
	r.claim("own", "vendor.example-gpu", 1)
	r.must(r.Create(r.ctx, claiming("claims", "own")))
	r.exact("claims")
	r.must(r.Delete(r.ctx, "ends"))
	r.must(r.Devmgrd.Kill())
	r.must(os.Remove(stateFile))
	r.must(r.StartDevmgrd(r.soon()))
	p.MustRegister() // no record of it is left
	r.until("the slices show all devices", func() bool { return len(r.sliced()) == 4 })
	r.run("c", gpu, 1)
	r.run("d", gpu, 1)
	if now := r.again("requests"); now != before {
		t.Errorf("the pod had %s and has %s", before, now)
	}
	r.distinct("requests", "claims", "c", "d")
	r.states(0, 4, 0)
}

// devmgrd is killed while it takes a resource off the Node. A pod that the scheduler has bound by the Node's number waits meanwhile.
func TestDRA_KilledWhileSwitching_PodsOfBothKindsStart(t *testing.T) {
	r := start(t)
	r.class(gpu)
	open := make(chan struct{})
	p := r.plugin(gpu, 4, func(p *plugintest.Plugin) { p.Before(plugintest.Allocate, plugintest.HoldUntil(open)) })
	r.must(r.Create(r.ctx, node.Pod("counted", gpu, 1, "report", "--then-sleep")))
	r.until("the plugin is asked", func() bool { return p.Calls(plugintest.Allocate) > 0 })
	r.must(r.Devmgrd.Kill())
	r.must(r.Create(r.ctx, node.Pod("unseen", gpu, 1, "report", "--then-sleep")))
	r.bound("unseen")

	r.Devmgrd = r.Another("devmgrd", "--set", "dra.resources="+gpu)
	r.must(r.Devmgrd.Start(r.ctx))
	r.must(r.WaitShown(r.soon(), gpu, -1))
	r.killed()
	r.must(r.Create(r.ctx, node.Pod("requested", gpu, 1, "report", "--then-sleep")))
	r.unscheduled("requested")
	r.killed()
	if all := r.sliced(); len(all) > 0 { // any of them may be assigned to the pods that wait
		t.Errorf("the slices show %v", all)
	}
	close(open)
	r.running("counted")
	r.running("unseen")
	r.exact("requested")
}

// The power fails. Containers have the devices of their claims again when the plugin is back.
func TestDRA_Reboot_ContainersHaveTheSameDevices(t *testing.T) {
	r := start(t, "--set", "dra.resources="+gpu, "--set", "dra.hold=3s")
	r.class(gpu)
	p := r.offered(gpu, 4)
	r.restarting("a", gpu)
	r.claim("own", "vendor.example-gpu", 2)
	b := claiming("b", "own")
	b.Spec.RestartPolicy = corev1.RestartPolicyAlways
	r.must(r.Create(r.ctx, b))
	before := map[string]string{"a": r.running("a").Env["DEVICES"], "b": r.running("b").Env["DEVICES"]}

	p.Kill()
	r.must(r.Devmgrd.Kill())
	r.must(r.PowerOff(r.ctx))
	r.must(os.RemoveAll(filepath.Dir(node.SocketDir)))
	r.must(r.PowerOn(r.ctx, func() error { return r.Devmgrd.Start(r.ctx) })) // ready when the kubelet has registered the driver
	r.must(r.Create(r.ctx, node.Pod("c", gpu, 1, "report", "--then-sleep")))
	for _, name := range []string{"a", "b", "c"} {
		r.until("pod "+name+" waits", func() bool {
			explained, _ := r.Command(r.ctx, "explain", "default/"+name).Output()
			return bytes.Contains(explained, []byte("PluginStale")) || name == "c" && bytes.Contains(explained, []byte("DeviceGone")) // not listed in this boot
		})
	}
	p.Serve()
	p.MustRegister()
	for name, had := range before {
		if now := r.runsAgain(name).Env["DEVICES"]; now != had || now == "" {
			t.Errorf("pod %s had %q and has %q", name, had, now)
		}
	}
	r.distinct("a", "b", "c")
}

// Pods that are deleted while devmgrd is away are gone soon after its return, and their devices are free.
func TestDRA_PodsDeletedWhileDevmgrdIsAway_AreGoneAfterwards(t *testing.T) {
	r := start(t, "--set", "dra.resources="+gpu)
	r.class(gpu)
	r.offered(gpu, 2)
	r.claim("own", "vendor.example-gpu", 1)
	r.run("a", gpu, 1)
	r.must(r.Create(r.ctx, claiming("b", "own")))
	r.exact("b")
	r.must(r.Devmgrd.Kill())
	pods := r.Client().CoreV1().Pods(metav1.NamespaceDefault)
	r.must(pods.Delete(r.ctx, "a", metav1.DeleteOptions{}))
	r.must(pods.Delete(r.ctx, "b", metav1.DeleteOptions{}))
	r.until("no container runs", func() bool {
		all, err := r.RunningContainers(r.ctx, "main")
		return err == nil && len(all) == 0
	})
	r.must(r.StartDevmgrd(r.soon()))
	back := time.Now()
	r.until("the pods are gone", func() bool {
		list, err := pods.List(r.ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 0
	})
	t.Logf("the pods are gone %s after devmgrd is back", time.Since(back).Round(time.Millisecond))
	r.run("c", gpu, 2)
}
