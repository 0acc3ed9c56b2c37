//go:build e2e

package published

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/yaml"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// BenchmarkStart measures how long a pod takes from its binding until its container runs: without a device, with one of a resource that
// is a number of the Node, and with one of a resource that is offered through claims. The pods come and go one after the other, in a random order of
// the kinds. The design allows 50 ms more for a claim than for the number; that is the median of the differences between pods that follow one another.
func BenchmarkStart(b *testing.B) {
	const counted, claimed, devices = "counted.example/gpu", "claimed.example/gpu", 8
	ctx := b.Context()
	n, err := node.Start(ctx, node.Options{Cluster: cluster.Options{Log: b.Output()}, Args: []string{"--set", "dra.resources=" + claimed}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := n.Stop(); err != nil {
			b.Error(err)
		}
	})
	plugintest.Start(b, node.SocketDir, counted, plugintest.Devices(devices)...)
	plugintest.Start(b, node.SocketDir, claimed, plugintest.Devices(devices)...)
	if err := offer(ctx, n, claimed, devices); err != nil {
		b.Fatal(err)
	}
	if err := n.WaitShown(ctx, counted, devices); err != nil {
		b.Fatal(err)
	}
	kinds := []struct {
		name, resource string
		count          int
	}{{"plain", "", 0}, {"number", counted, 1}, {"claim", claimed, 1}}
	const number, claim = 1, 2
	took := make([][]time.Duration, len(kinds))
	for i := 0; b.Loop(); i++ {
		for _, k := range rand.Perm(len(kinds)) {
			kind := kinds[k]
			d, err := startPod(ctx, n, node.Pod(fmt.Sprintf("%s-%d", kind.name, i), kind.resource, kind.count, "report", "--then-sleep"))
			if err != nil {
				b.Fatal(err)
			}
			took[k] = append(took[k], d)
		}
	}
	b.ReportMetric(0, "ns/op") // it would count the pods' ends
	var more []time.Duration
	for i, d := range took[claim] {
		more = append(more, d-took[number][i])
	}
	for k, all := range took {
		b.ReportMetric(milliseconds(all), "ms-"+kinds[k].name)
	}
	b.ReportMetric(milliseconds(more), "ms-claim-more")
}

// milliseconds returns the median.
func milliseconds(all []time.Duration) float64 {
	all = slices.Sorted(slices.Values(all))
	return float64(all[len(all)/2].Microseconds()) / 1000
}

// offer makes the DeviceClass of a resource, and returns when the slices show its devices.
func offer(ctx context.Context, n *node.Node, resource string, devices int) error {
	out, err := n.Command(ctx, "deviceclass", resource).Output()
	if err != nil {
		return fmt.Errorf("devmgrd deviceclass: %w", err)
	}
	class := &resourceapi.DeviceClass{}
	if err := yaml.UnmarshalStrict(out, class); err != nil {
		return err
	}
	if _, err := n.Client().ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return err
	}
	return cluster.Poll(ctx, func(ctx context.Context) (bool, error) {
		all, err := n.Client().ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		shown := 0
		for _, s := range all.Items {
			shown += len(s.Spec.Devices)
		}
		return shown == devices, nil
	})
}

// startPod creates a pod, and returns how long after its binding the container runtime read the first line that its container wrote. The pod
// is gone then.
func startPod(ctx context.Context, n *node.Node, pod *corev1.Pod) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, slow)
	defer cancel()
	api := n.Client().CoreV1().Pods(pod.Namespace)
	watch, err := api.Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", pod.Name).String()})
	if err != nil {
		return 0, err
	}
	defer watch.Stop()
	if err := n.Create(ctx, pod); err != nil {
		return 0, err
	}
	var bound time.Time
	for e := range watch.ResultChan() {
		now, is := e.Object.(*corev1.Pod)
		if !is {
			return 0, fmt.Errorf("watching pod %s: %v", pod.Name, e.Object)
		}
		if bound.IsZero() && now.Spec.NodeName != "" {
			bound = time.Now()
		}
		if now.Status.Phase == corev1.PodRunning {
			break
		}
	}
	first := ""
	err = cluster.Poll(ctx, func(ctx context.Context) (bool, error) {
		text, err := api.GetLogs(pod.Name, &corev1.PodLogOptions{Timestamps: true}).DoRaw(ctx)
		first, _, _ = strings.Cut(string(text), " ")
		return first != "", err
	})
	if err != nil {
		return 0, fmt.Errorf("reading the log of pod %s: %w", pod.Name, err)
	}
	started, err := time.Parse(time.RFC3339Nano, first)
	if err != nil {
		return 0, err
	}
	return started.Sub(bound), n.Delete(ctx, pod.Name)
}
