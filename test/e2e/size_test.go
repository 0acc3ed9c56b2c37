//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// A plugin with 100 000 devices, whose IDs are as long as the API has them, is like any other.
func TestPlugin_With100000Devices_Serves(t *testing.T) {
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
	r.must(r.WaitShown(r.soon(), gpu, count))
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
	r.must(r.WaitShown(r.soon(), gpu, count-1))
	outside := time.Since(began)
	p.SetHealth(all[0].ID, plugintest.Unhealthy) // in use: it counts still
	p.SetHealth(all[count-1].ID, plugintest.Healthy)
	r.must(r.WaitShown(r.soon(), gpu, count))

	t.Logf("%d devices: on the Node %s after registering; a pod runs %s after its creation; a device's health: published %s, "+
		"on the Node %s after the plugin has sent its list; resident memory %.0f MiB",
		count, registered.Round(time.Millisecond), ran.Round(time.Millisecond), inside.Round(time.Millisecond), outside.Round(time.Millisecond),
		r.metric("process_resident_memory_bytes")/(1<<20))
}

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
	r.must(r.WaitShown(r.soon(), gpu, count))
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
	r.must(r.Runtime.Kill())
	r.until("devmgrd has noticed", func() bool { return r.metric("devmgrd_nri_connected") == 0 })
	r.must(r.Runtime.Start(r.ctx))
	r.must(r.WaitRuntime(r.ctx))
	r.until("devmgrd is connected again", func() bool { return r.metric("devmgrd_nri_connected") == 1 })
	r.states(0, count, 0)

	r.must(r.Delete(r.ctx, "a"))
	r.states(count, 0, 0)
}

// Neither a pod's arguments nor a plugin's answer ends devmgrd's connection to containerd, whose messages have at most 4 MiB: that
// container is refused with the reason, and other pods get their devices meanwhile.
func TestMessageSize_PodOrGrantTooLarge_RefusedAlone(t *testing.T) {
	r := start(t)
	const reference = "$(VISIBLE_DEVICES)"
	var value atomic.Pointer[string]
	set := func(s string) { value.Store(&s) }
	set(strings.Repeat("GPU-8f6d2c4e-1111-2222-3333-444455556666,", 40))
	r.plugin(gpu, 8, func(p *plugintest.Plugin) {
		p.OnAllocate = func(context.Context, *plugintest.AllocateRequest) (*plugintest.AllocateResponse, error) {
			return &plugintest.AllocateResponse{ContainerResponses: []*plugintest.Answer{{Envs: map[string]string{"VISIBLE_DEVICES": *value.Load()}}}}, nil
		}
	})
	starts := func(name string) {
		t.Helper()
		began := time.Now()
		if got := r.run(name, gpu, 1); got.Env["VISIBLE_DEVICES"] == "" {
			t.Errorf("pod %s has no device", name)
		}
		t.Logf("pod %s: has its device after %s", name, time.Since(began).Round(time.Millisecond))
	}
	lines := func(path string, words ...string) (n int) { // those of an earlier test included
		t.Helper()
		log, err := os.ReadFile(path)
		r.must(err)
		for line := range strings.Lines(string(log)) {
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
				n++
			}
		}
		return n
	}
	connections := func() int { return lines(r.Devmgrd.LogPath(), "connected to container runtime") }
	timeouts := func() int { return lines(r.Runtime.LogPath(), "devmgrd", "deadline exceeded") }
	before, late := connections(), timeouts()
	connected := func() {
		t.Helper()
		r.until("devmgrd is connected", func() bool { return r.metric("devmgrd_nri_connected") == 1 })
		if again, late := connections()-before, timeouts()-late; again > late { // a busy machine may be late for any request
			t.Errorf("devmgrd has connected again, %d times, and %d times it was late with an answer", again, late)
		}
	}

	args := []string{"report"}
	for n := 0; n < 1_000_000; n += 100_000 {
		args = append(args, strings.Repeat(reference, 100_000/len(reference)))
	}
	r.must(r.Create(r.ctx, node.Pod("tenant", gpu, 1, args...)))
	starts("next-to-the-tenant")
	r.refused("tenant", "ContainerTooLarge: the container's arguments")
	r.told("tenant", "Warning WaitingForDevices: ContainerTooLarge: the container's arguments")
	starts("after-the-tenant")
	connected()

	small := *value.Load()
	set(strings.Repeat("x", 5<<20))
	r.must(r.Create(r.ctx, node.Pod("granted", gpu, 1, "report", "--then-sleep")))
	r.refused("granted", "PluginError: the plugin of vendor.example/gpu returned an unusable answer to Allocate")
	r.told("granted", "the grant has 5242959 bytes, and 262144 are allowed; the largest entry is envs[\"VISIBLE_DEVICES\"]")
	set(small)
	starts("after-the-plugin")
	r.running("granted") // its plugin answers less now
	connected()
	r.must(r.Delete(r.ctx, "tenant"))

	r.must(r.PodSize(r.soon()))
	r.thePodSizePolicy()
}

