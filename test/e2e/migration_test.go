//go:build e2e

package e2e

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/internal/loops/dirwatch"
	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/cluster/images/report"
	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

const (
	kubeletDir  = "/var/lib/kubelet/device-plugins"
	kubeletFile = kubeletDir + "/" + checkpoint.Name
	asideDir    = kubeletDir + ".before-devmgrd"
)

// Pods with devices run through the move from the kubelet's device manager to devmgrd: none is restarted, the Node's numbers
// stay, and what restarts afterwards has the same devices, which no other pod gets.
func TestMigration_Import_PodsRunOn(t *testing.T) {
	r := start(t, "--set", "plugins.gracePeriod=5m")
	r.withoutDevmgrd()
	r.samplePlugin() // registers with the kubelet, and again whenever that makes its socket again
	old := plugintest.New(t, kubeletDir, gpu, plugintest.Dev("gpu-0", plugintest.Healthy, 0), plugintest.Dev("gpu-1", plugintest.Healthy, 0, 1),
		plugintest.Dev("gpu-2", plugintest.Healthy), plugintest.Dev("gpu-3", plugintest.Healthy), plugintest.Dev("gpu-4", plugintest.Unhealthy))
	old.Serve()
	old.MustRegister()
	r.registersAgain(old)
	r.must(r.WaitNode(r.soon(), func(n *corev1.Node) (bool, error) {
		q := n.Status.Allocatable[gpu]
		return q.Value() == 4, nil
	}))

	for name, resource := range map[string]string{"sample": node.SampleResource, "gpu": gpu} {
		p := node.Pod(name, resource, 1, "report", "--then-sleep")
		p.Spec.RestartPolicy = corev1.RestartPolicyAlways
		r.must(r.Create(r.ctx, p))
	}
	chain := node.Pod("chain", gpu, 1, "report", "--then-sleep") // its init container's device goes on to the other
	first := node.Pod("", gpu, 1, "report").Spec.Containers[0]
	first.Name = "first"
	chain.Spec.InitContainers = []corev1.Container{first}
	r.must(r.Create(r.ctx, chain))
	r.run("gone", gpu, 1)
	before := map[string]string{}
	for _, name := range []string{"sample", "gpu", "chain"} {
		before[name] = deviceOf(r.running(name))
	}
	ran := r.lives("sample", "gpu", "chain")
	_, stderr, status := r.devmgrd("import", "kubelet-checkpoint", kubeletFile)
	if status != 1 || !strings.Contains(stderr, "the kubelet is running") {
		t.Errorf("while a kubelet runs: status %d, %s", status, stderr)
	}

	numbers := r.watchNumbers(node.SampleResource)
	began := time.Now()
	r.must(r.Kubelet.Stop(stopLimit))
	now := int64(0)
	r.must(r.Client().CoreV1().Pods(metav1.NamespaceDefault).Delete(r.ctx, "gone", metav1.DeleteOptions{GracePeriodSeconds: &now})) // its container runs on
	data, err := os.ReadFile(kubeletFile)
	r.must(err)
	t.Logf("the kubelet's file:\n%s", data)
	file, err := checkpoint.Decode(data)
	r.must(err)
	if len(file.Entries) != 5 || len(file.Healthy[gpu]) != 4 || len(file.Healthy[node.SampleResource]) != 2 {
		t.Errorf("the kubelet's file is read as %+v", file)
	}

	// First without changing anything, then so.
	stdout, stderr, status := r.devmgrd("import", "kubelet-checkpoint", kubeletFile, "--dry-run")
	t.Logf("dry run:\n%s%s", stdout, stderr)
	if _, err := os.Stat(filepath.Join(node.StateDir, "state.db")); status != 0 || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("dry run: status %d, and the state file: %v", status, err)
	}
	if same, err := os.ReadFile(kubeletFile); err != nil || !bytes.Equal(same, data) {
		t.Errorf("the dry run has changed the file (%v)", err)
	}
	for _, want := range []string{"default/sample", "default/gpu", "default/chain", "no such pod is active", asideDir} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the dry run does not tell of %s", want)
		}
	}
	stdout, stderr, status = r.devmgrd("import", "kubelet-checkpoint", kubeletFile)
	t.Logf("import:\n%s%s", stdout, stderr)
	if status != 0 {
		t.Fatalf("import: status %d", status)
	}
	_, stderr, status = r.devmgrd("import", "kubelet-checkpoint", kubeletFile)
	if status != 1 || !strings.Contains(stderr, "an earlier import has moved it to "+asideDir) {
		t.Errorf("once more: status %d, %s", status, stderr)
	}
	stdout, stderr, status = r.devmgrd("import", "kubelet-checkpoint", asideDir+"/"+checkpoint.Name)
	if status != 0 || strings.Count(stdout, "already in the state file") != 5 {
		t.Errorf("once more, from where it is now: status %d, %s%s", status, stdout, stderr)
	}

	r.must(r.StartDevmgrd(r.ctx))
	r.must(r.Kubelet.Start(r.ctx))
	away := time.Since(began)
	r.must(r.WaitShown(r.soon(), gpu, 4))
	r.run("plain", "", 0) // the kubelet has taken up its pods, and makes new ones
	r.until("the kubelet has ended what is gone, and its device is free", func() bool { return r.inState(gpu, "assigned") == 2 })
	if after := r.lives("sample", "gpu", "chain"); !slices.Equal(after, ran) {
		t.Errorf("before: %v, after: %v", ran, after)
	}

	// The plugins come to devmgrd.
	r.deleteSamplePlugin(metav1.NamespaceSystem)
	fresh := plugintest.New(t, node.SocketDir, gpu, old.Listed()...)
	fresh.Serve()
	fresh.MustRegister()
	for _, resource := range []string{node.SampleResource, gpu} {
		r.until("the plugin of "+resource+" serves", func() bool { return r.metric(`devmgrd_plugin_up{resource_name="`+resource+`"}`) == 1 })
	}
	t.Logf("the kubelet was away for %s, and the plugins served %s after its end", away, time.Since(began))
	if data, err := os.ReadFile(kubeletFile); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the kubelet has devices: %s (%v)", data, err)
	}

	// What restarts has its own devices, and the rest goes to others.
	r.restartsWithTheSame(map[string]string{"sample": before["sample"], "gpu": before["gpu"]})
	in := map[string]bool{before["gpu"]: true, before["chain"]: true}
	for _, name := range []string{"new-1", "new-2"} {
		if got := deviceOf(r.run(name, gpu, 1)); in[got] {
			t.Errorf("%s has %s, which is in use", name, got)
		} else {
			in[got] = true
		}
	}
	if got := deviceOf(r.run("new-3", node.SampleResource, 1)); got == before["sample"] {
		t.Errorf("both have %s", got)
	}
	for _, n := range numbers() {
		if n != 2 {
			t.Errorf("the Node showed %d meanwhile, want 2 all the time", n)
		}
	}
}

