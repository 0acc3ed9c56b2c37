package node

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Annotations returns the annotations that containerd keeps of the latest life of a pod's container "main".
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

// ContainerID returns the runtime's ID of a pod's first container, or "".
func ContainerID(pod *corev1.Pod) string {
	if len(pod.Status.ContainerStatuses) == 0 {
		return ""
	}
	return strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "containerd://")
}

// SandboxOf returns the ID of the sandbox that a container lives in.
func (n *Node) SandboxOf(ctx context.Context, container string) (string, error) {
	annotations, err := n.annotations(ctx, container)
	return annotations["io.kubernetes.cri.sandbox-id"], err
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

// A Stamp is what devmgrd has written on a container that runs.
type Stamp struct {
	Pod, PodUID, Container string
	Devices                map[string][]string // by resource
}

// Stamps returns the stamps of all running containers, as containerd keeps them.
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

// RunningContainers returns the IDs of the running containers of that name.
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

// Bare returns the pods of which a container of that name runs without a stamp: it was made without devmgrd.
func (n *Node) Bare(ctx context.Context, name string) ([]string, error) {
	ids, err := n.runningTasks(ctx)
	if err != nil {
		return nil, err
	}
	var pods []string
	for _, id := range ids {
		annotations, err := n.annotations(ctx, id)
		if err != nil || annotations["io.kubernetes.cri.container-name"] != name {
			continue // it has gone meanwhile, or is another one
		}
		if _, stamped := annotations["devmgrd.io/assignment"]; !stamped {
			pods = append(pods, annotations["io.kubernetes.cri.sandbox-namespace"]+"/"+annotations["io.kubernetes.cri.sandbox-name"])
		}
	}
	return pods, nil
}
