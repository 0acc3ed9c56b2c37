//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/cluster/images/report"
	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

func TestMain(m *testing.M) {
	cluster.Main(func() int {
		status := m.Run()
		if err := stopSpare(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			status = max(status, 1)
		}
		return status
	}, cluster.Needs(kits...), node.Build)
}

// kits are the programs that the tests use.
var kits = []cluster.Kit{cluster.Kubernetes, cluster.Consumer, cluster.CNIGate, cluster.DRADriver, cluster.Kubectl}

const (
	gpu = "vendor.example/gpu"
	nic = "vendor.example/nic"
)

// patience is how long the tests wait for what has to come: the limit of a machine that does many things at once, not an expectation. The
// kubelet starts a container that has ended again after pauses of up to 5 minutes. Machines that were ten times slower than usual have been seen.
const patience = 10 * time.Minute

// stopLimit is how long a process may take to end.
const stopLimit = time.Minute

// A harness is a node for one test. What goes wrong ends the test.
type harness struct {
	*node.Node
	t    *testing.T
	ctx  context.Context
	worn bool // what the test leaves takes longer to remove than a new node takes to start
}

// spare is a node that the next test can use. Tests run one after the other.
var (
	spare   *node.Node
	vacated bool // spare's cluster is as good as new, with the options of start
)

func stopSpare() error {
	if spare == nil {
		return nil
	}
	n := spare
	spare, vacated = nil, false
	return n.Stop()
}

// start starts devmgrd, without state and with these arguments, on a cluster without pods and devices. A test that leaves
// other traces need not remove them: the next test then gets a new node on the same control plane, and where that is not enough another
// cluster.
func start(t *testing.T, args ...string) *harness {
	t.Helper()
	if !vacated {
		return begin(t, true, func(ctx context.Context) (*node.Node, error) { return fresh(ctx, t, cluster.Options{}, args) })
	}
	used := spare
	spare, vacated = nil, false
	return begin(t, true, func(ctx context.Context) (*node.Node, error) { return used.Again(ctx, settings(args)...) })
}

// settings returns arguments for devmgrd that begin with those of all tests: a plugin that is away does not count as lost while a busy
// machine comes to the next step of the test.
func settings(args []string) []string {
	return append([]string{"--set", "plugins.gracePeriod=10m"}, args...)
}

// startWith starts devmgrd on a cluster with peculiarities, which only this test uses.
func startWith(t *testing.T, o cluster.Options, args ...string) *harness {
	t.Helper()
	return begin(t, false, func(ctx context.Context) (*node.Node, error) { return fresh(ctx, t, o, args) })
}

// fresh starts a new node, on the control plane of the spare one if there is one and it can be kept.
func fresh(ctx context.Context, t *testing.T, o cluster.Options, args []string) (*node.Node, error) {
	o.Log, o.Processors = t.Output(), 1 // lanes share the machine
	if spare != nil {
		used := spare
		spare, vacated = nil, false
		soon, cancel := context.WithTimeout(ctx, 2*time.Minute)
		defer cancel()
		err := used.Renew(soon, o)
		if err == nil {
			return used.Again(ctx, settings(args)...)
		}
		t.Log("the control plane is not used again:", err)
		// One cluster at a time, and no lines of an earlier devmgrd in the log.
		if err := errors.Join(used.Stop(), os.RemoveAll(used.Devmgrd.LogPath())); err != nil {
			return nil, err
		}
	}
	return node.Start(ctx, node.Options{Cluster: o, Args: settings(args)})
}

