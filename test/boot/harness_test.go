//go:build e2e

package boot

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/cluster/images/report"
	"github.com/devmgrd/devmgrd/test/machine"
	"github.com/devmgrd/devmgrd/test/node"
)

// patience is how long the tests wait for what must come: the machine may be emulated, on a busy one. The kubelet allows containerd two minutes
// to stop a container, and where the container's shim does not answer it tries again as often.
const patience = 12 * time.Minute

const gpu = "vendor.example/gpu"

// shared is the machine that the tests share, with devmgrd installed.
var shared *machine.Node

// paired says that the machine has what startPair makes.
var paired bool

func stopShared() error {
	if shared == nil {
		return nil
	}
	n := shared
	shared, paired = nil, false
	return n.Stop()
}

// A harness is the shared machine in a test.
type harness struct {
	*node.Node // the pods' side
	machine    *machine.Node
	t          *testing.T
	ctx        context.Context
	described  bool
}

// start returns the machine, with devmgrd installed and no pods.
func start(t *testing.T) *harness {
	t.Helper()
	h := begin(t)
	if paired {
		paired = false
		h.vacate()
	}
	return h
}

// startPair returns the machine with a plugin's devices gpu0 and gpu1, of which the pod "before" has the first returned. The tests that
// call it one after the other share them, and none may end that pod or move its device.
func startPair(t *testing.T) (h *harness, had, other string) {
	t.Helper()
	h = begin(t)
	if !paired {
		h.driver()
		h.service("gpu0=/dev/vendor/gpu0:rw", "gpu1=/dev/vendor/gpu1:rw")
		h.runs("before", 1)
		paired = true
	}
	had = h.holds("before")
	return h, had, map[string]string{"gpu0": "gpu1", "gpu1": "gpu0"}[had]
}

// untouched checks that the pod "before" is as it was.
func (h *harness) untouched(had string) {
	h.t.Helper()
	if n := h.restarts("before"); n != 0 || h.holds("before") != had {
		h.t.Errorf("the pod that ran was started %d times again, and holds %s; it had %s", n, h.holds("before"), had)
	}
}

// begin returns the machine as the test before has left it.
func begin(t *testing.T) *harness {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Minute)
	t.Cleanup(cancel)
	isNew := shared == nil
	if isNew {
		o := machine.NodeOptions{Cluster: cluster.Options{Log: t.Output()}, Machine: machine.Options{Log: t.Output()}}
		if *onSELinux {
			o.Cluster.ContainerdConfig = "[plugins.'io.containerd.cri.v1.runtime']\nenable_selinux = true\n"
		}
		n, err := machine.StartNode(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		shared = n
	}
	h := on(ctx, t)
	h.cleanup(func() {
		defer func() { // also if one of these ends the test
			if !t.Failed() {
				return
			}
			h.describeFailure()
			if err := stopShared(); err != nil {
				t.Error(err)
			}
		}()
		h.promises()
		h.nothingIsDenied()
		switch {
		case t.Failed(): // there is no next test for this machine
		case paired:
			h.removePods("before")
		default:
			h.vacate()
		}
	})
	if isNew {
		h.install()
		h.must(h.FailClosed(h.ctx))
	}
	return h
}

func on(ctx context.Context, t *testing.T) *harness {
	h := &harness{Node: &node.Node{Cluster: shared.Cluster}, machine: shared, t: t, ctx: ctx}
	h.Devmgrd = h.Another("devmgrd") // never started: systemd does that
	return h
}

// cleanup runs a function at the end of the test, whose own context has ended by then. A failed test describes the machine before that.
func (h *harness) cleanup(does func()) {
	h.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
		defer cancel()
		h.ctx = ctx
		h.describeFailure()
		does()
	})
}

func (h *harness) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// types runs a script in the machine that has to succeed, and returns what it prints.
func (h *harness) types(script string) string {
	h.t.Helper()
	out, err := h.machine.Shell(h.ctx, script)
	if err != nil {
		h.t.Fatalf("%v\n%s", err, out)
	}
	return strings.TrimSpace(out)
}

// tries runs a script that may fail.
func (h *harness) tries(script string) string {
	out, _ := h.machine.Shell(h.ctx, script)
	return out
}

// until waits for a condition. Most conditions run programs in the machine, which may be emulated: the pauses grow, so that a long wait
// does not take the processor from what it waits for.
func (h *harness) until(what string, condition func() bool) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.ctx, patience)
	defer cancel()
	for pause := 100 * time.Millisecond; !condition(); pause = min(pause*3/2, 2*time.Second) {
		select {
		case <-ctx.Done():
			h.t.Fatalf("%s: it did not come to that: %v", what, ctx.Err())
		case <-time.After(pause):
		}
	}
}

// soon is a context for what must come.
func (h *harness) soon() context.Context {
	ctx, cancel := context.WithTimeout(h.ctx, patience)
	h.t.Cleanup(cancel)
	return ctx
}