// Without an import devmgrd finds in the kubelet's file which devices running containers have, and no other pod gets them.
func TestMigration_WithoutImport_PodsKeepTheirDevices(t *testing.T) {
	r := startWith(t, cluster.Options{})
	r.withoutDevmgrd()
	theirs := plugintest.New(t, kubeletDir, gpu, plugintest.Devices(3)...)
	theirs.Serve()
	theirs.MustRegister()
	r.must(r.WaitShown(r.soon(), gpu, 3))
	keeps, has := "a", deviceOf(r.run("a", gpu, 1))
	if other := deviceOf(r.run("b", gpu, 1)); has == string(theirs.Listed()[0].ID) { // devmgrd would choose that one
		keeps, has = "b", other
	}
	for _, name := range []string{"a", "b"} {
		if name != keeps {
			r.must(r.Delete(r.ctx, name))
		}
	}
	ran := r.lives(keeps)
	r.must(r.StartDevmgrd(r.ctx))
	theirs.Kill()
	ours := plugintest.New(t, node.SocketDir, gpu, theirs.Listed()...)
	ours.Serve()
	ours.MustRegister()
	for range 2 { // and devmgrd has it in its state file
		r.until("the pod has its devices", func() bool { return r.inState(gpu, "assigned") == 1 })
		if out := r.says("assignments"); !strings.Contains(out, "default/"+keeps) || !strings.Contains(out, has) {
			t.Errorf("pod %s has %s, and devmgrd says:\n%s", keeps, has, out)
		}
		if n := r.metric("devmgrd_started_without_devices_total"); n != 0 {
			t.Errorf("%v containers are said to have started without devices", n)
		}
		r.must(r.Devmgrd.Kill())
		r.must(r.StartDevmgrd(r.ctx))
	}
	r.must(r.WaitShown(r.soon(), gpu, 1)) // of the pod: the kubelet, which still has the resource, would fail another one
	r.must(r.Create(r.ctx, node.Pod("c", gpu, 1, "report", "--then-sleep")))
	r.unscheduled("c")
	r.must(r.Kubelet.Stop(stopLimit))
	r.must(os.Remove(kubeletFile))
	r.must(r.Kubelet.Start(r.ctx))
	if got := deviceOf(r.running("c")); got == "" || got == has {
		t.Errorf("the new pod has %q, and the old one %q", got, has)
	}
	if after := r.lives(keeps); !slices.Equal(after, ran) {
		t.Errorf("before: %v, after: %v", ran, after)
	}
}

