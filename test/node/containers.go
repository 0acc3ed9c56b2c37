package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/test/cluster"
)

// stampAnnotation is the annotation in which devmgrd notes a container's devices.
const stampAnnotation = "devmgrd.io/assignment"

// Annotations returns the annotations that the runtime keeps of the latest life of a pod's container "main".
func (n *Node) Annotations(ctx context.Context, name string) (map[string]string, error) {
	pod, err := n.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	c, err := n.Containers.Container(ctx, ContainerID(pod))
	return c.Annotations, err
}

// ContainerID returns the runtime's ID of a pod's first container, or "".
func ContainerID(pod *corev1.Pod) string {
	if len(pod.Status.ContainerStatuses) == 0 {
		return ""
	}
	_, id, _ := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
	return id
}

// SandboxOf returns the ID of the sandbox that a container lives in.
func (n *Node) SandboxOf(ctx context.Context, container string) (string, error) {
	c, err := n.Containers.Container(ctx, container)
	return c.Sandbox, err
}

// A Stamp is what devmgrd has written on a container that runs.
type Stamp struct {
	Pod, PodUID, Container string
	Devices                map[string][]string // by resource
}

// Stamps returns the stamps of all running containers, as the runtime keeps them.
func (n *Node) Stamps(ctx context.Context) ([]Stamp, error) {
	all, err := n.running(ctx)
	if err != nil {
		return nil, err
	}
	var stamps []Stamp
	for _, c := range all {
		text, stamped := c.Annotations[stampAnnotation]
		if !stamped {
			continue
		}
		s := Stamp{Pod: c.Namespace + "/" + c.Pod, PodUID: c.PodUID, Container: c.Name}
		if err := json.Unmarshal([]byte(text), &s.Devices); err != nil {
			return nil, fmt.Errorf("the stamp of container %s: %w", c.ID, err)
		}
		stamps = append(stamps, s)
	}
	return stamps, nil
}

// InTwoHands returns an error that names the devices which running containers of more than one pod have.
func (n *Node) InTwoHands(ctx context.Context) error {
	stamps, err := n.Stamps(ctx)
	errs := []error{err}
	holders := map[string]string{}
	for _, s := range stamps {
		for resource, ids := range s.Devices {
			for _, id := range ids {
				key := resource + "/" + id
				if other, taken := holders[key]; taken && other != s.PodUID {
					errs = append(errs, fmt.Errorf("device %s is in two hands: of pods %s and %s", key, other, s.PodUID))
				}
				holders[key] = s.PodUID
			}
		}
	}
	return errors.Join(errs...)
}

// RunningContainers returns the IDs of the running containers of that name.
func (n *Node) RunningContainers(ctx context.Context, name string) ([]string, error) {
	all, err := n.running(ctx)
	var ids []string
	for _, c := range all {
		if c.Name == name {
			ids = append(ids, c.ID)
		}
	}
	return ids, err
}

// Bare returns the pods of which a container of that name runs without a stamp: it was made without devmgrd.
func (n *Node) Bare(ctx context.Context, name string) ([]string, error) {
	all, err := n.running(ctx)
	var pods []string
	for _, c := range all {
		if _, stamped := c.Annotations[stampAnnotation]; c.Name == name && !stamped {
			pods = append(pods, c.Namespace+"/"+c.Pod)
		}
	}
	return pods, err
}

// running returns the containers that run. One that has gone meanwhile is none of them.
func (n *Node) running(ctx context.Context) (all []cluster.Container, err error) {
	ids, err := n.Containers.Running(ctx)
	if err != nil {
		return nil, err
	}
	unknown := map[string]error{}
	for _, id := range ids {
		c, err := n.Containers.Container(ctx, id)
		if err != nil {
			unknown[id] = err
			continue
		}
		all = append(all, c)
	}
	if len(unknown) == 0 {
		return all, nil
	}
	if ids, err = n.Containers.Running(ctx); err != nil {
		return nil, err
	}
	for _, id := range ids {
		if err := unknown[id]; err != nil {
			return nil, fmt.Errorf("container %s runs: %w", id, err)
		}
	}
	return all, nil
}
