package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/devmgrd/devmgrd/test/node"
)

// stampKey is the annotation that devmgrd puts on a container that holds devices.
const stampKey = "devmgrd.io/assignment"

// A find is what a pod has got with its device.
type find struct{ env, mount, device, stamp string }

// lookInside finds what a pod's container has got, from the inside.
func (s *story) lookInside(ctx context.Context, name string) (find, error) {
	report, err := s.n.Report(ctx, name)
	if err != nil {
		return find{}, err
	}
	annotations, err := s.n.Annotations(ctx, name)
	if err != nil {
		return find{}, err
	}
	f := find{stamp: annotations[stampKey]}
	var ids map[string][]string
	if err := json.Unmarshal([]byte(f.stamp), &ids); err != nil || len(ids[node.SampleResource]) != 1 {
		return find{}, fmt.Errorf("the container of pod %s has the stamp %q, and should have one device", name, f.stamp)
	}
	id := ids[node.SampleResource][0]

	value, ok := report.Env["CDI_DEVICE"]
	if !ok {
		return find{}, fmt.Errorf("the container of pod %s has no variable CDI_DEVICE", name)
	}
	f.env = "CDI_DEVICE=" + value
	if _, ok := report.Mount("/tmp/" + id); !ok {
		return find{}, fmt.Errorf("the container of pod %s has no mount /tmp/%s", name, id)
	}
	f.mount = "/tmp/" + id
	f.device, err = s.deviceNode(ctx, name, "/tmp/CDI-"+id)
	return f, err
}

// deviceNode looks at a device node in a pod's container, through the files that its process sees.
func (s *story) deviceNode(ctx context.Context, name, path string) (string, error) {
	pod, err := s.n.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	pid, err := os.ReadFile(filepath.Join("/run/containerd/io.containerd.runtime.v2.task/k8s.io", node.ContainerID(pod), "init.pid"))
	if err != nil {
		return "", err
	}
	info, err := os.Lstat(filepath.Join("/proc", strings.TrimSpace(string(pid)), "root", path))
	if err != nil {
		return "", fmt.Errorf("looking for a device node in the container of pod %s: %w", name, err)
	}
	if info.Mode().Type()&os.ModeDevice == 0 {
		return "", fmt.Errorf("%s in the container of pod %s is no device node", path, name)
	}
	kind := "block"
	if info.Mode().Type()&os.ModeCharDevice != 0 {
		kind = "character"
	}
	number := info.Sys().(*syscall.Stat_t).Rdev
	return fmt.Sprintf("%s (%s, %d:%d)", path, kind, unix.Major(number), unix.Minor(number)), nil
}

// A holder is one device in a container's hands.
type holder struct{ pod, container, id, resource, device string }

// holders reads who holds what from the stamps.
func (s *story) holders(ctx context.Context) ([]holder, error) {
	var all []holder
	for _, name := range s.pods {
		pod, err := s.n.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		annotations, err := s.n.Annotations(ctx, name)
		if err != nil {
			return nil, err
		}
		var ids map[string][]string
		if err := json.Unmarshal([]byte(annotations[stampKey]), &ids); err != nil {
			return nil, fmt.Errorf("the stamp of pod %s: %w", name, err)
		}
		for resource, devices := range ids {
			for _, d := range devices {
				all = append(all, holder{pod.Namespace + "/" + name, pod.Spec.Containers[0].Name, node.ContainerID(pod), resource, d})
			}
		}
	}
	return all, nil
}

func (s *story) showHolders(ctx context.Context) error {
	all, err := s.holders(ctx)
	if err != nil {
		return err
	}
	rows := [][]string{{"POD", "CONTAINER", "CONTAINER ID", "RESOURCE", "DEVICE"}}
	for _, h := range all {
		rows = append(rows, []string{h.pod, h.container, h.id[:min(12, len(h.id))], h.resource, h.device})
	}
	s.table(rows...)
	return nil
}

