package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/yaml"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/cluster/images/report"
)

// Where devmgrd keeps its things by default.
const (
	StateDir  = "/var/lib/devmgrd"
	SocketDir = runDir + "/device-plugins"
	runDir    = "/run/devmgrd"
	address   = "127.0.0.1:9464"
)

// SampleResource is what Kubernetes' sample device plugin offers: two devices, Dev-1 and Dev-2.
const SampleResource = "example.com/resource"

// Options are a node's peculiarities. The zero value is a good node.
type Options struct {
	Cluster cluster.Options
	Args    []string // more arguments for "devmgrd run"
}

// A Node is a cluster of one node with devmgrd on it.
type Node struct {
	*cluster.Cluster
	Devmgrd *cluster.Process
	Tools   cluster.Tools
}

// Start brings up a cluster and devmgrd, and returns when devmgrd is ready.
func Start(ctx context.Context, o Options) (*Node, error) {
	tools, err := cluster.Build(ctx, os.Stderr)
	if err != nil {
		return nil, err
	}
	c, err := cluster.Start(ctx, tools, o.Cluster)
	if err != nil {
		return nil, err
	}
	n := &Node{Cluster: c, Tools: tools}
	n.Devmgrd = n.Another("devmgrd", o.Args...)
	if err := n.StartDevmgrd(ctx); err != nil {
		return nil, errors.Join(err, n.Stop())
	}
	return n, nil
}

// Another is one more devmgrd, not started.
func (n *Node) Another(name string, args ...string) *cluster.Process {
	return cluster.NewProcess(name, filepath.Join(n.LogDir(), name+".log"), append([]string{os.Getenv(binaryVariable), "run"}, args...), nil)
}

// StartDevmgrd starts devmgrd and returns when all of its parts are ready.
func (n *Node) StartDevmgrd(ctx context.Context) error {
	if err := n.Devmgrd.Start(ctx); err != nil {
		return err
	}
	return n.WaitReady(ctx, func(status int, _ string) bool { return status == http.StatusOK })
}

// Stop ends devmgrd and the cluster, and removes what devmgrd keeps, so that the next one starts afresh.
func (n *Node) Stop() error {
	return errors.Join(n.Devmgrd.Stop(10*time.Second), n.Cluster.Stop(), empty(StateDir), empty(runDir))
}

// empty removes what is in a directory, which may be a mount point.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return err
}

// WaitReady returns when the condition holds for what /readyz says.
func (n *Node) WaitReady(ctx context.Context, condition func(status int, text string) bool) error {
	last := ""
	err := poll(ctx, func() (bool, error) {
		if !n.Devmgrd.Running() {
			return false, errors.New("devmgrd has ended")
		}
		status, text, err := n.Get("/readyz")
		if err != nil {
			last = err.Error()
			return false, nil
		}
		last = text
		return condition(status, text), nil
	})
	if err != nil {
		return fmt.Errorf("waiting for devmgrd: %w; last heard: %s\n%s", err, last, n.Tail())
	}
	return nil
}

// Tail gives the last lines of devmgrd's log.
func (n *Node) Tail() string {
	text, err := os.ReadFile(n.Devmgrd.LogPath())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-40):], "\n")
}

// Get reads a page of devmgrd's.
func (n *Node) Get(path string) (status int, text string, err error) {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get("http://" + address + path)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(body), err
}

// Metric gives the value of one series as /metrics writes it, for instance `devmgrd_published{resource_name="a/b"}`.
// A series that is not there is 0.
func (n *Node) Metric(series string) (float64, error) {
	_, text, err := n.Get("/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			var v float64
			_, err := fmt.Sscan(rest, &v)
			return v, err
		}
	}
	return 0, nil
}

// Shown gives what the Node object shows of a resource: capacity and allocatable, -1 for one that is not there.
func (n *Node) Shown(ctx context.Context, name string) (capacity, allocatable int64, err error) {
	node, err := n.Client().CoreV1().Nodes().Get(ctx, n.NodeName(), metav1.GetOptions{})
	if err != nil {
		return 0, 0, err
	}
	return quantity(node.Status.Capacity, name), quantity(node.Status.Allocatable, name), nil
}

