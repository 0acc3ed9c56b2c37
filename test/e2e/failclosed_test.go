//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// While devmgrd is away, killed or stopped, pods that request devices do not start, and no other pod waits. The runtime has
// the configuration that is shipped, and the API server the policy that is shipped.
//
// The sizes can be changed: FAILCLOSED_PODS of each kind (4), and for FAILCLOSED_STOP devmgrd is stopped (3s):
//
//	FAILCLOSED_PODS=20 FAILCLOSED_STOP=60s go test -tags e2e -run 'TestFailClosed_DevmgrdAway_OnlyDevicePodsWait/stopped' -v ./test/e2e
func TestFailClosed_DevmgrdAway_OnlyDevicePodsWait(t *testing.T) {
	pods, stop := 4, 3*time.Second
	if text := os.Getenv("FAILCLOSED_PODS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		pods = n
	}
	if text := os.Getenv("FAILCLOSED_STOP"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		stop = d
	}

	r := startWith(t, cluster.Options{NRIRequestTimeout: 2 * time.Second})
	r.plugin(gpu, 2*pods+8)          // each pod keeps its device to the end
	if r.lacks(cluster.Validation) { // TestContainer_StartedWhileDevmgrdIsAway_IsReported has what happens then
		return
	}
	if !cluster.UsesCRIO() {
		t.Run("configuration", func(t *testing.T) { r.in(t).containerdHasOurConfiguration() })
	}
	// Without the policy, so that nothing but devmgrd's own part keeps a container from starting.
	t.Run("overruled", func(t *testing.T) { r.in(t).anotherPluginMeddles() })
	t.Run("in-the-middle", func(t *testing.T) { r.in(t).killedWhileTheRuntimeAsks() })
	if r.lacks(cluster.Policies) {
		r.until("status names what the API server lacks", func() bool {
			out, err := exec.CommandContext(r.ctx, os.Getenv("TESTNODE_BINARY"), "status").Output()
			return err == nil && strings.Contains(string(out), "there are no mutating admission policies")
		})
		return
	}
	r.must(r.FailClosed(r.soon()))
	t.Run("policy", func(t *testing.T) { r.in(t).thePolicy() })
	t.Run("away", func(t *testing.T) { r.in(t).devmgrdIsAway() })
	t.Run("stopped", func(t *testing.T) { r.in(t).devmgrdIsStopped(pods, stop) })
	t.Run("killed", func(t *testing.T) { r.in(t).devmgrdIsKilled(pods) })
}

// containerdHasOurConfiguration asks containerd what it makes of the file that is shipped, and of all of this node's, among
// which the test's own comes later.
func (r *harness) containerdHasOurConfiguration() {
	const shipped = "/etc/containerd/conf.d/devmgrd.toml"
	alone := filepath.Join(r.t.TempDir(), "config.toml")
	r.must(os.WriteFile(alone, fmt.Appendf(nil, "version = 3\nimports = [%q]\n", shipped), 0o600))
	for config, timeout := range map[string]string{alone: "10s", "/etc/containerd/config.toml": "2s"} {
		out, err := exec.CommandContext(r.ctx, r.Tools.Path("containerd"), "--config", config, "config", "dump").Output()
		r.must(err)
		for table, lines := range map[string][]string{
			"io.containerd.nri.v1.nri'": {
				"disable = false", "disable_connections = false", "socket_path = '/var/run/nri/nri.sock'",
				"plugin_request_timeout = '" + timeout + "'", "plugin_registration_timeout = '5s'",
			},
			"io.containerd.nri.v1.nri'.default_validator": {"enable = true", "required_plugins = []", "tolerate_missing_plugins_annotation = ''"},
		} {
			_, text, _ := strings.Cut(string(out), "[plugins.'"+table+"]")
			text, _, _ = strings.Cut(text, "[plugins.")
			for _, line := range lines {
				if !strings.Contains(text, " "+line+"\n") {
					r.t.Errorf("%s of %s lacks %s:\n%s", table, config, line, text)
				}
			}
		}
	}
	log, err := os.ReadFile(r.Runtime.LogPath())
	r.must(err)
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "unknown key") {
			r.t.Errorf("containerd does not know a key: %s", line)
		}
	}
}