// A resource that stayed with the kubelet moves to devmgrd under a running pod. The kubelet has the pod's next containers get the same device, so that
// the resource stays with the kubelet until the pod has ended.
func TestMigration_ResourceIsNoLongerIgnored_PodKeepsItsDevice(t *testing.T) {
	r := startWith(t, cluster.Options{}, "--set", "plugins.ignoredResources=["+nic+"]")
	r.plugin(gpu, 1, func(p *plugintest.Plugin) { p.OnAllocate = names("GPU") })
	named := func(dir string) *plugintest.Plugin {
		p := plugintest.New(t, dir, nic, plugintest.Devices(2)...)
		p.OnAllocate = names("NIC")
		p.Serve()
		p.MustRegister()
		return p
	}
	theirs := named(kubeletDir)
	r.must(r.WaitShown(r.soon(), nic, 2))
	a := twoResources("a", "1", "1")
	a.Spec.RestartPolicy = corev1.RestartPolicyAlways
	r.must(r.Create(r.ctx, a))
	got := r.running("a").Env

	r.restartedWith()
	theirs.Kill()
	named(node.SocketDir)
	const limit = "pods have devices of [" + nic + "] by it"
	for range 2 {
		r.until("devmgrd knows that the kubelet has the resource", func() bool { return strings.Contains(r.says("status"), limit) })
		r.again("a")
		if now := r.running("a").Env; got["NIC"] == "" || now["NIC"] != got["NIC"] || now["GPU"] != got["GPU"] {
			t.Errorf("the pod's container had %v and %v, and the next one has %v and %v", got["GPU"], got["NIC"], now["GPU"], now["NIC"])
		}
		if !strings.Contains(r.says("status"), limit) {
			t.Error("once the container is another one, the kubelet does not have the resource")
		}
		r.restartedWith()
	}
	if n := r.metric("devmgrd_started_without_devices_total"); n != 0 {
		t.Errorf("%v containers are said to have started without devices", n)
	}
	r.must(r.Delete(r.ctx, "a"))
	r.until("the pod's devices are free", func() bool { return r.inState(nic, "free") == 2 && !strings.Contains(r.says("status"), limit) })
}

// Until the kubelet has been started, moving back what the import has moved undoes it.
func TestMigration_ImportUndone_KubeletHasItsFile(t *testing.T) {
	r := startWith(t, cluster.Options{}) // what the kubelet finds of earlier pods is part of the test
	r.withoutDevmgrd()
	p := plugintest.New(t, kubeletDir, gpu, plugintest.Devices(2)...)
	p.Serve()
	p.MustRegister()
	r.must(r.WaitShown(r.soon(), gpu, 2))
	has := deviceOf(r.run("a", gpu, 1))
	ran := r.lives("a")
	r.must(r.Kubelet.Stop(stopLimit))
	if stdout, stderr, status := r.devmgrd("import", "kubelet-checkpoint", kubeletFile); status != 0 {
		t.Fatalf("import: status %d\n%s%s", status, stdout, stderr)
	}
	r.must(r.StartDevmgrd(r.ctx))

	r.must(r.Devmgrd.Stop(stopLimit))
	for from, to := range map[string]string{
		filepath.Join(node.StateDir, "state.db"): filepath.Join(node.StateDir, "state.db.old"),
		kubeletDir:                               kubeletDir + ".devmgrd",
	} {
		r.must(os.Rename(from, to))
	}
	r.must(os.Rename(asideDir, kubeletDir))
	r.must(r.Kubelet.Start(r.ctx))
	r.run("plain", "", 0)
	p.Kill() // it is recreated
	p.Serve()
	p.MustRegister()
	r.must(r.WaitShown(r.soon(), gpu, 2))
	if after := r.lives("a"); !slices.Equal(after, ran) {
		t.Errorf("before: %v, after: %v", ran, after)
	}
	if seen := r.kubeletsView()["a"]; !slices.Equal(seen, []string{gpu + "=" + has}) {
		t.Errorf("the kubelet believes that the pod has %v, and it has %s", seen, has)
	}
	if got := deviceOf(r.run("b", gpu, 1)); got == has || got == "" {
		t.Errorf("a new pod has %q, and the old one %q", got, has)
	}
}

