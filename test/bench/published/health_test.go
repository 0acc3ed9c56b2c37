//go:build e2e

package published

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

func TestMain(m *testing.M) { cluster.Main(m.Run, cluster.Needs(cluster.Kubernetes), node.Build) }

const (
	// changes is how many devices fail, and then recover, one after the other.
	changes = 10
	// kubeletConfig is the kubelet's default. The test cluster has a shorter period.
	kubeletConfig = "nodeStatusUpdateFrequency: 10s\n"
	// devmgrd publishes at most one fall in 10 s.
	betweenFalls, betweenRises = 11 * time.Second, time.Second
	// randomPause is added to that: the kubelet writes every 10 s.
	randomPause = 10 * time.Second
	// slow is when a change will not come.
	slow = time.Minute
)

// A side is a device manager, with a plugin and a resource of its own.
type side struct {
	name, resource string
	plugin         *plugintest.Plugin
	falls, rises   []time.Duration
}

// BenchmarkHealth has a plugin report that a device has failed, and later that it has recovered, to both managers at once, and
// waits until the Node's allocatable follows. Devices fail first and recover later, since devmgrd waits longer with a resource
// that flaps.
func BenchmarkHealth(b *testing.B) {
	ctx := b.Context()
	n, err := node.Start(ctx, node.Options{Cluster: cluster.Options{Log: b.Output(), KubeletConfig: kubeletConfig}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := n.Stop(); err != nil {
			b.Error(err)
		}
	})
	sides := []*side{{name: "kubelet", resource: "kubelet.example/gpu"}, {name: "devmgrd", resource: "devmgrd.example/gpu"}}
	for i, dir := range []string{"/var/lib/kubelet/device-plugins", node.SocketDir} {
		s := sides[i]
		s.plugin = plugintest.Start(b, dir, s.resource, plugintest.Devices(changes)...)
		if err := n.WaitShown(ctx, s.resource, changes); err != nil {
			b.Fatal(err)
		}
	}
	step := func(pause time.Duration, device int, health string, left int) []time.Duration {
		time.Sleep(pause + rand.N(randomPause))
		took, err := change(ctx, n, sides, device, health, left)
		if err != nil {
			b.Fatal(err)
		}
		return took
	}
	for b.Loop() {
		for i := range changes {
			for j, d := range step(betweenFalls, i, plugintest.Unhealthy, changes-1-i) {
				sides[j].falls = append(sides[j].falls, d)
			}
		}
		for i := range changes {
			for j, d := range step(betweenRises, i, plugintest.Healthy, i+1) {
				sides[j].rises = append(sides[j].rises, d)
			}
		}
	}
	b.ReportMetric(0, "ns/op") // it would count the pauses
	for _, s := range sides {
		for what, all := range map[string][]time.Duration{"failed": s.falls, "recovered": s.rises} {
			slices.Sort(all)
			b.ReportMetric(all[len(all)/2].Seconds(), "s-"+what+"-"+s.name)
			b.ReportMetric(all[len(all)-1].Seconds(), "s-"+what+"-longest-"+s.name)
		}
	}
}

// change has the plugins of all sides report the health of a device, and returns how long each took until the Node has shown that so
// many are left.
func change(ctx context.Context, n *node.Node, sides []*side, device int, health string, left int) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, slow)
	defer cancel()
	watch, err := n.Client().CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", n.NodeName()).String()})
	if err != nil {
		return nil, err
	}
	defer watch.Stop()
	start := time.Now()
	for _, s := range sides {
		s.plugin.SetHealth(plugintest.Devices(changes)[device].ID, health)
	}
	took := make([]time.Duration, len(sides))
	for e := range watch.ResultChan() {
		now, is := e.Object.(*corev1.Node)
		if !is {
			return nil, fmt.Errorf("watching the node: %v", e.Object)
		}
		for i, s := range sides {
			if q := now.Status.Allocatable[corev1.ResourceName(s.resource)]; took[i] == 0 && q.Value() == int64(left) {
				took[i] = time.Since(start)
			}
		}
		if !slices.Contains(took, 0) {
			return took, nil
		}
	}
	return nil, fmt.Errorf("the node has not shown in %v that %d devices are left: %v", slow, left, took)
}