func begin(t *testing.T, share bool, start func(context.Context) (*node.Node, error)) *harness {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute) // a slow machine has taken 13 for a test that takes two
	t.Cleanup(cancel)
	n, err := start(ctx)
	if err != nil {
		t.Fatal(err)
	}
	r := &harness{n, t, ctx, false}
	t.Cleanup(func() {
		r.ctx = context.Background() // the test's own is over
		r.checkPromises()
		described := t.Failed()
		if described {
			r.describe()
		}
		_ = n.Devmgrd.Signal(syscall.SIGCONT) // a frozen process cannot stop
		if err := n.Devmgrd.Stop(stopLimit); err != nil {
			t.Error(err)
			if !described {
				r.describe()
			}
		}
		if t.Failed() {
			if err := n.Stop(); err != nil {
				t.Error(err)
			}
			return
		}
		spare, vacated = n, false
		if !share || r.worn {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		began := time.Now()
		if err := n.Vacate(ctx); err != nil {
			t.Log("the node is not used again:", err)
			return
		}
		t.Logf("the cluster is as good as new after %s", time.Since(began).Round(10*time.Millisecond))
		vacated = true
	})
	return r
}

// describe tells how things stand at the end of a test that has failed.
func (r *harness) describe() {
	r.t.Logf("devmgrd said last:\n%s", r.Tail())
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, command := range []string{"status", "devices", "assignments"} {
		out, err := exec.CommandContext(ctx, os.Getenv("TESTNODE_BINARY"), command).CombinedOutput()
		r.t.Logf("devmgrd %s: %v\n%s", command, err, out)
	}
	for _, p := range []*cluster.Process{r.Etcd, r.APIServer, r.ControllerManager, r.Scheduler, r.Kubelet, r.Runtime} {
		if !p.Running() {
			r.t.Logf("%s does not run", p.Name)
		}
	}
	pods, err := r.Client().CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		r.t.Logf("the pods cannot be listed, which a test may be the cause of: %v", err)
		return
	}
	r.t.Logf("there are %d pods", len(pods.Items))
	for _, p := range pods.Items {
		s := p.Status
		r.t.Logf("pod %s: %s, %q %q, to be deleted at %v, containers %+v", p.Name, s.Phase, s.Reason, s.Message, p.DeletionTimestamp, s.ContainerStatuses)
	}
}

// lacks reports whether a release under test does not have a feature. make matrix reads the line that says so.
func (r *harness) lacks(f cluster.Feature) bool {
	r.t.Helper()
	if cluster.Has(f) {
		return false
	}
	r.t.Logf("LACKS %s", f)
	return true
}

// tool returns the path of a program.
func (r *harness) tool(kit cluster.Kit, program string) string {
	r.t.Helper()
	tools, err := cluster.Build(r.ctx, r.t.Output(), kit)
	r.must(err)
	return tools.Path(program)
}

// in is the rig for a subtest.
func (r *harness) in(t *testing.T) *harness { return &harness{r.Node, t, r.ctx, false} }

func (r *harness) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// soon is a context for what has to come.
func (r *harness) soon() context.Context {
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	r.t.Cleanup(cancel)
	return ctx
}

// checkPromises looks at what the runtime and the API server have.
func (r *harness) checkPromises() {
	r.t.Helper()
	if err := r.InTwoHands(r.ctx); err != nil {
		r.t.Error(err)
	}
	pods, err := r.Client().CoreV1().Pods("").List(r.ctx, metav1.ListOptions{})
	if err != nil {
		return // a test may leave the API server down
	}
	for _, p := range pods.Items {
		if p.Status.Phase == corev1.PodFailed && p.Status.Reason != "" {
			r.t.Errorf("pod %s has failed: %s: %s", p.Name, p.Status.Reason, p.Status.Message)
		}
	}
}

// serve starts a device plugin on the node, and registers it.
func (r *harness) serve(resource string, devices int, prepare ...func(*plugintest.Plugin)) *plugintest.Plugin {
	r.t.Helper()
	p := plugintest.New(r.t, node.SocketDir, resource, plugintest.Devices(devices)...)
	for _, f := range prepare {
		f(p)
	}
	p.Serve()
	p.MustRegister()
	return p
}