// showNode prints what the Node shows of the sample plugin's resource.
func (s *story) showNode(ctx context.Context) error {
	capacity, allocatable, err := s.n.Shown(ctx, node.SampleResource)
	if err != nil {
		return err
	}
	number := func(n int64) string {
		if n < 0 {
			return "not there"
		}
		return fmt.Sprint(n)
	}
	s.table(
		[]string{"RESOURCE", "CAPACITY", "ALLOCATABLE"},
		[]string{node.SampleResource, number(capacity), number(allocatable)},
	)
	return nil
}

// watchNode notes every pair capacity/allocatable that the Node shows, until stop is called, which returns them.
func (s *story) watchNode(ctx context.Context) (stop func() map[string]bool, err error) {
	w, err := s.n.Client().CoreV1().Nodes().Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", s.n.NodeName()).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("watching the Node: %w", err)
	}
	seen, ended := map[string]bool{}, make(chan struct{})
	go func() {
		defer close(ended)
		for event := range w.ResultChan() {
			if n, ok := event.Object.(*corev1.Node); ok {
				shown := func(list corev1.ResourceList) string {
					q, ok := list[node.SampleResource]
					if !ok {
						return "none"
					}
					return q.String()
				}
				seen[shown(n.Status.Capacity)+"/"+shown(n.Status.Allocatable)] = true
			}
		}
	}()
	return func() map[string]bool {
		w.Stop()
		<-ended
		return seen
	}, nil
}

// kubeletDevices asks the kubelet how many devices it has itself.
func kubeletDevices(ctx context.Context) (int, error) {
	conn, err := grpc.NewClient("unix:///var/lib/kubelet/pod-resources/kubelet.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	answer, err := podresources.NewPodResourcesListerClient(conn).GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	if err != nil {
		return 0, fmt.Errorf("asking the kubelet for its devices: %w", err)
	}
	count := 0
	for _, d := range answer.GetDevices() {
		count += len(d.GetDeviceIds())
	}
	return count, nil
}

// waitUnschedulable waits until the scheduler has found no place for a pod, and returns its words.
func (s *story) waitUnschedulable(ctx context.Context, name string) (why string, err error) {
	err = s.n.WaitPod(ctx, metav1.NamespaceDefault, name, func(p *corev1.Pod) (bool, error) {
		if p == nil {
			return false, nil
		}
		if p.Status.Phase != corev1.PodPending {
			return false, fmt.Errorf("pod %s is %s, and should be Pending", name, p.Status.Phase)
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
				why = c.Message
			}
		}
		return why != "", nil
	})
	return why, err
}

// waitEvent waits for an event on a pod, and returns it in one line.
func (s *story) waitEvent(ctx context.Context, name, reason string) (event string, err error) {
	err = wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		for line := range strings.SplitSeq(s.n.Events(ctx, name), "\n") {
			if strings.Contains(line, " "+reason+": ") {
				event = line
			}
		}
		return event != "", nil
	})
	if err != nil {
		return "", fmt.Errorf("waiting for the event %s on pod %s: %w", reason, name, errors.Join(err, context.Cause(ctx)))
	}
	return event, nil
}

// metrics returns the lines of /metrics that begin with one of the names, sorted as they are there.
func (s *story) metrics(names ...string) ([]string, error) {
	_, all, err := s.n.Get("/metrics")
	if err != nil {
		return nil, err
	}
	var found []string
	for _, line := range strings.Split(all, "\n") {
		if slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(line, name) }) {
			found = append(found, line)
		}
	}
	return found, nil
}

// waitMetric waits until a series has the value.
func (s *story) waitMetric(ctx context.Context, series string, want float64) error {
	err := wait.PollUntilContextCancel(ctx, 5*time.Millisecond, true, func(context.Context) (bool, error) {
		got, err := s.n.Metric(series)
		return err == nil && got == want, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for %s %v: %w", series, want, errors.Join(err, context.Cause(ctx)))
	}
	return nil
}
