//go:build e2e

package e2e

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
)

func TestMain(m *testing.M) { cluster.Main(m.Run, node.Build) }

func TestSmoke(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
	defer cancel()
	n, err := node.Start(ctx, node.Options{Cluster: cluster.Options{Log: t.Output()}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		t.Log(n.Tail())
		if err := n.Stop(); err != nil {
			t.Error(err)
		}
	}()
	set, err := n.SamplePlugin()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Apply(ctx, set); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitShown(ctx, node.SampleResource, 2); err != nil {
		t.Fatal(err)
	}
	if err := n.Create(ctx, node.Pod("a", node.SampleResource, 1, "report", "--then-sleep")); err != nil {
		t.Fatal(err)
	}
	if _, err := n.WaitPhase(ctx, "a", corev1.PodRunning); err != nil {
		t.Fatal(err)
	}
	r, err := n.Report(ctx, "a")
	t.Logf("%+v %v", r.Mounts, err)
	t.Log(n.Annotations(ctx, "a"))
}