// The way back: the kubelet starts from what devmgrd has written, and everything runs on.
func TestMigration_Export_PodsRunOn(t *testing.T) {
	r := start(t)
	r.samplePlugin()
	list := []*plugintest.Device{plugintest.Dev("gpu-0", plugintest.Healthy, 0, 1), plugintest.Dev("gpu-1", plugintest.Healthy), plugintest.Dev("gpu-2", plugintest.Unhealthy)}
	ours := plugintest.New(t, node.SocketDir, gpu, list...)
	ours.Serve()
	ours.MustRegister()
	r.must(r.WaitShown(r.soon(), gpu, 2))
	before := map[string]string{}
	for name, resource := range map[string]string{"sample": node.SampleResource, "gpu": gpu} {
		p := node.Pod(name, resource, 1, "report", "--then-sleep")
		p.Spec.RestartPolicy = corev1.RestartPolicyAlways
		r.must(r.Create(r.ctx, p))
		before[name] = deviceOf(r.running(name))
	}
	ran := r.lives("sample", "gpu")

	if _, stderr, status := r.devmgrd("export", "kubelet-checkpoint", kubeletFile); status != 1 || !strings.Contains(stderr, "devmgrd is running (pid "+itoa(r.Devmgrd.Pid())) {
		t.Errorf("while a devmgrd runs: status %d, %s", status, stderr)
	}
	r.must(r.Devmgrd.Stop(stopLimit))
	if _, stderr, status := r.devmgrd("export", "kubelet-checkpoint", kubeletFile); status != 1 || !strings.Contains(stderr, "the kubelet is running") {
		t.Errorf("while a kubelet runs: status %d, %s", status, stderr)
	}
	r.must(r.Kubelet.Stop(stopLimit))
	stdout, stderr, status := r.devmgrd("export", "kubelet-checkpoint", kubeletFile)
	t.Logf("export:\n%s%s", stdout, stderr)
	if status != 0 {
		t.Fatalf("export: status %d", status)
	}

	r.must(r.Kubelet.Start(r.ctx))
	r.must(r.WaitShown(r.soon(), gpu, 0)) // the kubelet's own: it waits for the plugins
	r.run("plain", "", 0)
	theirs := plugintest.New(t, kubeletDir, gpu, list...)
	theirs.Serve()
	theirs.MustRegister()
	r.deleteSamplePlugin(metav1.NamespaceSystem)
	r.must(r.WaitNode(r.soon(), func(n *corev1.Node) (bool, error) {
		g, s := n.Status.Allocatable[gpu], n.Status.Allocatable[node.SampleResource]
		c := n.Status.Capacity[gpu]
		return g.Value() == 2 && c.Value() == 3 && s.Value() == 2, nil
	}))
	if after := r.lives("sample", "gpu"); !slices.Equal(after, ran) {
		t.Errorf("before: %v, after: %v", ran, after)
	}
	seen := r.kubeletsView()
	for name, want := range map[string]string{
		"sample": node.SampleResource + "=" + before["sample"], "gpu": gpu + "=" + before["gpu"],
	} {
		if got := seen[name]; !slices.Contains(got, want) {
			t.Errorf("the kubelet believes that %s has %v, want %s", name, got, want)
		}
	}

	// What restarts has its own devices, now from the kubelet, and others have others.
	r.restartsWithTheSame(before)
	for resource, holder := range map[string]string{gpu: "gpu", node.SampleResource: "sample"} {
		if got := deviceOf(r.run("new-"+holder, resource, 1)); got == before[holder] || got == "" {
			t.Errorf("a new pod has %q of %s, and %s has %q", got, resource, holder, before[holder])
		}
	}
	data, err := os.ReadFile(kubeletFile)
	r.must(err)
	file, err := checkpoint.Decode(data) // as the kubelet has written it now
	if err != nil || len(file.Entries) != 4 {
		t.Errorf("the kubelet has gone on with %+v (%v)", file, err)
	}
}

