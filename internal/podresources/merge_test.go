package podresources

import (
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	v1alpha1 "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"
)

// parse reads a message as people write it.
func parse[M proto.Message](t *testing.T, text string, m M) M {
	t.Helper()
	if err := prototext.Unmarshal([]byte(text), m); err != nil {
		t.Fatal(err)
	}
	return m
}

// withRaw moves a message's field devices to its unknown fields, encoded, as entry has it.
func withRaw(t *testing.T, m protoreflect.Message) {
	t.Helper()
	devices := m.Descriptor().Fields().ByName("devices")
	if !m.Has(devices) {
		return
	}
	alone := m.New()
	alone.Set(devices, m.Get(devices))
	encoded, err := proto.Marshal(alone.Interface())
	if err != nil {
		t.Fatal(err)
	}
	m.Clear(devices)
	m.SetUnknown(encoded)
}

// received returns a message as a client decodes it.
func received[M proto.Message](t *testing.T, m M) M {
	t.Helper()
	encoded, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	got := m.ProtoReflect().New().Interface()
	if err := proto.Unmarshal(encoded, got); err != nil {
		t.Fatal(err)
	}
	return got.(M)
}

// Whose word counts for what, in both versions.
func TestMerge(t *testing.T) {
	t.Parallel()
	o := managedResources{"a.com/gpu": true}
	for name, test := range map[string]struct{ own, kubelets, want string }{
		"the kubelet is away": {
			own:  `pod_resources {name: "p" namespace: "n" containers {name: "c" devices {resource_name: "a.com/gpu" device_ids: "0"}}}`,
			want: `pod_resources {name: "p" namespace: "n" containers {name: "c" devices {resource_name: "a.com/gpu" device_ids: "0"}}}`,
		},
		"devices are ours, all else is the kubelet's": {
			own: `pod_resources {name: "p" namespace: "n" containers {name: "c" devices {resource_name: "a.com/gpu" device_ids: "0"}} containers {name: "d"}}`,
			kubelets: `pod_resources {name: "p" namespace: "n"
				containers {name: "c" cpu_ids: 1 memory {memory_type: "memory" size: 5} dynamic_resources {claim_name: "x"}}
				containers {name: "d" cpu_ids: 2}}`,
			want: `pod_resources {name: "p" namespace: "n"
				containers {name: "c" devices {resource_name: "a.com/gpu" device_ids: "0"} cpu_ids: 1 memory {memory_type: "memory" size: 5} dynamic_resources {claim_name: "x"}}
				containers {name: "d" cpu_ids: 2}}`,
		},
		"what the kubelet says of our resources is from before": {
			own:      `pod_resources {name: "p" namespace: "n" containers {name: "c"}}`,
			kubelets: `pod_resources {name: "p" namespace: "n" containers {name: "c" devices {resource_name: "a.com/gpu" device_ids: "9"} devices {resource_name: "b.com/nic" device_ids: "1"}}}`,
			want:     `pod_resources {name: "p" namespace: "n" containers {name: "c" devices {resource_name: "b.com/nic" device_ids: "1"}}}`,
		},
		"pods of one side": {
			own:      `pod_resources {name: "new" namespace: "n" containers {name: "c"}} pod_resources {name: "both" namespace: "n" containers {name: "c"}}`,
			kubelets: `pod_resources {name: "both" namespace: "n" containers {name: "c"}} pod_resources {name: "new" namespace: "m" containers {name: "c" devices {resource_name: "a.com/gpu" device_ids: "9"}}}`,
			want: `pod_resources {name: "new" namespace: "n" containers {name: "c"}} pod_resources {name: "both" namespace: "n" containers {name: "c"}}
				pod_resources {name: "new" namespace: "m" containers {name: "c"}}`,
		},
		"containers of one side": {
			own:      `pod_resources {name: "p" namespace: "n" containers {name: "c" devices {resource_name: "a.com/gpu" device_ids: "0"}}}`,
			kubelets: `pod_resources {name: "p" namespace: "n" containers {name: "side" cpu_ids: 3}}`,
			want:     `pod_resources {name: "p" namespace: "n" containers {name: "side" cpu_ids: 3} containers {name: "c" devices {resource_name: "a.com/gpu" device_ids: "0"}}}`,
		},
	} {
		own, kubelets := parse(t, test.own, &v1.ListPodResourcesResponse{}), parse(t, test.kubelets, &v1.ListPodResourcesResponse{})
		for _, p := range own.PodResources {
			for _, c := range p.Containers {
				withRaw(t, c.ProtoReflect())
			}
		}
		before := []proto.Message{proto.Clone(own), proto.Clone(kubelets)}
		want := parse(t, test.want, &v1.ListPodResourcesResponse{})
		got := &v1.ListPodResourcesResponse{PodResources: merge(own.PodResources, kubelets.PodResources, o.pod)}
		if got = received(t, got); !proto.Equal(got, want) {
			t.Errorf("%s: got %v\nwant %v", name, got, want)
		}
		if !proto.Equal(own, before[0]) || !proto.Equal(kubelets, before[1]) {
			t.Errorf("%s: what others read has been changed", name)
		}
	}
}

