package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	apiwatch "k8s.io/apimachinery/pkg/watch"
)

// Pauses between two looks at foreign processes. They grow, since each look costs the API server and the looker CPU that other
// tests need, and what takes long may take a little longer.
const (
	firstPause = 20 * time.Millisecond
	lastPause  = 400 * time.Millisecond
)

// Poll calls a condition until it holds or fails, at once and then after pauses that grow from 20 ms to 400 ms. It returns ctx's
// error when ctx ends before.
func Poll(ctx context.Context, condition wait.ConditionWithContextFunc) error {
	for pause := firstPause; ; pause = min(pause*3/2, lastPause) {
		if done, err := condition(ctx); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// waitFor polls until the condition holds. It fails when ctx ends, or when one of the processes that bring the
// condition about has ended, and then says what was seen last and how those processes' logs end. An error of the
// condition means "not yet".
func waitFor(ctx context.Context, what string, by []*Process, condition func(context.Context) error) error {
	last := errors.New("nothing seen")
	err := Poll(ctx, func(ctx context.Context) (bool, error) {
		seen := condition(ctx)
		if seen == nil {
			return true, nil
		}
		if ctx.Err() == nil { // else it is only that we stopped asking
			last = seen
		}
		for _, p := range by {
			if p != nil && !p.Running() {
				return false, fmt.Errorf("%s does not run", p.Name)
			}
		}
		return false, nil
	})
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	var tails strings.Builder
	for _, p := range by {
		if p != nil { // nil: on a machine of its own
			tails.WriteString("\n" + p.tail())
		}
	}
	return fmt.Errorf("wait for %s: %w (last seen: %w)%s", what, err, last, tails.String())
}

// WaitAPIServer returns when the API server says that it is ready.
func (c *Cluster) WaitAPIServer(ctx context.Context) error {
	return waitFor(ctx, "the API server", []*Process{c.Etcd, c.APIServer}, func(ctx context.Context) error {
		return c.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// WaitRuntime returns when the container runtime takes connections.
func (c *Cluster) WaitRuntime(ctx context.Context) error {
	return waitFor(ctx, c.Runtime.Name, []*Process{c.Runtime}, func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.Containers.Socket())
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// WaitNodeReady returns when the node is Ready and has no taints, so that pods can be scheduled. It fails when
// the kubelet ends.
func (c *Cluster) WaitNodeReady(ctx context.Context) error {
	return c.waitNode(ctx, c.Kubelet, func(node *corev1.Node) error {
		if node != nil && nodeReady(node) {
			return nil
		}
		return errors.New(describeNode(node))
	})
}

// WaitNode returns when the condition holds for the node. An error of the condition ends the waiting.
func (c *Cluster) WaitNode(ctx context.Context, condition func(*corev1.Node) (bool, error)) error {
	var refused error
	err := c.waitNode(ctx, nil, func(node *corev1.Node) error {
		if node == nil {
			return errors.New(describeNode(node))
		}
		done, err := condition(node)
		if refused = err; done || refused != nil {
			return nil
		}
		return errors.New(describeNode(node))
	})
	return errors.Join(c.withKubelet(err), refused)
}

func (c *Cluster) waitNode(ctx context.Context, by *Process, condition func(*corev1.Node) error) error {
	nodes := c.client.CoreV1().Nodes()
	list := func(ctx context.Context, o metav1.ListOptions) (*corev1.Node, string, error) {
		all, err := nodes.List(ctx, o)
		if err != nil || len(all.Items) == 0 {
			return nil, all.GetResourceVersion(), err
		}
		return &all.Items[0], all.ResourceVersion, nil
	}
	return waitObject(ctx, "node "+c.options.NodeName, c.options.NodeName, by, list, nodes.Watch, condition)
}

// WaitPod returns when the condition holds for a pod. A nil pod stands for one that does not exist. An error of the
// condition ends the waiting.
func (c *Cluster) WaitPod(ctx context.Context, namespace, name string, condition func(*corev1.Pod) (bool, error)) error {
	var refused error
	pods := c.client.CoreV1().Pods(namespace)
	list := func(ctx context.Context, o metav1.ListOptions) (*corev1.Pod, string, error) {
		all, err := pods.List(ctx, o)
		if err != nil || len(all.Items) == 0 {
			return nil, all.GetResourceVersion(), err
		}
		return &all.Items[0], all.ResourceVersion, nil
	}
	err := waitObject(ctx, "pod "+namespace+"/"+name, name, nil, list, pods.Watch, func(pod *corev1.Pod) error {
		done, err := condition(pod)
		if refused = err; done || refused != nil {
			return nil
		}
		return errors.New(describePod(pod))
	})
	return errors.Join(c.withKubelet(err), refused)
}

// waitObject watches the object of a name until the condition holds for it; nil: it does not exist. An error of the condition means "not
// yet". waitObject fails when ctx ends, or when the process that brings the condition about has ended, and then says what was seen last.
// While the API server does not answer, it is asked again.
func waitObject[T any](ctx context.Context, what, name string, by *Process, list func(context.Context, metav1.ListOptions) (*T, string, error),
	watch func(context.Context, metav1.ListOptions) (apiwatch.Interface, error), condition func(*T) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if by != nil {
		go func() {
			_ = by.Wait(ctx)
			if ctx.Err() == nil {
				cancel(fmt.Errorf("%s does not run", by.Name))
			}
		}()
	}
	last := errors.New("nothing seen")
	err := Poll(ctx, func(ctx context.Context) (bool, error) {
		object, version, err := list(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if err != nil {
			if ctx.Err() == nil { // else it is only that the waiting has ended
				last = err
			}
			return false, nil
		}
		if last = condition(object); last == nil {
			return true, nil
		}
		events, err := watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: version})
		if err != nil {
			return false, nil
		}
		defer events.Stop()
		for event := range events.ResultChan() {
			object, is := any(event.Object).(*T)
			switch {
			case !is: // an error, after which the list shows what has happened meanwhile
				return false, nil
			case event.Type == apiwatch.Deleted:
				object = nil
			}
			if last = condition(object); last == nil {
				return true, nil
			}
		}
		return false, nil
	})
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	var tail string
	if by != nil {
		tail = "\n" + by.tail()
	}
	return fmt.Errorf("wait for %s: %w (last seen: %w)%s", what, err, last, tail)
}

// withKubelet adds the end of the kubelet's log, where most of what happens to pods is logged.
func (c *Cluster) withKubelet(err error) error {
	if err == nil || c.Kubelet == nil {
		return err
	}
	return fmt.Errorf("%w\n%s", err, c.Kubelet.tail())
}

func nodeReady(node *corev1.Node) bool {
	return len(node.Spec.Taints) == 0 && slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// PodLogs is what a container has written so far.
func (c *Cluster) PodLogs(ctx context.Context, namespace, name, container string) (string, error) {
	stream, err := c.client.CoreV1().Pods(namespace).GetLogs(name, &corev1.PodLogOptions{Container: container}).Stream(ctx)
	if err != nil {
		return "", fmt.Errorf("read the log of pod %s/%s: %w", namespace, name, err)
	}
	defer stream.Close()
	content, err := io.ReadAll(stream)
	if err != nil {
		return "", fmt.Errorf("read the log of pod %s/%s: %w", namespace, name, err)
	}
	return string(content), nil
}

func describeNode(node *corev1.Node) string {
	if node == nil {
		return "there is no such node"
	}
	var said []string
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			said = append(said, fmt.Sprintf("Ready=%s %s", c.Status, c.Message))
		}
	}
	for _, t := range node.Spec.Taints {
		said = append(said, "taint "+t.Key)
	}
	return "the node says: " + strings.Join(said, "; ")
}

func describePod(pod *corev1.Pod) string {
	if pod == nil {
		return "there is no such pod"
	}
	said := []string{fmt.Sprintf("phase %s %s %s", pod.Status.Phase, pod.Status.Reason, pod.Status.Message)}
	for _, c := range pod.Status.Conditions {
		if c.Status != corev1.ConditionTrue {
			said = append(said, fmt.Sprintf("%s=%s %s %s", c.Type, c.Status, c.Reason, c.Message))
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		switch state := c.State; {
		case state.Waiting != nil:
			said = append(said, fmt.Sprintf("%s waits: %s %s", c.Name, state.Waiting.Reason, state.Waiting.Message))
		case state.Terminated != nil:
			said = append(said, fmt.Sprintf("%s ended with %d: %s", c.Name, state.Terminated.ExitCode, state.Terminated.Message))
		}
	}
	return "the pod says: " + strings.Join(said, "; ")
}