// thePodSizePolicy refuses pods whose containers are too large, and no others.
func (r *harness) thePodSizePolicy() {
	const limit = 256 << 10
	container := func(f func(*corev1.Container)) func(*corev1.Pod) {
		return func(p *corev1.Pod) { f(&p.Spec.Containers[0]) }
	}
	for name, test := range map[string]struct {
		change func(*corev1.Pod)
		says   string // empty: it is admitted
	}{
		"an ordinary pod":   {func(*corev1.Pod) {}, ""},
		"as many arguments": {container(func(c *corev1.Container) { c.Args = []string{text(limit)} }), ""},
		"a byte more":       {container(func(c *corev1.Container) { c.Args = []string{text(limit), "x"} }), "container main has more than 262144 bytes"},
		"as many bytes":     {container(func(c *corev1.Container) { c.Args = []string{strings.Repeat("é", limit/2)} }), ""},
		"a character more":  {container(func(c *corev1.Container) { c.Args = []string{strings.Repeat("é", limit/2+1)} }), "container main"},
		"a long command":    {container(func(c *corev1.Container) { c.Command = []string{text(limit + 1)} }), "container main"},
		"a long variable":   {container(func(c *corev1.Container) { c.Env = []corev1.EnvVar{{Name: "A", Value: text(limit)}} }), "container main"},
		"a variable of a field": {container(func(c *corev1.Container) {
			c.Env = []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}
		}), ""},
		"all of it together": {container(func(c *corev1.Container) {
			c.Command, c.Args, c.Env = []string{text(limit / 3)}, []string{text(limit / 3)}, []corev1.EnvVar{{Name: "A", Value: text(limit/3 + 10)}}
		}), "container main"},
		"an init container": {func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "first", Image: "x", Args: []string{text(limit + 1)}}}
		}, "container first"},
		"a second container": {func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "second", Image: "x", Args: []string{text(limit + 1)}})
		}, "container second"},
		"two that are not large": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Args = []string{text(limit)}
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "second", Image: "x", Args: []string{text(limit)}})
		}, ""},
		"very many arguments": {container(func(c *corev1.Container) {
			for range 300_000 {
				c.Args = append(c.Args, "x")
			}
		}), "devmgrd-pod-size"},
		"long paths": {container(func(c *corev1.Container) {
			for i := range 100 {
				c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "v", MountPath: fmt.Sprint("/", i, "/", text(700))})
			}
		}), "bytes of paths in volumeMounts"},
		"many labels": {func(p *corev1.Pod) {
			for i := range 1200 {
				metav1.SetMetaDataLabel(&p.ObjectMeta, fmt.Sprint("a/", i), text(60))
			}
		}, "bytes of labels"},
	} {
		p := node.Pod("a", "", 0)
		p.Spec.Volumes = []corev1.Volume{{Name: "v"}}
		test.change(p)
		_, err := r.Admitted(r.ctx, p)
		if test.says == "" && err != nil || test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)) {
			r.t.Errorf("%s: %.500v, want %q", name, err, test.says)
		}
	}
	// Ephemeral containers come later, to a pod that runs.
	pod, err := r.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(r.ctx, "granted", metav1.GetOptions{})
	r.must(err)
	for bytes, says := range map[int]string{10: "", limit + 1: "container debug has more than 262144 bytes"} {
		p := pod.DeepCopy()
		p.ResourceVersion = "" // the kubelet writes the pod's status meanwhile
		p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: "x", Args: []string{text(bytes)}}}}
		_, err := r.Client().CoreV1().Pods(p.Namespace).UpdateEphemeralContainers(r.ctx, p.Name, p, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			r.t.Errorf("an ephemeral container of %d bytes: %.500v, want %q", bytes, err, says)
		}
	}
}

