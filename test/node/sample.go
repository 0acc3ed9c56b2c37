package node

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// ApplySampleCDI creates the DaemonSet of the sample device plugin, which then grants a CDI device with each device.
func (n *Node) ApplySampleCDI(ctx context.Context) error {
	set, err := n.SamplePlugin()
	if err != nil {
		return err
	}
	main := &set.Spec.Template.Spec.Containers[0]
	main.Env = append(main.Env, corev1.EnvVar{Name: "CDI_ENABLED", Value: "1"})
	return n.Apply(ctx, set)
}

// RunSample starts a pod that asks for one device of the plugin of ApplySampleCDI and stays. It returns the running pod, and the device
// that its container reports.
func (n *Node) RunSample(ctx context.Context, name string) (*corev1.Pod, string, error) {
	pod := Pod(name, SampleResource, 1, "report", "--then-sleep")
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	if err := n.Create(ctx, pod); err != nil {
		return nil, "", err
	}
	pod, err := n.WaitPhase(ctx, name, corev1.PodRunning)
	if err != nil {
		return nil, "", err
	}
	report, err := n.Report(ctx, name)
	if err != nil {
		return nil, "", err
	}
	device, found := strings.CutPrefix(report.Env["CDI_DEVICE"], "CDI-")
	if !found {
		return nil, "", fmt.Errorf("the container of pod %s has no device: %q", name, report.Env)
	}
	if _, found := report.Mount("/tmp/" + device); !found {
		return nil, "", fmt.Errorf("the container of pod %s has %s, and no mount of it", name, device)
	}
	return pod, device, nil
}