// A meddler is another NRI plugin. What is nil is left out.
type meddler struct {
	change  func(*api.Container) *api.ContainerAdjustment
	entered chan struct{} // gets a value when a container "main" is first asked about; when it is again, it is refused
	leave   chan struct{} // and the first answer waits for the end of this
}

func (m *meddler) CreateContainer(_ context.Context, _ *api.PodSandbox, ctr *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	if ctr.GetName() != "main" {
		return nil, nil, nil
	}
	if m.entered != nil {
		select {
		case m.entered <- struct{}{}:
			<-m.leave
		default: // it has been held up once, and the next tries are to come when devmgrd is back
			return nil, nil, errors.New("not yet")
		}
	}
	if m.change == nil {
		return nil, nil, nil
	}
	return m.change(ctr), nil, nil
}

// meddle connects another NRI plugin, until the returned function is called or the test ends.
func (r *harness) meddle(index string, m *meddler) (leave func()) {
	r.t.Helper()
	return r.joinsNRI("meddler", index, m)
}

// joinsNRI connects an NRI plugin to the runtime, which may be too busy at first, until the returned function is called or the test ends.
func (r *harness) joinsNRI(name, index string, plugin any) (leave func()) {
	r.t.Helper()
	var s stub.Stub
	r.until("NRI plugin "+name+" is connected", func() bool {
		var err error
		s, err = stub.New(plugin, stub.WithPluginName(name), stub.WithPluginIdx(index), stub.WithSocketPath(r.NRISocket()), stub.WithOnClose(func() {}))
		r.must(err)
		if err = s.Start(r.ctx); err != nil {
			r.t.Logf("NRI plugin %s: %v", name, err)
			s.Stop()
		}
		return err == nil
	})
	r.t.Cleanup(s.Stop)
	return s.Stop
}

// A plugin after devmgrd that takes something away keeps the container from starting. One that adds something does not.
func (r *harness) anotherPluginMeddles() {
	leave := r.meddle("10", &meddler{change: func(*api.Container) *api.ContainerAdjustment {
		a := &api.ContainerAdjustment{}
		a.AddEnv("MEDDLER", "was here")
		return a
	}})
	if env := r.run("adorned", gpu, 1).Env; env["MEDDLER"] == "" || env["DEVICES"] == "" {
		r.t.Errorf("with another plugin's variable the environment is %v", env)
	}
	leave()

	leave = r.meddle("10", &meddler{change: func(ctr *api.Container) *api.ContainerAdjustment {
		a := &api.ContainerAdjustment{}
		if slices.ContainsFunc(ctr.GetEnv(), func(kv string) bool { return strings.HasPrefix(kv, "DEVICES=") }) {
			a.RemoveEnv("DEVICES")
			a.AddEnv("DEVICES", "stolen")
		}
		return a
	}})
	r.must(r.Create(r.ctx, node.Pod("robbed", gpu, 1, "report", "--then-sleep")))
	r.refused("robbed", "Overruled: other NRI plugins have removed or replaced entries of devmgrd: environment variable DEVICES (by 10-meddler)")
	r.must(r.Create(r.ctx, plain("plain-too")))
	_, err := r.WaitPhase(r.soon(), "plain-too", corev1.PodRunning)
	r.must(err)
	leave()
	r.nudge("robbed")
	if got := r.running("robbed").Env["DEVICES"]; !strings.HasPrefix(got, "dev-") {
		r.t.Errorf("without the other plugin the container has %q", got)
	}
}

