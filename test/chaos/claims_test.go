package main

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Half of the sequences offer the resource through DRA, some of them for a part, and none against the kubelet's device manager.
func TestPlan_Seeds_HalfThroughDRA(t *testing.T) {
	claims, moved := 0, 0
	for seed := range uint64(1000) {
		p, other := newPlan(seed, false, false), newPlan(seed, true, false)
		if other.claims || other.begins || len(other.moves) > 0 {
			t.Fatalf("seed %d against the kubelet: %s", seed, other)
		}
		if !p.claims && (p.begins || len(p.moves) > 0) {
			t.Fatalf("seed %d has no claims: %s", seed, p)
		}
		if p.claims {
			claims++
			moved += min(len(p.moves), 1)
		}
	}
	if claims < 400 || claims > 600 || moved < 150 || moved > 350 {
		t.Errorf("of 1000 sequences %d are through DRA, %d of them in part", claims, moved)
	}
}

func TestChosen_Claims_NameTheDevices(t *testing.T) {
	claim := func(name, driver string, pod types.UID, devices ...string) *resourceapi.ResourceClaim {
		c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}
		c.Status.Allocation = &resourceapi.AllocationResult{}
		for i, d := range devices {
			c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
				resourceapi.DeviceRequestAllocationResult{Request: []string{"a", "b"}[i%2], Driver: driver, Device: d})
		}
		c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", UID: pod}}
		return c
	}
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
		p.Spec.Containers = []corev1.Container{{Name: "main"}}
		change(p)
		return p
	}
	name := "c"
	uses := pod(func(p *corev1.Pod) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "devices", ResourceClaimName: &name}}
		p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "devices"}}
	})
	template := pod(func(p *corev1.Pod) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "devices", ResourceClaimTemplateName: &name}}
		p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "devices"}}
		p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "devices", ResourceClaimName: &name}}
	})
	request := pod(func(p *corev1.Pod) {
		p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: name, RequestMappings: []corev1.ContainerExtendedResourceRequest{
			{ContainerName: "main", RequestName: "a"}, {ContainerName: "other", RequestName: "b"},
		}}
	})
	none := pod(func(*corev1.Pod) {})
	for _, test := range []struct {
		what  string
		pod   *corev1.Pod
		claim *resourceapi.ResourceClaim
		want  []string
		known bool
	}{
		{"a claim of its own", uses, claim("c", driverName, "u", "dev-1", "dev-0"), []string{"dev-0", "dev-1"}, true},
		{"a claim by template", template, claim("c", driverName, "u", "dev-2"), []string{"dev-2"}, true},
		{"the requests of its container", request, claim("c", driverName, "u", "dev-3", "dev-2"), []string{"dev-3"}, true},
		{"devices of another driver", uses, claim("c", "other.example", "u", "dev-0"), nil, true},
		{"a claim for another pod", uses, claim("c", driverName, "v", "dev-0"), nil, false},
		{"a claim that is not allocated", uses, &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, nil, false},
		{"a claim that does not exist", uses, claim("d", driverName, "u", "dev-0"), nil, false},
		{"no claim", none, claim("c", driverName, "u", "dev-0"), nil, false},
	} {
		all, known := chosen(test.pod, map[string]*resourceapi.ResourceClaim{test.claim.Name: test.claim})
		got := all["main"].ids
		if !slices.Equal(got, test.want) || known != test.known {
			t.Errorf("%s: %q, %v; want %q, %v", test.what, got, known, test.want, test.known)
		}
	}
}

func TestFree_TaintsAndClaims_AreNotFree(t *testing.T) {
	claim := resourceapi.ResourceClaim{}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
		{Driver: driverName, Device: "dev-0"}, {Driver: "other.example", Device: "dev-1"},
	}}}
	devices := map[string][]string{"dev-0": nil, "dev-1": nil, "dev-2": {"devmgrd.io/unhealthy"}, "dev-3": nil}
	if got := free(devices, []resourceapi.ResourceClaim{claim, {}}); got != 2 {
		t.Errorf("%d devices are free; want 2: dev-1 and dev-3", got)
	}
}