// In v1alpha1 pods that have ended are listed as long as the kubelet knows them, and there is nothing but devices.
func TestMergeAlpha(t *testing.T) {
	t.Parallel()
	own := parse(t, `pod_resources {name: "p" namespace: "n" containers {name: "c" devices {resource_name: "a.com/gpu" device_ids: "0"}}}
		pod_resources {name: "new" namespace: "n" containers {name: "c"}}`, &v1alpha1.ListPodResourcesResponse{})
	kubelets := parse(t, `pod_resources {name: "over" namespace: "n" containers {name: "c" devices {resource_name: "a.com/gpu" device_ids: "9"}}}
		pod_resources {name: "p" namespace: "n" containers {name: "c" devices {resource_name: "b.com/nic" device_ids: "1"}} containers {name: "d"}}`, &v1alpha1.ListPodResourcesResponse{})
	want := parse(t, `pod_resources {name: "p" namespace: "n" containers {name: "c" devices {resource_name: "b.com/nic" device_ids: "1"} devices {resource_name: "a.com/gpu" device_ids: "0"}} containers {name: "d"}}
		pod_resources {name: "new" namespace: "n" containers {name: "c"}}
		pod_resources {name: "over" namespace: "n" containers {name: "c"}}`, &v1alpha1.ListPodResourcesResponse{})
	for _, p := range own.PodResources {
		for _, c := range p.Containers {
			withRaw(t, c.ProtoReflect())
		}
	}
	got := &v1alpha1.ListPodResourcesResponse{PodResources: merge(own.PodResources, kubelets.PodResources, managedResources{"a.com/gpu": true}.alphaPod)}
	if got = received(t, got); !proto.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	if got := merge(own.PodResources, nil, managedResources{}.alphaPod); len(got) != 2 {
		t.Errorf("without the kubelet: %v", got)
	}
}

// Most pods have only devices, of devmgrd or none: their entries are taken as they are.
func TestMerge_KubeletsEntryAddsNothing_OwnEntryIsUsed(t *testing.T) {
	own := parse(t, `name: "p" namespace: "n" containers {name: "c"} containers {name: "d"}`, &v1.PodResources{})
	kubelets := proto.CloneOf(own)
	m := managedResources{"a.com/gpu": true}
	if n := testing.AllocsPerRun(100, func() {
		if m.pod(own, kubelets) != own {
			t.Fatal("the entry is copied")
		}
	}); n != 0 {
		t.Errorf("%v allocations for a pod of which the kubelet knows nothing", n)
	}
}

func BenchmarkMerge(b *testing.B) {
	for name, text := range map[string]string{
		"names only": `name: "pod-0123456789" namespace: "default" containers {name: "main"} containers {name: "sidecar"}`,
		"cpus":       `name: "pod-0123456789" namespace: "default" containers {name: "main" cpu_ids: [1, 2, 3, 4]} containers {name: "sidecar"}`,
	} {
		b.Run(name, func(b *testing.B) {
			own, kubelets := &v1.PodResources{}, &v1.PodResources{}
			if err := prototext.Unmarshal([]byte(`name: "pod-0123456789" namespace: "default" containers {name: "main"} containers {name: "sidecar"}`), own); err != nil {
				b.Fatal(err)
			}
			if err := prototext.Unmarshal([]byte(text), kubelets); err != nil {
				b.Fatal(err)
			}
			m := managedResources{"a.com/gpu": true}
			b.ReportAllocs()
			for b.Loop() {
				m.pod(own, kubelets)
			}
		})
	}
}