// plugin starts a device plugin on the node, and waits until the Node shows its devices.
func (r *harness) plugin(resource string, devices int, prepare ...func(*plugintest.Plugin)) *plugintest.Plugin {
	r.t.Helper()
	p := r.serve(resource, devices, prepare...)
	r.must(r.WaitShown(r.soon(), resource, int64(devices)))
	return p
}

// samplePlugin applies Kubernetes' sample device plugin and waits until the Node shows its devices.
func (r *harness) samplePlugin(prepare ...func(*corev1.Container)) {
	r.t.Helper()
	set, err := r.SamplePlugin()
	r.must(err)
	for _, f := range prepare {
		f(&set.Spec.Template.Spec.Containers[0])
	}
	r.must(r.Apply(r.ctx, set))
	r.must(r.WaitShown(r.soon(), node.SampleResource, 2))
}

// deleteSamplePlugin deletes the pod of the sample plugin, for another to come in its place. The controller manager has to have seen the pod.
// One that comes and goes while the controller manager's watch is broken, as for half a minute after an earlier test has killed the API
// server, is one that it goes on waiting for: no other comes for five minutes.
func (r *harness) deleteSamplePlugin(namespace string) {
	r.t.Helper()
	set, err := r.SamplePlugin()
	r.must(err)
	r.until("the controller manager has seen the sample plugin's pod", func() bool {
		now, err := r.Client().AppsV1().DaemonSets(namespace).Get(r.ctx, set.Name, metav1.GetOptions{})
		return err == nil && now.Status.CurrentNumberScheduled == 1
	})
	r.must(r.Client().CoreV1().Pods(namespace).DeleteCollection(r.ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(set.Spec.Selector)}))
}

// run creates a pod that reports what it sees and stays, and returns its report.
func (r *harness) run(name, resource string, count int) report.Report {
	r.t.Helper()
	r.must(r.Create(r.ctx, node.Pod(name, resource, count, "report", "--then-sleep")))
	return r.running(name)
}

// running waits for a pod, and returns its report.
func (r *harness) running(name string) report.Report {
	r.t.Helper()
	_, err := r.WaitPhase(r.soon(), name, corev1.PodRunning)
	r.must(err)
	got, err := r.Report(r.soon(), name)
	r.must(err)
	return got
}

// until waits for something to hold.
func (r *harness) until(what string, condition func() bool) {
	r.t.Helper()
	if !r.comes(condition) {
		r.t.Fatalf("not within %s: %s", patience, what)
	}
}

// comes waits for something to hold, and reports whether it does.
func (r *harness) comes(condition func() bool) bool {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return cluster.Poll(ctx, func(context.Context) (bool, error) { return condition(), nil }) == nil
}

// briefly repeats what can be judged only if it takes less than limit, which a busy machine may exceed. do returns how long it has taken.
func (r *harness) briefly(what string, limit time.Duration, do func() (took time.Duration)) {
	r.t.Helper()
	const most = 5
	for range most {
		took := do()
		if took < limit {
			return
		}
		r.t.Logf("%s took %s, too long to be judged", what, took.Round(time.Millisecond))
	}
	r.t.Fatalf("%s took longer than %s, %d times", what, limit, most)
}

// metric returns the value of a series.
func (r *harness) metric(series string) float64 {
	r.t.Helper()
	v, err := r.Metric(series)
	r.must(err)
	return v
}

// inState counts a resource's devices in a state.
func (r *harness) inState(resource, state string) float64 {
	r.t.Helper()
	return r.metric(fmt.Sprintf("devmgrd_devices{resource_name=%q,state=%q}", resource, state))
}

// unscheduled waits until the scheduler has found no room for the pod.
func (r *harness) unscheduled(name string) {
	r.t.Helper()
	r.must(r.WaitPod(r.soon(), metav1.NamespaceDefault, name, func(p *corev1.Pod) (bool, error) {
		if p == nil || p.Status.Phase != corev1.PodPending {
			return false, fmt.Errorf("pod %s is not pending: %+v", name, p)
		}
		return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable
		}), nil
	}))
}