// install installs the package as an administrator does.
func (h *harness) install() {
	h.t.Helper()
	deb, err := os.ReadFile(os.Getenv(packageVariable))
	h.must(err)
	plugin, err := os.ReadFile(os.Getenv(pluginVariable))
	h.must(err)
	h.must(h.machine.Put(h.ctx, map[string]string{"/root/devmgrd.deb": string(deb), "/usr/local/bin/plugin": string(plugin)}))
	began := time.Now()
	h.types("chmod 755 /usr/local/bin/plugin; dpkg --install /root/devmgrd.deb")
	if *onSELinux {
		h.installModule()
	}
	h.types("devmgrd check || true; systemctl enable --now devmgrd.socket devmgrd.service")
	h.ready()
	h.t.Logf("installed the package after %s", time.Since(began).Round(100*time.Millisecond))
}

// ready waits until every part of devmgrd is.
func (h *harness) ready() {
	h.t.Helper()
	h.until("devmgrd is ready", func() bool {
		_, table, found := strings.Cut(h.tries("devmgrd status"), "COMPONENT")
		table, _, _ = strings.Cut(table, "\n\n")
		lines := strings.Split(table, "\n")[1:] // without the header
		return found && !slices.ContainsFunc(lines, func(line string) bool { return !strings.HasSuffix(strings.TrimSpace(line), " ok") })
	})
}

// service starts a plugin as a service of the host, as unit vendor-plugin.service, and waits until the Node shows its devices.
func (h *harness) service(devices ...string) {
	h.t.Helper()
	h.must(h.machine.Put(h.ctx, map[string]string{"/etc/systemd/system/vendor-plugin.service": fmt.Sprintf(`[Unit]
Description=the vendor's device plugin
After=devmgrd.socket
[Service]
ExecStart=/usr/local/bin/plugin /run/devmgrd/device-plugins %s %s
Restart=always
RestartSec=1
[Install]
WantedBy=multi-user.target
`, gpu, strings.Join(devices, " "))}))
	h.types("systemctl enable --now vendor-plugin.service") // enable has systemd read its units again
	h.must(h.WaitShown(h.soon(), gpu, int64(len(devices))))
}

// driver makes the devices /dev/vendor/gpu0 and gpu1, now and after each boot, and returns their names. It is the vendor's driver as
// far as a plugin is concerned. Each is a loop device over a file of its own: its number is whatever is free when the driver loads it.
func (h *harness) driver() {
	h.t.Helper()
	h.must(h.machine.Put(h.ctx, map[string]string{
		"/usr/local/sbin/vendor-driver": `#!/bin/bash -eu
modprobe loop
mkdir -p /dev/vendor /var/lib/vendor
for disk in $(ls /var/lib/vendor); do
	ln -sf $(losetup --find --show /var/lib/vendor/$disk) /dev/vendor/$disk
done
`,
		"/etc/systemd/system/vendor-driver.service": `[Unit]
Description=the vendor's driver
Before=vendor-plugin.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/vendor-driver
ExecStop=/bin/bash -c "losetup --detach-all; rm -rf /dev/vendor"
[Install]
WantedBy=multi-user.target
`}))
	h.types(`chmod 755 /usr/local/sbin/vendor-driver; mkdir -p /var/lib/vendor; truncate -s 1M /var/lib/vendor/gpu0 /var/lib/vendor/gpu1
systemctl enable --now vendor-driver.service`)
}

// holds returns the device that devmgrd says a pod has, by its container's variable.
func (h *harness) holds(name string) string {
	h.t.Helper()
	got, err := h.Report(h.soon(), name)
	h.must(err)
	return got.Env["DEVICES"]
}

// restarts returns how many times the container of a pod has been started again.
func (h *harness) restarts(name string) int32 {
	h.t.Helper()
	return h.container(name).RestartCount
}

func (h *harness) container(name string) corev1.ContainerStatus {
	h.t.Helper()
	pod, err := h.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(h.ctx, name, metav1.GetOptions{})
	h.must(err)
	if len(pod.Status.ContainerStatuses) != 1 {
		h.t.Fatalf("pod %s has %d containers", name, len(pod.Status.ContainerStatuses))
	}
	return pod.Status.ContainerStatuses[0]
}

// inside runs the probe once more in the container of a pod.
func (h *harness) inside(name string, args ...string) (string, error) {
	h.t.Helper()
	id := strings.TrimPrefix(h.container(name).ContainerID, "containerd://")
	return h.machine.Run(h.ctx, append([]string{"ctr", "--namespace=k8s.io", "tasks", "exec", "--exec-id=" + strings.ToLower(rand.Text()), id, "/probe"}, args...)...)
}

// runs starts a pod that asks for devices, and returns what its container looks like. The pod stays, and its container is started
// again whenever it ends.
func (h *harness) runs(name string, count int, open ...string) report.Report {
	h.t.Helper()
	h.creates(name, count, open...)
	return h.running(name)
}

func (h *harness) creates(name string, count int, open ...string) {
	h.t.Helper()
	h.createsFor(name, gpu, count, open...)
}

func (h *harness) createsFor(name, resource string, count int, open ...string) {
	h.t.Helper()
	args := []string{"report"}
	for _, path := range open {
		args = append(args, "--open", path)
	}
	pod := node.Pod(name, resource, count, append(args, "--then-sleep")...)
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	h.must(h.Create(h.ctx, pod))
}

