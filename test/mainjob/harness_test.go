//go:build e2e

package mainjob

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/cluster/images/report"
	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

func TestMain(m *testing.M) {
	cluster.Main(m.Run, cluster.Needs(cluster.Containers), node.BuildRacing)
}

const gpu = "vendor.example/gpu"

// patience is how long the tests wait for what has to come: the limit of a machine that does many things at once.
const patience = 3 * time.Minute

// A harness is a node for one test: containerd, and devmgrd.
type harness struct {
	*node.Node
	t   *testing.T
	ctx context.Context
}

// start starts containerd and devmgrd. When the test ends, no device may be in two hands, and devmgrd may have reported no data race.
func start(t *testing.T, args ...string) *harness {
	t.Helper()
	ctx := t.Context()
	n, err := node.Start(ctx, node.Options{Cluster: cluster.Options{Alone: true, Log: t.Output()}, Args: args})
	if err != nil {
		t.Fatal(err)
	}
	h := &harness{n, t, ctx}
	t.Cleanup(func() {
		h.ctx = context.Background() // the test's own is over
		h.noDeviceInTwoHands()
		log, err := os.ReadFile(n.Devmgrd.LogPath())
		if err != nil || bytes.Contains(log, []byte("DATA RACE")) {
			t.Errorf("devmgrd's log has a data race, or cannot be read: %v\n%s", err, log)
		}
		if t.Failed() {
			t.Logf("the end of devmgrd's log:\n%s", n.Tail())
			for _, command := range []string{"status", "devices", "assignments"} {
				out, err := n.Command(h.ctx, command).CombinedOutput()
				t.Logf("devmgrd %s: %v\n%s", command, err, out)
			}
		}
		if err := n.Stop(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func (h *harness) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// until waits for something to hold.
func (h *harness) until(what string, condition func() bool) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.ctx, patience)
	defer cancel()
	if cluster.Poll(ctx, func(context.Context) (bool, error) { return condition(), nil }) != nil {
		h.t.Fatalf("not within %s: %s", patience, what)
	}
}

func (h *harness) noDeviceInTwoHands() {
	h.t.Helper()
	if err := h.InTwoHands(h.ctx); err != nil {
		h.t.Error(err)
	}
}

// A pod has one container, main.
type pod struct {
	*cluster.Sandbox
	h    *harness
	name string
	id   string // of the container
}

// pod makes a pod that requests so many devices. It is removed when the test ends.
func (h *harness) pod(name, resource string, count int) *pod {
	h.t.Helper()
	config := cluster.PodConfig{Name: name}
	if count > 0 {
		config.Annotations = node.ResourcesAnnotation(resource, count)
	}
	s, err := h.RunSandbox(h.ctx, config)
	h.must(err)
	return h.owns(s, name)
}

// owns has a pod removed when the test ends.
func (h *harness) owns(s *cluster.Sandbox, name string) *pod {
	p := &pod{Sandbox: s, h: h, name: name}
	h.t.Cleanup(func() {
		if p.Sandbox != nil {
			p.remove()
		}
	})
	return p
}

// remove ends and removes the pod.
func (p *pod) remove() {
	p.h.t.Helper()
	if err := p.Remove(context.WithoutCancel(p.h.ctx)); err != nil {
		p.h.t.Error(err)
	}
	p.Close()
	p.Sandbox = nil
}

// try makes the container as the kubelet does, once.
func (p *pod) try() error {
	id, err := p.Run(p.h.ctx, cluster.ContainerConfig{
		Name: "main", Image: cluster.ProbeImage, Args: []string{"report", "--then-sleep"}, Env: []string{"OWN=the pod's"},
	})
	p.id = id
	return err
}

// starts makes the container, again and again like the kubelet, until it runs, and returns what the container sees.
func (p *pod) starts() report.Report {
	p.h.t.Helper()
	var last error
	p.h.until("pod "+p.name+" runs", func() bool { last = p.try(); return last == nil })
	return p.report()
}

// refused makes the container until the runtime refuses it with these words.
func (p *pod) refused(words string) {
	p.h.t.Helper()
	p.h.until("pod "+p.name+" is refused: "+words, func() bool {
		err := p.try()
		if err == nil {
			p.h.t.Fatalf("pod %s runs, and should be refused: %s", p.name, words)
		}
		return strings.Contains(err.Error(), words)
	})
}

// again ends the container and makes it again.
func (p *pod) again() report.Report {
	p.h.t.Helper()
	p.h.must(p.RemoveContainer(p.h.ctx, p.id))
	return p.starts()
}

// report returns what the container sees.
func (p *pod) report() report.Report {
	p.h.t.Helper()
	ctx, cancel := context.WithTimeout(p.h.ctx, patience)
	defer cancel()
	r, err := node.SandboxReport(ctx, p.Sandbox)
	p.h.must(err)
	return r
}

// devices returns the devices of plugintest's plugins that the container has.
func devices(r report.Report) []string {
	return strings.FieldsFunc(r.Env["DEVICES"], func(r rune) bool { return r == ',' })
}

// serve starts a device plugin and waits until devmgrd has its devices.
func (h *harness) serve(resource string, count int, prepare ...func(*plugintest.Plugin)) *plugintest.Plugin {
	h.t.Helper()
	p := plugintest.New(h.t, node.SocketDir, resource, plugintest.Devices(count)...)
	for _, f := range prepare {
		f(p)
	}
	p.Serve()
	p.MustRegister()
	h.up(resource, true)
	return p
}

// up waits until a resource's plugin serves, or does not.
func (h *harness) up(resource string, want bool) {
	h.t.Helper()
	h.until(fmt.Sprintf("the plugin of %s serves: %t", resource, want), func() bool {
		v, err := h.Metric(fmt.Sprintf("devmgrd_plugin_up{resource_name=%q}", resource))
		return err == nil && v == 1 == want
	})
}

// inState waits until so many devices of a resource are in a state.
func (h *harness) inState(resource, state string, count int) {
	h.t.Helper()
	series := fmt.Sprintf("devmgrd_devices{resource_name=%q,state=%q}", resource, state)
	h.until(fmt.Sprintf("%d devices of %s are %s", count, resource, state), func() bool {
		v, err := h.Metric(series)
		return err == nil && v == float64(count)
	})
}

// listed waits until PodResources lists these devices, by pod.
func (h *harness) listed(want map[string][]string) {
	h.t.Helper()
	conn, err := grpc.NewClient("unix:///run/devmgrd/pod-resources/kubelet.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	h.must(err)
	defer conn.Close()
	client := podresources.NewPodResourcesListerClient(conn)
	var got map[string][]string
	h.until(fmt.Sprintf("PodResources lists %v", want), func() bool {
		answer, err := client.List(h.ctx, &podresources.ListPodResourcesRequest{})
		if err != nil {
			return false
		}
		got = map[string][]string{}
		for _, p := range answer.PodResources {
			for _, c := range p.Containers {
				for _, d := range c.Devices {
					got[p.Name] = append(got[p.Name], d.DeviceIds...)
				}
			}
		}
		return fmt.Sprint(got) == fmt.Sprint(want) // maps print in the order of their keys
	})
}

// kill ends a process with SIGKILL and starts it again.
func (h *harness) kill(p *cluster.Process) {
	h.t.Helper()
	h.must(p.Signal(syscall.SIGKILL))
	_ = p.Wait(h.ctx) // it has been killed, which is an error of its own
	if p == h.Devmgrd {
		h.must(h.StartDevmgrd(h.ctx))
		return
	}
	h.must(p.Start(h.ctx))
	h.must(h.WaitRuntime(h.ctx))
	h.must(h.WaitReady(h.ctx, func(_ int, text string) bool { return strings.Contains(text, "nri: ok") }))
}

// alive reports whether containers run.
func (h *harness) alive(pods ...*pod) bool {
	ids, err := h.Containers.Running(h.ctx)
	return err == nil && !slices.ContainsFunc(pods, func(p *pod) bool { return !slices.Contains(ids, p.id) })
}