// refused waits until the kubelet has told that devmgrd refuses the pod's container for this reason.
func (r *harness) refused(name, reason string) {
	r.t.Helper()
	want := "cannot start yet: " + reason
	r.until("pod "+name+" is refused: "+reason, func() bool { return strings.Contains(r.Events(r.ctx, name), want) })
}

// told waits until the pod's events hold this.
func (r *harness) told(name, want string) {
	r.t.Helper()
	r.until("the owner of pod "+name+" reads: "+want, func() bool { return strings.Contains(r.Events(r.ctx, name), want) })
}

// makeNode makes a device node for a plugin to grant, in a directory of the test.
func makeNode(t *testing.T, name string, mode uint32, major, minor uint32) string {
	t.Helper()
	path := filepath.Join("/run/vendor", name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(path, unix.S_IFCHR|mode, int(unix.Mkdev(major, minor))); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, os.FileMode(mode)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(path) })
	return path
}

// minus returns the keys of a that b does not have.
func minus[V any](a, b map[string]V) []string {
	a = maps.Clone(a)
	maps.DeleteFunc(a, func(k string, _ V) bool { _, ok := b[k]; return ok })
	return slices.Sorted(maps.Keys(a))
}

// points returns a report's mounts by where they are.
func points(r report.Report) map[string]report.Mount {
	all := map[string]report.Mount{}
	for _, m := range r.Mounts {
		all[m.Point] = m
	}
	return all
}

// devices returns a report's device nodes by their paths.
func devices(r report.Report) map[string]report.Device {
	all := map[string]report.Device{}
	for _, d := range r.Devices {
		all[d.Path] = d
	}
	return all
}

// asks makes a container that asks for so many devices.
func asks(name string, count int, args ...string) corev1.Container {
	c := corev1.Container{Name: name, Image: cluster.ProbeImage, Args: args}
	if count > 0 {
		c.Resources.Limits = corev1.ResourceList{gpu: resource.MustParse(fmt.Sprint(count))}
	}
	return c
}

// held returns which devices the containers of a pod have or had, by the containers' reports.
func (r *harness) held(pod string, containers ...string) map[string][]string {
	r.t.Helper()
	all := map[string][]string{}
	for _, c := range containers {
		r.until("container "+c+" of pod "+pod+" reports", func() bool {
			log, err := r.PodLogs(r.ctx, metav1.NamespaceDefault, pod, c)
			var got report.Report
			lines := strings.Split(strings.TrimSpace(log), "\n")
			if err != nil || json.Unmarshal([]byte(lines[len(lines)-1]), &got) != nil {
				return false
			}
			all[c] = strings.FieldsFunc(got.Env["DEVICES"], func(r rune) bool { return r == ',' })
			return true
		})
	}
	return all
}

func sameDevices(a, b []node.Stamp) bool {
	text := func(all []node.Stamp) string {
		var lines []string
		for _, s := range all {
			lines = append(lines, fmt.Sprint(s.Container, s.Devices))
		}
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	return text(a) == text(b)
}

func (r *harness) uid(name string) types.UID {
	r.t.Helper()
	return asked(r, func() (*corev1.Pod, error) {
		return r.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(context.WithoutCancel(r.ctx), name, metav1.GetOptions{})
	}).UID
}

// asked returns what a question to the API server is answered with, which may be too busy at first.
func asked[T any](r *harness, ask func() (T, error)) (answer T) {
	r.t.Helper()
	var err error
	if !r.comes(func() bool { answer, err = ask(); return err == nil }) {
		r.t.Fatal(err)
	}
	return answer
}

// processWith returns a process whose environment has this variable, NAME=VALUE, or 0.
func processWith(t *testing.T, variable string) (pid int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		if env, err := os.ReadFile(name); err == nil && bytes.Contains(env, []byte(variable+"\x00")) {
			_, _ = fmt.Sscanf(name, "/proc/%d/", &pid)
			return pid
		}
	}
	return 0
}