// running waits until a pod runs, and returns what its container says of itself.
func (h *harness) running(name string) report.Report {
	h.t.Helper()
	_, err := h.WaitPhase(h.soon(), name, corev1.PodRunning)
	h.must(err)
	got, err := h.Report(h.soon(), name)
	h.must(err)
	return got
}

// restarted waits until a pod's container runs and has been started at least so many times before, and returns what it says.
func (h *harness) restarted(name string, restarts int32) report.Report {
	h.t.Helper()
	h.must(h.WaitPod(h.soon(), metav1.NamespaceDefault, name, func(p *corev1.Pod) (bool, error) {
		for _, s := range p.Status.ContainerStatuses {
			if s.State.Running != nil && s.RestartCount >= restarts {
				return true, nil
			}
		}
		return false, nil
	}))
	return h.running(name)
}

// promises checks that each container that runs has as many devices as its pod asks for, and no device is in two hands.
func (h *harness) promises() {
	h.t.Helper()
	pods, err := h.Client().CoreV1().Pods(metav1.NamespaceDefault).List(h.ctx, metav1.ListOptions{})
	h.must(err)
	hands := map[string]string{}
	for _, p := range pods.Items {
		asks := p.Spec.Containers[0].Resources.Limits.Name(gpu, resource.DecimalSI).Value()
		if asks == 0 || p.DeletionTimestamp != nil || len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].State.Running == nil {
			continue
		}
		devices := strings.Split(h.holds(p.Name), ",")
		if int64(len(devices)) != asks || devices[0] == "" {
			h.t.Errorf("pod %s has %q and asks for %d", p.Name, devices, asks)
		}
		for _, d := range devices {
			if other := hands[d]; other != "" {
				h.t.Errorf("%s is in the hands of %s and %s", d, other, p.Name)
			}
			hands[d] = p.Name
		}
	}
}

// removePods removes all pods but one, and checks that devmgrd has nothing left of them.
func (h *harness) removePods(kept string) {
	h.t.Helper()
	pods, err := h.Client().CoreV1().Pods("").List(h.ctx, metav1.ListOptions{})
	h.must(err)
	for _, p := range pods.Items {
		if p.Name == kept {
			continue
		}
		now := int64(0)
		if err := h.Client().CoreV1().Pods(p.Namespace).Delete(h.ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); !apierrors.IsNotFound(err) {
			h.must(err)
		}
	}
	h.until("no assignment is left", func() bool {
		out := h.tries("devmgrd assignments")
		if kept != "" {
			return strings.Count(out, "default/") == 1 && strings.Contains(out, "default/"+kept)
		}
		return strings.Contains(out, "No container has devices.")
	})
}

// vacate removes what a test has left.
func (h *harness) vacate() {
	h.t.Helper()
	h.removePods("")
	h.types(`for unit in vendor-policy vendor-plugin vendor-driver; do
	if [ -e /etc/systemd/system/$unit.service ]; then systemctl stop $unit.service; fi
done
rm -rf /etc/systemd/system/vendor-* /etc/systemd/system/*.wants/vendor-* /var/lib/vendor; systemctl daemon-reload`)
	// A resource is not there after a test without its plugin.
	h.tries(fmt.Sprintf("for resource in %s %s %s; do devmgrd forget $resource || true; done", gpu, nic, node.SampleResource))
}

// describeFailure logs the state of the machine, once, if the test has failed.
func (h *harness) describeFailure() {
	if h.described || !h.t.Failed() {
		return
	}
	h.described = true
	for _, script := range []string{
		"devmgrd status", "devmgrd plugins", "devmgrd assignments", "systemctl --failed --no-pager",
		"journalctl --no-pager --boot --unit=devmgrd --unit='vendor-p*' --lines=60", "journalctl --no-pager --boot --unit=containerd --lines=15",
		"journalctl --no-pager --boot --unit=kubelet --lines=15", "dmesg | tail -15", "dmesg | grep -E 'avc: |DENIED'",
	} {
		h.t.Logf("--- %s\n%s", script, h.tries(script))
	}
	pods, err := h.Client().CoreV1().Pods("").List(h.ctx, metav1.ListOptions{})
	if err == nil {
		for _, p := range pods.Items {
			h.t.Logf("pod %s: %s %s %s\n%s", p.Name, p.Status.Phase, p.Status.Reason, p.Status.Message, h.Events(h.ctx, p.Name))
		}
	}
}

// opened returns how a container could open a file, as "r w rw".
func opened(r report.Report, path string) string {
	var how []string
	for _, o := range r.Opened {
		if o.Path == path && o.Error == "" {
			how = append(how, o.How)
		}
	}
	slices.Sort(how)
	return strings.Join(how, " ")
}

// number returns the number of a container's device, as "major:minor".
func number(r report.Report, path string) string {
	d, ok := r.Device(path)
	if !ok {
		return "none"
	}
	return fmt.Sprintf("%d:%d", d.Major, d.Minor)
}
