//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/cnigate/visit"
	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// A runtime that plugs devices into a virtual machine asks the kubelet's PodResources socket while the sandbox is made, as
// Kata Containers does. The plugin needs longer for Allocate than devmgrd lets the reader wait.
//
// With podResources.takeover the reader fails until the devices are there, and then gets those that the container gets.
// Without it the reader asks the kubelet, which knows of no devices.
func TestPodResources_ReadWhileTheSandboxIsMade_SlowAllocate(t *testing.T) {
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
			answers := make(chan struct{})
			p.Before(plugintest.Allocate, plugintest.HoldUntil(answers))
			r.must(r.Create(r.ctx, node.Pod("a", gpu, 1, "report", "--then-sleep")))
			r.until("the reader has had an answer", func() bool { return len(r.visits()["default/a"]) > 0 })
			close(answers)
			got := r.running("a").Env["DEVICES"]
			visits := r.visits()["default/a"]
			t.Logf("the pod has %s; the reader was told %+v", got, visits)
			last := visits[len(visits)-1]
			if args == nil {
				if slices.ContainsFunc(visits, func(v visit.Visit) bool { return v.Error != "" || len(v.Devices) > 0 }) {
					t.Errorf("the kubelet has told %+v", visits)
				}
				return
			}
			switch {
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

const (
	gateLog  = "/run/cnigate.log"
	gateFIFO = "/run/cnigate.fifo" // while it exists, networks are torn down when a test writes to it
)

// gated makes the shape of a cluster whose pods' networks are only made when this socket has told what the pods have.
func gated(t *testing.T, socket string) cluster.Options {
	t.Helper()
	tools, err := cluster.Build(t.Context(), t.Output(), cluster.CNIGate)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(gateLog); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return cluster.Options{CNI: []cluster.CNIPlugin{{Path: tools.Path("cnigate"), Config: map[string]any{"socket": socket, "log": gateLog, "fifo": gateFIFO}}}}
}

// visits returns what the CNI plugin has noted, by pods.
func (r *harness) visits() map[string][]visit.Visit {
	r.t.Helper()
	log, err := os.ReadFile(gateLog)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // before the first there is none
		r.t.Fatal(err)
	}
	all := map[string][]visit.Visit{}
	for line := range strings.Lines(string(log)) {
		if !strings.HasSuffix(line, "\n") {
			break // it is being written
		}
		var v visit.Visit
		r.must(json.Unmarshal([]byte(line), &v))
		all[v.Pod] = append(all[v.Pod], v)
	}
	return all
}

// A CNI plugin asks for a pod's devices while the pod's sandbox is made, to move them into its network. They are always
// there, though plugins may still be at it, and they are those that the container gets. E2E_CNI_PODS=100 makes 100 pods.
func TestPodResources_AskedByCNI_HasTheDevices(t *testing.T) {
	r := startWith(t, gated(t, ourResources))
	const burst = 5
	plugins := map[string]*plugintest.Plugin{gpu: nil, nic: nil}
	for name := range plugins {
		plugins[name] = r.plugin(name, burst, func(p *plugintest.Plugin) {
			p.OnAllocate = names(strings.ToUpper(name[strings.Index(name, "/")+1:]))
		})
	}
	// One answers at once, the other while sandboxes are made.
	plugins[nic].Before(plugintest.Allocate, plugintest.Delay(200*time.Millisecond))

	n := times(t, "E2E_CNI_PODS", 20)
	var longest float64
	quickest := math.Inf(1) // of the answers for pods that ask for nothing
	// made returns the answers with which the network of a pod was made. Where the devices, or on a busy machine the pod itself, are not known
	// within the 2 s that devmgrd lets a reader wait, the reader hears an error and comes again.
	made := func(name string) []visit.Visit {
		return slices.DeleteFunc(r.visits()["default/"+name], func(v visit.Visit) bool { return v.Error != "" && v.Took >= 2 })
	}
	for begun := 0; begun < n; begun += burst {
		pods := map[string]string{} // the resource that each asks for
		for i := range min(burst, n-begun) {
			pods[fmt.Sprintf("pod-%d", begun+i)] = []string{gpu, nic}[i%2]
		}
		plain := fmt.Sprintf("plain-%d", begun)
		r.must(r.Create(r.ctx, node.Pod(plain, "", 0, "report", "--then-sleep")))
		for name, resource := range pods {
			r.must(r.Create(r.ctx, node.Pod(name, resource, 1, "report", "--then-sleep")))
		}
		for name, resource := range pods {
			env := r.running(name).Env
			got := env["GPU"] + env["NIC"]
			for _, v := range made(name) {
				longest = max(longest, v.Took)
				if want := map[string][]string{resource: {got}}; v.Error != "" || !maps.EqualFunc(v.Devices, want, slices.Equal) {
					t.Errorf("pod %s has %v, and while its sandbox was made it was said to have %v %s", name, want, v.Devices, v.Error)
				}
			}
		}
		r.running(plain)
		pods[plain] = ""
		for name := range pods {
			if all := made(name); len(all) != 1 {
				t.Errorf("the network of pod %s was made %d times, want once: %v", name, len(all), all)
			}
		}
		for _, v := range made(plain) {
			quickest = min(quickest, v.Took)
			if len(v.Devices) > 0 || v.Error != "" {
				t.Errorf("pod %s asks for nothing, and it was said to have %v %s", plain, v.Devices, v.Error)
			}
		}
		r.deleteAll(slices.Collect(maps.Keys(pods)))
	}
	if quickest > 1 { // each of them on a machine that is not busy
		t.Errorf("each answer for a pod that asks for nothing took %.3f s at least", quickest)
	}
	t.Logf("%d pods with a device each; the longest answer took %.3f s", n, longest)

	t.Run("the devices come late", func(t *testing.T) {
		r := r.in(t)
		plugins[gpu].Stop()
		r.must(r.Create(r.ctx, node.Pod("late", gpu, 1, "report", "--then-sleep")))
		r.told("late", "PluginStale")
		r.until("its network cannot be made", func() bool {
			return slices.ContainsFunc(r.visits()["default/late"], func(v visit.Visit) bool { return v.Error != "" })
		})
		plugins[gpu].Serve()
		plugins[gpu].MustRegister()
		got := r.running("late").Env["GPU"]
		all := r.visits()["default/late"]
		for _, v := range all[:len(all)-1] {
			if v.Error == "" {
				t.Errorf("its network was made before it had a device: %v", v)
			}
		}
		if last := all[len(all)-1]; got == "" || !slices.Equal(last.Devices[gpu], []string{got}) {
			t.Errorf("the pod has %q, and the last answer was %v", got, last)
		}
		t.Logf("what was told of a pod that waits: %v", all)
		r.deleteAll([]string{"late"})
	})

	// The runtime has no container and no process of the former pod, and its network plugin may still change the devices.
	t.Run("the network is torn down late", func(t *testing.T) {
		r := r.in(t)
		r.run("former", gpu, burst)
		r.must(unix.Mkfifo(gateFIFO, 0o600))
		tearDown := func() {
			if f, err := os.OpenFile(gateFIFO, os.O_RDWR, 0); err == nil { // a reader that waits in open goes on
				os.Remove(gateFIFO)
				f.Close()
			}
		}
		t.Cleanup(tearDown)
		r.must(r.Client().CoreV1().Pods(metav1.NamespaceDefault).Delete(r.ctx, "former", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
		r.must(r.Create(r.ctx, node.Pod("next", gpu, 1, "report", "--then-sleep")))
		r.told("next", "the pod's network is being torn down: /var/run/netns/")
		r.until("the devices do not count", func() bool { return r.inState(gpu, "busy") == burst })
		r.says("devices "+gpu, "busy", "the pod's network is being torn down: /var/run/netns/")
		tearDown()
		r.running("next")
		r.until("the devices are free", func() bool { return r.inState(gpu, "free") == burst-1 })
	})
}

// deleteAll deletes pods side by side and returns when they are gone.
func (r *harness) deleteAll(names []string) {
	r.t.Helper()
	gone := make(chan error)
	for _, name := range names {
		go func() { gone <- r.Delete(r.ctx, name) }()
	}
	var all []error
	for range names {
		all = append(all, <-gone)
	}
	r.must(errors.Join(all...))
}