func quantity(list corev1.ResourceList, name string) int64 {
	q, ok := list[corev1.ResourceName(name)]
	if !ok {
		return -1
	}
	return q.Value()
}

// WaitShown returns when the Node shows want as capacity and as allocatable.
func (n *Node) WaitShown(ctx context.Context, name string, want int64) error {
	err := n.WaitNode(ctx, func(node *corev1.Node) (bool, error) {
		return quantity(node.Status.Capacity, name) == want && quantity(node.Status.Allocatable, name) == want, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for %d %s on the Node: %w\n%s", want, name, err, n.Tail())
	}
	return nil
}

// SamplePlugin gives the manifest of Kubernetes' sample device plugin as its makers ship it.
func (n *Node) SamplePlugin() (*appsv1.DaemonSet, error) {
	text, err := os.ReadFile(os.Getenv(manifestVariable))
	if err != nil {
		return nil, err
	}
	var set appsv1.DaemonSet
	if err := yaml.UnmarshalStrict(text, &set); err != nil {
		return nil, err
	}
	return &set, nil
}

// Apply creates a DaemonSet.
func (n *Node) Apply(ctx context.Context, set *appsv1.DaemonSet) error {
	_, err := n.Client().AppsV1().DaemonSets(set.Namespace).Create(ctx, set, metav1.CreateOptions{})
	return err
}

// Pod makes a pod in the namespace default that runs the probe, with a container "main" that asks for count devices
// (0: for none). It ends at once when it is told to.
func Pod(name, resourceName string, count int, args ...string) *corev1.Pod {
	main := corev1.Container{Name: "main", Image: cluster.ProbeImage, Args: args}
	if count > 0 {
		main.Resources.Limits = corev1.ResourceList{corev1.ResourceName(resourceName): resource.MustParse(fmt.Sprint(count))}
	}
	none := int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{main},
			TerminationGracePeriodSeconds: &none,
		},
	}
}

// Create creates a pod.
func (n *Node) Create(ctx context.Context, pod *corev1.Pod) error {
	_, err := n.Client().CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

// Delete deletes a pod and returns when it is gone.
func (n *Node) Delete(ctx context.Context, name string) error {
	if err := n.Client().CoreV1().Pods(metav1.NamespaceDefault).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return n.WaitPod(ctx, metav1.NamespaceDefault, name, func(p *corev1.Pod) (bool, error) { return p == nil, nil })
}

// WaitPhase returns when a pod of the namespace default has reached the phase. Failed, unless wanted, is an error at once.
func (n *Node) WaitPhase(ctx context.Context, name string, phase corev1.PodPhase) (*corev1.Pod, error) {
	var last *corev1.Pod
	err := n.WaitPod(ctx, metav1.NamespaceDefault, name, func(p *corev1.Pod) (bool, error) {
		last = p
		if p == nil || p.Status.Phase == phase {
			return p != nil, nil
		}
		if p.Status.Phase == corev1.PodFailed {
			return false, fmt.Errorf("pod %s has failed: %s %s", name, p.Status.Reason, p.Status.Message)
		}
		return false, nil
	})
	if err != nil {
		return last, fmt.Errorf("waiting for pod %s to be %s: %w\n%s\n%s", name, phase, err, n.Events(context.WithoutCancel(ctx), name), n.Tail())
	}
	return last, nil
}

// Events gives what has been told about a pod of the namespace default, one line each.
func (n *Node) Events(ctx context.Context, name string) string {
	events, err := n.Client().CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, e := range events.Items {
		fmt.Fprintf(&b, "%s %s: %s\n", e.Type, e.Reason, e.Message)
	}
	return b.String()
}

// Report gives what the probe in a pod's container "main" has said of it. The pod may still be at it.
func (n *Node) Report(ctx context.Context, name string) (report.Report, error) {
	var r report.Report
	err := poll(ctx, func() (bool, error) {
		log, err := n.PodLogs(ctx, metav1.NamespaceDefault, name, "main")
		if err != nil {
			return false, nil // its container has not begun to write
		}
		lines := strings.Split(strings.TrimSpace(log), "\n")
		return json.Unmarshal([]byte(lines[len(lines)-1]), &r) == nil, nil
	})
	if err != nil {
		return r, fmt.Errorf("waiting for the report of pod %s: %w", name, err)
	}
	return r, nil
}

// Annotations gives the annotations that containerd keeps of the latest life of a pod's container "main".
func (n *Node) Annotations(ctx context.Context, name string) (map[string]string, error) {
	pod, err := n.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return n.annotations(ctx, ContainerID(pod))
}

func (n *Node) annotations(ctx context.Context, container string) (map[string]string, error) {
	out, err := n.ctr(ctx, "containers", "info", container)
	if err != nil {
		return nil, err
	}
	var info struct {
		Spec struct{ Annotations map[string]string }
	}
	if err := json.Unmarshal(out, &info); err != nil {
		return nil, err
	}
	return info.Spec.Annotations, nil
}

// ContainerID gives the runtime's ID of a pod's first container, or "".
func ContainerID(pod *corev1.Pod) string {
	if len(pod.Status.ContainerStatuses) == 0 {
		return ""
	}
	return strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "containerd://")
}

