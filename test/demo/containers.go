package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
)

var actOne = act{"Act one: containers and their devices, without Kubernetes", func(s *story) []step {
	return []step{
		{"A container runtime comes up, and devmgrd next to it", s.runtimeComesUp},
		{"A pod requests a device that no plugin offers yet: it waits, with a reason", s.podWaits},
		{"A device plugin registers, and the pod starts with its device", s.pluginStarts},
		{"devmgrd is killed with SIGKILL and started again", s.nothingIsLost},
	}
}}

// A sandbox is a pod of act one.
type sandbox struct {
	*cluster.Sandbox
	name string
}

func (s *story) runtimeComesUp(ctx context.Context) error {
	s.say("containerd and runc, unchanged, in namespaces that are made for this run. devmgrd runs with kubernetes.mode: none: pods are made by CRI, the runtime's own API, and an annotation says which devices their containers request.")
	began := time.Now()
	n, err := node.Start(ctx, node.Options{Cluster: cluster.Options{Alone: true}})
	if err != nil {
		return err
	}
	s.n = n
	_, ready, err := n.Get("/readyz")
	if err != nil {
		return err
	}
	s.gap()
	s.say("Ready after %s. devmgrd says of its parts, at /readyz:", since(began))
	s.show(strings.Split(strings.TrimSpace(ready), "\n")...)
	return nil
}

func (s *story) podWaits(ctx context.Context) error {
	annotations := node.ResourcesAnnotation(node.SampleResource, 1)
	s.say("Pod first has the annotation:")
	for name, value := range annotations {
		s.show(name + ": " + value)
	}
	made, err := s.n.RunSandbox(ctx, cluster.PodConfig{Name: "first", Annotations: annotations})
	if err != nil {
		return err
	}
	s.sandboxes = append(s.sandboxes, &sandbox{made, "first"})
	refusal := s.create(ctx, made)
	if refusal == nil {
		return fmt.Errorf("pod first runs, and there is no device for it")
	}
	s.gap()
	s.say("Its container is not created. containerd answers, with what devmgrd says of it:")
	_, why, _ := strings.Cut(refusal.Error(), "desc = ")
	s.quote(why)
	s.gap()
	s.say("And for the operator:")
	out, err := s.n.Command(ctx, "explain", "plain/first").Output()
	if err != nil {
		return fmt.Errorf("devmgrd explain: %w", err)
	}
	s.show("$ devmgrd explain plain/first")
	s.show(strings.Split(strings.TrimSpace(string(out)), "\n")...)
	return nil
}

// create makes and starts a pod's container.
func (s *story) create(ctx context.Context, pod *cluster.Sandbox) error {
	_, err := pod.Run(ctx, cluster.ContainerConfig{Name: "main", Image: cluster.ProbeImage, Args: []string{"report", "--then-sleep"}})
	return err
}

func (s *story) pluginStarts(ctx context.Context) error {
	s.say("The sample device plugin of Kubernetes runs in a container that mounts the kubelet's folder for plugins, as its manifest says.")
	if _, err := s.n.RunSamplePlugin(ctx); err != nil {
		return err
	}
	if err := s.waitMetric(ctx, fmt.Sprintf("devmgrd_plugin_up{resource_name=%q}", node.SampleResource), 1); err != nil {
		return err
	}
	lines, err := s.logLines(ctx, 0, "at=/var/lib/kubelet/device-plugins", "plugin serving", "devices assigned")
	if err != nil {
		return err
	}
	s.gap()
	s.say("devmgrd has put its own folder in the place of the kubelet's, so the plugin has registered with devmgrd, and pod first has its device. The log of devmgrd says:")
	s.quote(lines...)

	first := s.sandboxes[0]
	err = cluster.Poll(ctx, func(ctx context.Context) (bool, error) { return s.create(ctx, first.Sandbox) == nil, nil })
	if err != nil {
		return fmt.Errorf("waiting for pod first to start: %w", err)
	}
	s.gap()
	s.say("containerd is asked again for the container, as the kubelet does, and it starts. Seen from inside:")
	held, err := s.deviceOf(ctx, first)
	if err != nil {
		return err
	}
	report, err := node.SandboxReport(ctx, first.Sandbox)
	if err != nil {
		return err
	}
	if _, mounted := report.Mount("/tmp/" + held); !mounted || report.Env["CDI_DEVICE"] == "" {
		return fmt.Errorf("the container of pod first lacks a part of device %s", held)
	}
	s.table(
		[]string{"mount", "/tmp/" + held, "from the plugin's answer to Allocate"},
		[]string{"environment", "CDI_DEVICE=" + report.Env["CDI_DEVICE"], "from the CDI device in that answer"},
	)
	return nil
}

// deviceOf returns the device on the stamp of a pod's container.
func (s *story) deviceOf(ctx context.Context, pod *sandbox) (string, error) {
	stamps, err := s.n.Stamps(ctx)
	if err != nil {
		return "", err
	}
	for _, stamp := range stamps {
		if ids := stamp.Devices[node.SampleResource]; stamp.PodUID == pod.UID && len(ids) == 1 {
			return ids[0], nil
		}
	}
	text, _ := json.Marshal(stamps)
	return "", fmt.Errorf("no stamp says that pod %s has one device: %s", pod.name, text)
}

func (s *story) nothingIsLost(ctx context.Context) error {
	before, err := s.deviceOf(ctx, s.sandboxes[0])
	if err != nil {
		return err
	}
	running, err := s.n.Containers.Running(ctx)
	if err != nil {
		return err
	}
	if err := s.killDevmgrd(ctx); err != nil {
		return err
	}
	after, err := s.deviceOf(ctx, s.sandboxes[0])
	if err != nil {
		return err
	}
	now, err := s.n.Containers.Running(ctx)
	if err != nil {
		return err
	}
	slices.Sort(running)
	slices.Sort(now)
	if before != after || !slices.Equal(running, now) {
		return fmt.Errorf("the container has changed, or had %s and has %s", before, after)
	}
	s.gap()
	s.say("The containers have run on, and devmgrd says who has what:")
	out, err := s.n.Command(ctx, "assignments").Output()
	if err != nil {
		return fmt.Errorf("devmgrd assignments: %w", err)
	}
	s.show("$ devmgrd assignments")
	s.show(strings.Split(strings.TrimSpace(string(out)), "\n")...)
	return nil
}