// withoutDevmgrd makes the node one that has never had devmgrd.
func (r *harness) withoutDevmgrd() {
	r.t.Helper()
	r.must(r.Devmgrd.Stop(stopLimit))
	r.must(os.RemoveAll(filepath.Join(node.StateDir, "state.db")))
	r.must(os.Remove(filepath.Join(kubeletDir, "devmgrd.txt")))
}

// registersAgain has a plugin do what plugins do when they see that a kubelet has started: its socket, in the directory
// that they were given.
func (r *harness) registersAgain(p *plugintest.Plugin) {
	r.t.Helper()
	w, err := dirwatch.Start()
	r.must(err)
	r.must(w.AddPath(kubeletDir))
	r.t.Cleanup(func() { w.Close() })
	go func() { // ends with the watcher
		for e := range w.Events {
			if e.Has(dirwatch.Create) && filepath.Base(e.Name) == "kubelet.sock" {
				p.Kill()
				p.Serve()
				if err := p.Register(); err != nil {
					r.t.Logf("a plugin registers again: %v", err)
				}
			}
		}
	}()
}

// devmgrd runs another command of devmgrd.
func (r *harness) devmgrd(args ...string) (stdout, stderr string, status int) {
	r.t.Helper()
	cmd := r.Command(r.ctx, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		r.t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// restartsWithTheSame ends the containers of these pods and looks at what they have then.
func (r *harness) restartsWithTheSame(devices map[string]string) {
	r.t.Helper()
	for name, want := range devices {
		pod, err := r.WaitPhase(r.ctx, name, corev1.PodRunning)
		r.must(err)
		r.must(r.Containers.Kill(r.ctx, node.ContainerID(pod)))
		r.must(r.WaitPod(r.soon(), metav1.NamespaceDefault, name, func(p *corev1.Pod) (bool, error) {
			return p.Status.ContainerStatuses[0].RestartCount > 0 && p.Status.ContainerStatuses[0].State.Running != nil, nil
		}))
		if got := deviceOf(r.running(name)); got != want || got == "" {
			r.t.Errorf("%s had %q and has %q", name, want, got)
		}
	}
}

// kubeletsView asks the kubelet which devices pods have: resource=ID, by the pods' names.
func (r *harness) kubeletsView() map[string][]string {
	r.t.Helper()
	conn, err := grpc.NewClient("unix:///var/lib/kubelet/pod-resources/kubelet.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	r.must(err)
	defer conn.Close()
	answer, err := podresources.NewPodResourcesListerClient(conn).List(r.ctx, &podresources.ListPodResourcesRequest{})
	r.must(err)
	all := map[string][]string{}
	for _, p := range answer.PodResources {
		for _, c := range p.Containers {
			for _, d := range c.Devices {
				for _, id := range d.DeviceIds {
					all[p.Name] = append(all[p.Name], d.ResourceName+"="+id)
				}
			}
		}
	}
	return all
}

// lives names the lives of pods' containers: a restart makes another one.
func (r *harness) lives(pods ...string) []string {
	r.t.Helper()
	var all []string
	for _, name := range pods {
		p, err := r.WaitPhase(r.ctx, name, corev1.PodRunning)
		r.must(err)
		all = append(all, name+" "+node.ContainerID(p))
	}
	return all
}

// deviceOf tells which device a container sees, by what the plugins grant.
func deviceOf(seen report.Report) string {
	for _, id := range []string{"Dev-1", "Dev-2"} {
		if _, there := seen.Mount("/tmp/" + id); there {
			return id
		}
	}
	return seen.Env["DEVICES"]
}
