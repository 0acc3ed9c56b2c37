package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
)

func (s *story) nodeComesUp(ctx context.Context) error {
	s.say("etcd, API server, scheduler, controller manager, containerd and kubelet, unchanged, in namespaces that are made for this run. devmgrd runs next to the kubelet, with its defaults.")
	began := time.Now()
	n, err := node.Start(ctx, node.Options{Cluster: cluster.Options{}})
	if err != nil {
		return err
	}
	s.n = n
	object, err := n.Client().CoreV1().Nodes().Get(ctx, n.NodeName(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	s.say("Ready after %s: kubelet %s, %s.", since(began), object.Status.NodeInfo.KubeletVersion, object.Status.NodeInfo.ContainerRuntimeVersion)
	_, ready, err := n.Get("/readyz")
	if err != nil {
		return err
	}
	s.gap()
	s.say("devmgrd says of its parts, at /readyz:")
	s.show(strings.Split(strings.TrimSpace(ready), "\n")...)
	s.gap()
	s.say("The Node does not show %s, the resource of this story:", node.SampleResource)
	return s.showNode(ctx)
}

func (s *story) pluginRegisters(ctx context.Context) error {
	set, err := s.n.SamplePlugin()
	if err != nil {
		return err
	}
	main := &set.Spec.Template.Spec.Containers[0]
	main.Env = append(main.Env, corev1.EnvVar{Name: "CDI_ENABLED", Value: "1"})
	var mounts []string
	for _, v := range set.Spec.Template.Spec.Volumes {
		mounts = append(mounts, v.HostPath.Path)
	}
	s.say("The sample device plugin of Kubernetes, with the manifest that comes with it: a DaemonSet that mounts these folders of the host.")
	s.show(mounts...)
	s.say("Only CDI_ENABLED=1 is added to its environment. With it the plugin grants a CDI device, too: something that a file in /var/run/cdi describes and containerd puts into the container.")

	began := time.Now()
	if err := s.n.Apply(ctx, set); err != nil {
		return fmt.Errorf("creating the plugin's DaemonSet: %w", err)
	}
	if err := s.waitMetric(ctx, fmt.Sprintf("devmgrd_plugin_up{resource_name=%q}", node.SampleResource), 1); err != nil {
		return err
	}
	s.gap()
	s.say("%s later the plugin runs and has registered, but not with the kubelet: at the creation of its container devmgrd has put a folder of its own in the place of the kubelet's. The log of devmgrd says:", since(began))
	lines, err := s.logLines(ctx, 0, "redirected", "plugin registered", "plugin serving")
	if err != nil {
		return err
	}
	s.quote(lines...)

	s.gap()
	s.say("The kubelet has not heard of the plugin. Its own PodResources API says:")
	count, err := kubeletDevices(ctx)
	if err != nil {
		return err
	}
	s.show(fmt.Sprintf("GetAllocatableResources: %d devices", count))
	if count > 0 {
		return fmt.Errorf("the kubelet has %d devices, and should have none", count)
	}
	return nil
}

func (s *story) nodeShowsDevices(ctx context.Context) error {
	if err := s.n.WaitShown(ctx, node.SampleResource, 2); err != nil {
		return err
	}
	took, err := s.betweenLogLines(ctx, "plugin registered", "published node capacity")
	if err != nil {
		return err
	}
	s.say("The plugin has listed Dev-1 and Dev-2. %s after its registration the Node showed them to the scheduler:", short(took))
	return s.showNode(ctx)
}

func (s *story) podsGetDevices(ctx context.Context) error {
	s.say("Their limits say %s: 1, and nothing else of note.", node.SampleResource)
	for _, name := range []string{"first", "second"} {
		s.gap()
		if err := s.startPod(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// startPod creates a pod, waits for it, and shows what it has got.
func (s *story) startPod(ctx context.Context, name string) error {
	began := time.Now()
	if err := s.n.Create(ctx, devicePod(name)); err != nil {
		return fmt.Errorf("creating pod %s: %w", name, err)
	}
	if _, err := s.n.WaitPhase(ctx, name, corev1.PodRunning); err != nil {
		return err
	}
	return s.showPod(ctx, name, fmt.Sprintf("Pod %s runs, %s after it was created. Seen from inside its container:", name, since(began)))
}

func (s *story) showPod(ctx context.Context, name, sentence string) error {
	got, err := s.lookInside(ctx, name)
	if err != nil {
		return err
	}
	s.pods = append(s.pods, name)
	s.say("%s", sentence)
	s.table(
		[]string{"mount", got.mount, "from the plugin's answer to Allocate"},
		[]string{"environment", got.env, "from the CDI device in that answer"},
		[]string{"device node", got.device, "likewise"},
	)
	s.say("On the container, kept by containerd, devmgrd's stamp:")
	s.show(stampKey + ": " + got.stamp)
	return nil
}

func (s *story) whoHoldsWhat(ctx context.Context) error {
	s.say("By the stamps, which containerd keeps with the containers:")
	if err := s.showHolders(ctx); err != nil {
		return err
	}
	s.gap()
	s.say("By devmgrd's metrics:")
	lines, err := s.metrics("devmgrd_devices", "devmgrd_node_capacity")
	if err != nil {
		return err
	}
	s.show(lines...)
	return nil
}

func (s *story) thirdPodWaits(ctx context.Context) error {
	if err := s.n.Create(ctx, devicePod("third")); err != nil {
		return fmt.Errorf("creating pod third: %w", err)
	}
	why, err := s.waitUnschedulable(ctx, "third")
	if err != nil {
		return err
	}
	s.say("Both devices are taken. Pod third is Pending, not Failed; the scheduler says why:")
	s.quote(why)
	s.gap()

	began := time.Now()
	if err := s.n.Delete(ctx, "first"); err != nil {
		return fmt.Errorf("deleting pod first: %w", err)
	}
	gone := time.Since(began)
	s.pods = slices.DeleteFunc(s.pods, func(name string) bool { return name == "first" })
	if _, err := s.n.WaitPhase(ctx, "third", corev1.PodRunning); err != nil {
		return err
	}
	ran := time.Since(began)
	s.say("Pod first is deleted, and gone after %s. devmgrd's log says:", short(gone))
	lines, err := s.logLines(ctx, 0, "devices released", "pod=default/third")
	if err != nil {
		return err
	}
	s.quote(lines...)
	s.gap()
	if err := s.showPod(ctx, "third", fmt.Sprintf("Pod third runs, %s after that deletion was asked for. Seen from inside its container:", short(ran))); err != nil {
		return err
	}
	event, err := s.waitEvent(ctx, "third", "DevicesAssigned")
	if err != nil {
		return err
	}
	s.say("For its owner, among the events of the pod:")
	s.quote(event)
	return nil
}

func (s *story) devmgrdIsKilled(ctx context.Context) error {
	before, err := s.holders(ctx)
	if err != nil {
		return err
	}
	stop, err := s.watchNode(ctx)
	if err != nil {
		return err
	}
	defer stop()

	if err := s.killDevmgrd(ctx); err != nil {
		return err
	}

	after, err := s.holders(ctx)
	if err != nil {
		return err
	}
	s.gap()
	if !slices.Equal(before, after) {
		return fmt.Errorf("the assignments have changed: before %v, after %v", before, after)
	}
	s.say("The same containers, which have run on, hold the same devices, by their stamps and by the state file:")
	if err := s.showHolders(ctx); err != nil {
		return err
	}
	numbers, err := s.metrics(`devmgrd_devices{resource_name="` + node.SampleResource + `",state="assigned"}`)
	if err != nil {
		return err
	}
	s.show(numbers...)

	s.gap()
	seen := stop()
	if len(seen) != 1 || !seen["2/2"] {
		return fmt.Errorf("the Node's numbers have moved: %s", strings.Join(slices.Sorted(maps.Keys(seen)), ", "))
	}
	s.say("The Node's numbers have not moved. A watch on the Node saw these all the time, and no others:")
	return s.showNode(ctx)
}

// killDevmgrd ends devmgrd with SIGKILL, starts it again, and waits until it has its plugin.
func (s *story) killDevmgrd(ctx context.Context) error {
	logged, pid, began := s.logSize(), s.n.Devmgrd.Pid(), time.Now()
	if err := s.n.Devmgrd.Kill(); err != nil {
		return err
	}
	if err := s.n.StartDevmgrd(ctx); err != nil {
		return err
	}
	if err := s.waitMetric(ctx, fmt.Sprintf("devmgrd_plugin_up{resource_name=%q}", node.SampleResource), 1); err != nil {
		return err
	}
	s.say("kill -9 %d, and a new start. %s after the kill devmgrd was ready and had the plugin again:", pid, since(began))
	lines, err := s.logLines(ctx, logged, "devmgrd started", "synchronized with container runtime", "plugin serving")
	if err != nil {
		return err
	}
	s.quote(lines...)
	return nil
}

func devicePod(name string) *corev1.Pod {
	return node.Pod(name, node.SampleResource, 1, "report", "--then-sleep")
}