// devmgrd dies while a container is being made: before it is asked, or after it has answered. Other plugins hold the
// runtime up for that moment.
func (r *harness) killedWhileTheRuntimeAsks() {
	for index, when := range map[string]string{"04": "before", "06": "after"} {
		m := &meddler{entered: make(chan struct{}), leave: make(chan struct{})}
		leave := r.meddle(index, m)
		name := "killed-" + when
		r.must(r.Create(r.ctx, node.Pod(name, gpu, 1, "report", "--then-sleep")))
		select {
		case <-m.entered:
		case <-r.soon().Done():
			r.t.Fatalf("the container of pod %s is not made\n%s", name, r.Events(r.ctx, name))
		}
		r.must(r.Devmgrd.Kill())
		close(m.leave)
		r.told(name, "validator plugin 05-devmgrd failed")
		r.nobodyIsBare()
		r.must(r.StartDevmgrd(r.ctx))
		leave()
		r.nudge(name)
		if got := r.running(name).Env["DEVICES"]; !strings.HasPrefix(got, "dev-") {
			r.t.Errorf("pod %s has %q", name, got)
		}
	}
}

// plain makes a pod that asks for nothing, with a container "plain".
func plain(name string) *corev1.Pod {
	p := node.Pod(name, "", 0, "sleep")
	p.Spec.Containers[0].Name = "plain"
	return p
}

// nudge has the kubelet look at a pod at once. The kubelet would do so after 10 to 15 seconds.
func (r *harness) nudge(name string) {
	r.t.Helper()
	asked(r, func() (*corev1.Pod, error) {
		return r.Client().CoreV1().Pods(metav1.NamespaceDefault).Patch(r.ctx, name, types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":{"annotations":{"test/nudge":"%d"}}}`, time.Now().UnixNano()), metav1.PatchOptions{})
	})
}

// nobodyIsBare looks for containers that ask for devices and run without. Those are named "main", and run until they are
// deleted, so one that has been made at any time is seen.
func (r *harness) nobodyIsBare() {
	r.t.Helper()
	bare, err := r.Bare(r.ctx, "main")
	r.must(err)
	if len(bare) > 0 {
		r.t.Fatalf("containers of these pods run without their devices: %q", bare)
	}
}

// devmgrdIsAway: pods that ask for devices, and plugins, wait for it; no other pod does.
func (r *harness) devmgrdIsAway() {
	r.must(r.Devmgrd.Stop(stopLimit))

	r.must(r.Create(r.ctx, node.Pod("device", gpu, 1, "report", "--then-sleep")))
	stubborn := node.Pod("stubborn", gpu, 1, "report", "--then-sleep")
	stubborn.Annotations = map[string]string{required + "/container.main": "[]"}
	r.must(r.Create(r.ctx, stubborn))
	unclear := node.Pod("unclear", gpu, 1, "report", "--then-sleep")
	unclear.Annotations = map[string]string{required: "# nothing"}
	r.must(r.Create(r.ctx, unclear))
	first := plain("device-first")
	first.Spec.InitContainers = node.Pod("", gpu, 1, "exit", "0").Spec.Containers
	first.Spec.InitContainers[0].Name = "init"
	r.must(r.Create(r.ctx, first))
	set, err := r.SamplePlugin()
	r.must(err)
	set.Namespace = metav1.NamespaceDefault
	set.Spec.Template.Spec.PriorityClassName = "" // which only kube-system may use
	r.must(r.Apply(r.ctx, set))

	began := time.Now()
	r.must(r.Create(r.ctx, plain("bystander")))
	_, err = r.WaitPhase(r.soon(), "bystander", corev1.PodRunning)
	r.must(err)
	r.t.Logf("without devmgrd a pod without devices runs after %s", time.Since(began).Round(10*time.Millisecond))
	var plugin string
	r.until("the plugin has its pod", func() bool {
		pods, err := r.Client().CoreV1().Pods(set.Namespace).List(r.ctx, metav1.ListOptions{LabelSelector: "k8s-app=sample-device-plugin"})
		if err != nil || len(pods.Items) != 1 {
			return false
		}
		plugin = pods.Items[0].Name
		return true
	})
	waiting := []string{"device", "stubborn", "device-first", plugin}
	for _, name := range waiting {
		r.told(name, `required plugin "devmgrd" not present`)
		r.must(r.WaitPod(r.soon(), metav1.NamespaceDefault, name, waitsFor("CreateContainerError")))
	}
	r.told("unclear", "write this list in brackets, so that devmgrd can be added: # nothing")
	r.nobodyIsBare()

	// All of them start, except the one that needs a repair.
	r.must(r.StartDevmgrd(r.ctx))
	for _, name := range waiting {
		_, err := r.WaitPhase(r.soon(), name, corev1.PodRunning)
		r.must(err)
	}
	for _, name := range []string{"device", "stubborn"} {
		if got := r.running(name).Env["DEVICES"]; !strings.HasPrefix(got, "dev-") {
			r.t.Errorf("pod %s has %q", name, got)
		}
	}
	r.until("the plugin is registered with devmgrd", func() bool {
		return r.metric(fmt.Sprintf("devmgrd_plugin_up{resource_name=%q}", node.SampleResource)) == 1
	})
	if n := r.metric("devmgrd_containers_not_redirected"); n != 0 {
		r.t.Errorf("%v containers are not redirected", n)
	}
	r.nobodyIsBare()
}

// waitsFor is a condition for a pod of which a container waits for that reason.
func waitsFor(reason string) func(*corev1.Pod) (bool, error) {
	return func(p *corev1.Pod) (bool, error) {
		if p == nil {
			return false, nil
		}
		return slices.ContainsFunc(slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses), func(c corev1.ContainerStatus) bool {
			return c.State.Waiting != nil && c.State.Waiting.Reason == reason
		}), nil
	}
}

