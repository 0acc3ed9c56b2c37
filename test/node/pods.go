package node

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/cluster/images/report"
)

// SamplePlugin returns the manifest of Kubernetes' sample device plugin as its makers ship it.
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
// (0: for none). It ends at once at SIGTERM.
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
	return whileBusy(apierrors.IsAlreadyExists, func() error {
		_, err := n.Client().CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		return err
	})
}

// Delete deletes a pod and returns when it is gone.
func (n *Node) Delete(ctx context.Context, name string) error {
	err := whileBusy(apierrors.IsNotFound, func() error {
		return n.Client().CoreV1().Pods(metav1.NamespaceDefault).Delete(ctx, name, metav1.DeleteOptions{})
	})
	if err != nil {
		return err
	}
	return n.WaitPod(ctx, metav1.NamespaceDefault, name, func(p *corev1.Pod) (bool, error) { return p == nil, nil })
}

// busy reports whether the API server has not done what it was asked for, or not in time, because it is as busy as the machine.
func busy(err error) bool {
	return apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err)
}

// whileBusy repeats a change while the API server is too busy for it. done recognizes the error of a change that has been made already: an
// earlier attempt may have succeeded although its answer came too late.
func whileBusy(done func(error) bool, change func() error) error {
	err := change()
	for tries := 1; busy(err) && tries < 10; tries++ {
		if err = change(); done(err) {
			return nil
		}
	}
	return err
}

// ends returns how a pod's containers have ended.
func ends(p *corev1.Pod) (all string) {
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if end := c.State.Terminated; end != nil {
			all += fmt.Sprintf("; container %s: exit code %d, signal %d, %s %s", c.Name, end.ExitCode, end.Signal, end.Reason, end.Message)
		}
	}
	return all
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
			return false, fmt.Errorf("pod %s has failed: %s %s%s", name, p.Status.Reason, p.Status.Message, ends(p))
		}
		return false, nil
	})
	if err != nil {
		return last, fmt.Errorf("waiting for pod %s to be %s: %w\n%s\n%s", name, phase, err, n.Events(context.WithoutCancel(ctx), name), n.Tail())
	}
	return last, nil
}

// Events returns what has been told about a pod of the namespace default, one line each.
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

// Report returns what the probe in a pod's container "main" has said of it. The pod may still be at it.
func (n *Node) Report(ctx context.Context, name string) (report.Report, error) {
	return n.ContainerReport(ctx, name, "main")
}

// ContainerReport is Report for a container of another name.
func (n *Node) ContainerReport(ctx context.Context, name, container string) (report.Report, error) {
	var r report.Report
	err := poll(ctx, func() (bool, error) {
		log, err := n.PodLogs(ctx, metav1.NamespaceDefault, name, container)
		if err != nil {
			return false, nil // its container has not begun to write
		}
		lines := strings.Split(strings.TrimSpace(log), "\n")
		return json.Unmarshal([]byte(lines[len(lines)-1]), &r) == nil, nil
	})
	if err != nil {
		return r, fmt.Errorf("waiting for the report of container %s of pod %s: %w", container, name, err)
	}
	return r, nil
}