// Pods without devices, which any user may create, keep containerd from listing its containers to an NRI plugin. devmgrd names the cause and
// the pods, and connects when they are gone.
func TestMessageSize_ContainersThatCannotBeListed_AreNamed(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 1)
	const pods = 14 // so many that containerd makes its messages as small as it can: four pods and four containers each
	for i := range pods {
		// As long as Linux starts them, and a hook, which the kubelet makes an annotation of the container: two exceed a message.
		p := node.Pod(fmt.Sprint("large-", i), "", 0, "report", "--then-sleep")
		main := &p.Spec.Containers[0]
		for v := range 15 {
			main.Env = append(main.Env, corev1.EnvVar{Name: fmt.Sprint("LONG_", v), Value: "$(LONG)"})
		}
		main.Env = append([]corev1.EnvVar{{Name: "LONG", Value: text(120_000)}}, main.Env...)
		main.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{text(400_000)}}}}
		r.must(r.Create(r.ctx, p))
	}
	for i := range pods {
		_, err := r.WaitPhase(r.soon(), fmt.Sprint("large-", i), corev1.PodRunning)
		r.must(err)
	}
	r.must(r.Devmgrd.Kill())
	r.must(r.Devmgrd.Start(r.ctx))
	r.must(r.WaitReady(r.soon(), func(_ int, text string) bool {
		return strings.Contains(text, "the runtime closes each connection before it has listed its containers")
	}))
	r.until("the Node's event", func() bool {
		events, err := r.Client().CoreV1().Events("default").List(r.ctx, metav1.ListOptions{FieldSelector: "reason=RuntimeNotSynchronized"})
		// A slow machine may have had the runtime's timeout as the first cause, and this one twice, with the timeout in between.
		return err == nil && slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return strings.Contains(e.Message, "4 MiB") })
	})
	r.until("devmgrd check names a pod", func() bool {
		return slices.ContainsFunc(r.check(), func(one remark) bool {
			return one.Verdict == "FAIL" && one.Check == "sizes" && strings.Contains(one.Text, "default/large-") && strings.Contains(one.Text, ":main (")
		})
	})
	r.restart(r.Runtime) // NRI panics when the last of them do not fit into a message
	for i := range pods {
		r.must(r.Delete(r.ctx, fmt.Sprint("large-", i)))
	}
	r.must(r.WaitReady(r.soon(), func(status int, _ string) bool { return status == 200 }))
	r.must(r.Create(r.ctx, node.Pod("after", gpu, 1, "report", "--then-sleep")))
	r.running("after")
}

// restart starts a process again each time that it ends, as systemd does, until the end of the test.
func (r *harness) restart(p *cluster.Process) {
	ctx, cancel := context.WithCancel(r.ctx)
	over := make(chan error)
	go func() {
		defer close(over)
		for {
			err := p.Wait(ctx)
			if ctx.Err() != nil {
				return
			}
			r.t.Logf("%s has ended (%v) and is started again", p.Name, err)
			if err := p.Start(ctx); err != nil {
				over <- err
				return
			}
		}
	}()
	r.t.Cleanup(func() {
		cancel()
		if err := <-over; err != nil {
			r.t.Error(err)
		}
	})
}

func text(n int) string { return strings.Repeat("x", n) }