// KillContainer ends the processes of a container with SIGKILL.
func (n *Node) KillContainer(ctx context.Context, id string) error {
	_, err := n.ctr(ctx, "tasks", "kill", "--signal", "SIGKILL", id)
	return err
}

func (n *Node) ctr(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, n.Tools.Path("ctr"), append([]string{"--address", n.ContainerdSocket(), "--namespace", "k8s.io"}, args...)...)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("ctr %s: %w", strings.Join(args, " "), err)
	}
	return out, nil
}

// poll asks until the answer is yes, an error comes, or ctx ends.
func poll(ctx context.Context, ask func() (bool, error)) error {
	return wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(context.Context) (bool, error) { return ask() })
}

// A Stamp is what devmgrd has written on a container that runs.
type Stamp struct {
	Pod, PodUID, Container string
	Devices                map[string][]string // by resource
}

// Stamps gives the stamps of all running containers, as containerd keeps them.
func (n *Node) Stamps(ctx context.Context) ([]Stamp, error) {
	ids, err := n.runningTasks(ctx)
	if err != nil {
		return nil, err
	}
	var stamps []Stamp
	for _, id := range ids {
		annotations, err := n.annotations(ctx, id)
		if err != nil {
			continue // it has gone meanwhile
		}
		s := Stamp{
			Pod:       annotations["io.kubernetes.cri.sandbox-namespace"] + "/" + annotations["io.kubernetes.cri.sandbox-name"],
			PodUID:    annotations["io.kubernetes.cri.sandbox-uid"],
			Container: annotations["io.kubernetes.cri.container-name"],
		}
		text, stamped := annotations["devmgrd.io/assignment"]
		if !stamped {
			continue
		}
		if err := json.Unmarshal([]byte(text), &s.Devices); err != nil {
			return nil, fmt.Errorf("the stamp of container %s: %w", id, err)
		}
		stamps = append(stamps, s)
	}
	return stamps, nil
}

// RunningContainers gives the IDs of the running containers of that name.
func (n *Node) RunningContainers(ctx context.Context, name string) ([]string, error) {
	ids, err := n.runningTasks(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(ids, func(id string) bool {
		annotations, err := n.annotations(ctx, id)
		return err != nil || annotations["io.kubernetes.cri.container-name"] != name
	}), nil
}

func (n *Node) runningTasks(ctx context.Context) ([]string, error) {
	out, err := n.ctr(ctx, "tasks", "list")
	if err != nil {
		return nil, err
	}
	var ids []string
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) == 3 && f[2] == "RUNNING" {
			ids = append(ids, f[0])
		}
	}
	return ids, nil
}
