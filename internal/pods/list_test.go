package pods

import (
	"context"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube/kubetest"
)

// List returns the same as the watch: the active pods of this node with their demands, oldest first, and those that have
// ended.
func TestList(t *testing.T) {
	t.Parallel()
	api := kubetest.New(t)
	young, old := newPod("a", container("main", "a.example/gpu", "2", "b.example/seat", "1")), newPod("b", container("main"))
	young.CreationTimestamp.Time = born.Add(time.Second)
	ended, elsewhere := newPod("c", container("main", "a.example/gpu", "1")), newPod("d", container("main", "a.example/gpu", "1"))
	ended.Status.Phase, elsewhere.Spec.NodeName = "Failed", "n2"
	for _, p := range []*corev1.Pod{young, old, ended, elsewhere} {
		api.Put(p)
	}

	got, err := List(t.Context(), api.Client(), "n1", []string{"b.example/*"})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Active) != 2 || got.Active[0].Pod.Name != "b" || got.Active[1].Pod.Name != "a" {
		t.Fatalf("active: %+v", got.Active)
	}
	if d, ok := got.Active[1].Of("main"); !ok || !reflect.DeepEqual(d.Wants, map[device.ResourceName]int{"a.example/gpu": 2}) {
		t.Errorf("a asks for %v", d.Wants)
	}
	if want := []device.Pod{{UID: "c", Namespace: "ns", Name: "c"}}; !reflect.DeepEqual(got.Ended, want) {
		t.Errorf("ended: %v", got.Ended)
	}
	if is := Ignores([]string{"b.example/*"}); !is("b.example/seat") || is("a.example/gpu") {
		t.Error("the patterns do not match what they should")
	}

	api.Stop()
	if _, err := List(context.Background(), api.Client(), "n1", nil); err == nil || !strings.Contains(err.Error(), "listing the pods of node n1") {
		t.Errorf("while the API server is away: %v", err)
	}
}

// A mirror pod is listed under its static pod's UID, as in the kubelet's checkpoint, though no runtime shows the static pod.
func TestList_MirrorPod_HasTheStaticPodsUID(t *testing.T) {
	t.Parallel()
	api := kubetest.New(t)
	mirror := at("a", 11, "mirror")
	mirror.Spec.NodeName = "n1"
	api.Put(mirror)

	got, err := List(t.Context(), api.Client(), "n1", nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := (device.Pod{UID: device.PodUID(hashOf("a")), Namespace: "ns", Name: "a"}); len(got.Active) != 1 || got.Active[0].Pod != want {
		t.Errorf("active: %+v, want only %v", got.Active, want)
	}
}