// devmgrdIsStopped: it hangs, and then goes on.
func (r *harness) devmgrdIsStopped(pods int, stop time.Duration) {
	r.must(r.Devmgrd.Signal(syscall.SIGSTOP))
	began := time.Now()
	for i := range pods {
		r.must(r.Create(r.ctx, node.Pod(fmt.Sprint("stopped-device-", i), gpu, 1, "report", "--then-sleep")))
		r.must(r.Create(r.ctx, plain(fmt.Sprint("stopped-plain-", i))))
	}
	for i := range pods {
		_, err := r.WaitPhase(r.soon(), fmt.Sprint("stopped-plain-", i), corev1.PodRunning)
		r.must(err)
	}
	r.t.Logf("%d pods without devices, created together with as many with devices, run after %s, while devmgrd is stopped", pods, time.Since(began).Round(10*time.Millisecond))
	for i := range pods {
		r.must(r.WaitPod(r.soon(), metav1.NamespaceDefault, fmt.Sprint("stopped-device-", i), waitsFor("CreateContainerError")))
	}
	plugintest.Within(r.t, stop+time.Second, "the time is over", func() bool {
		r.nobodyIsBare()
		return time.Since(began) >= stop
	})
	r.must(r.Devmgrd.Signal(syscall.SIGCONT))
	began = time.Now()
	for i := range pods {
		name := fmt.Sprint("stopped-device-", i)
		if got := r.running(name).Env["DEVICES"]; !strings.HasPrefix(got, "dev-") {
			r.t.Errorf("pod %s has %q", name, got)
		}
	}
	r.t.Logf("the pods with devices run %s after devmgrd goes on", time.Since(began).Round(10*time.Millisecond))
	r.nobodyIsBare()
}

// devmgrdIsKilled again and again, while containers are being made.
func (r *harness) devmgrdIsKilled(pods int) {
	for i := range pods {
		r.must(r.Create(r.ctx, node.Pod(fmt.Sprint("killed-device-", i), gpu, 1, "report", "--then-sleep")))
		r.must(r.Create(r.ctx, plain(fmt.Sprint("killed-plain-", i))))
	}
	for range 5 {
		r.must(r.Devmgrd.Kill())
		for i := range pods {
			r.nudge(fmt.Sprint("killed-device-", i))
		}
		r.nobodyIsBare()
		r.must(r.StartDevmgrd(r.ctx))
		for i := range pods {
			r.nudge(fmt.Sprint("killed-device-", i))
		}
	}
	for i := range pods {
		_, err := r.WaitPhase(r.soon(), fmt.Sprint("killed-plain-", i), corev1.PodRunning)
		r.must(err)
		name := fmt.Sprint("killed-device-", i)
		if got := r.running(name).Env["DEVICES"]; !strings.HasPrefix(got, "dev-") {
			r.t.Errorf("pod %s has %q", name, got)
		}
	}
	r.nobodyIsBare()
}
