package nri

import (
	"reflect"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
)

func TestMerge(t *testing.T) {
	t.Parallel()
	a := device.Share{Resource: "a.com/x", IDs: []device.ID{"1"}, Grant: device.Grant{
		Env:    map[string]string{"SAME": "1", "DIFFERS": "a", "POD": "a"},
		Mounts: []device.Mount{{ContainerPath: "/m", HostPath: "/a"}, {ContainerPath: "/volume", HostPath: "/a"}},
		Nodes: []device.Node{
			{ContainerPath: "/dev/x", HostPath: "/dev/a", Permissions: "rw"},
			{ContainerPath: "/dev/x", HostPath: "/dev/a", Permissions: "rw"},
		},
		CDI:         []string{"a.com/x=1"},
		Annotations: map[string]string{"k": "a", "cdi.k8s.io/a": "a.com/x=1,a.com/x=2", "io.kubernetes.hash": "mine", stampKey: "mine"},
	}}
	b := device.Share{Resource: "b.com/y", IDs: []device.ID{"1"}, Grant: device.Grant{
		Env:         map[string]string{"SAME": "1", "DIFFERS": "b", "B": "b"},
		Mounts:      []device.Mount{{ContainerPath: "/m", HostPath: "/b"}},
		Nodes:       []device.Node{{ContainerPath: "/dev/x", HostPath: "/dev/b", Permissions: "rw"}},
		Annotations: map[string]string{"k": "b"},
	}}
	got, conflicts := merge([]device.Share{a, b}, own{
		env: []string{"POD"}, mounts: map[string]bool{"/volume": true}, annotations: map[string]string{"io.kubernetes.hash": "1"},
	})
	want := device.Grant{
		Env:         map[string]string{"SAME": "1", "DIFFERS": "a", "B": "b"},
		Mounts:      []device.Mount{{ContainerPath: "/m", HostPath: "/a"}},
		Nodes:       []device.Node{{ContainerPath: "/dev/x", HostPath: "/dev/a", Permissions: "rw"}},
		CDI:         []string{"a.com/x=1", "a.com/x=2"},
		Annotations: map[string]string{"k": "a"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("merged into\n%+v, want\n%+v", got, want)
	}
	for i, word := range []string{"variable DIFFERS", "mount /m", "node /dev/x", "annotation k"} {
		if i >= len(conflicts) || !strings.Contains(conflicts[i], word+" of b.com/y") {
			t.Fatalf("conflicts %q, want one about each: %s", conflicts, word)
		}
	}
	if len(conflicts) != 4 {
		t.Errorf("%d conflicts: %q", len(conflicts), conflicts)
	}
}

// What only the kubelet's code tells: CDI devices by annotation come after the others and are subject to the first
// one's right too, and a mount that another one covers is not there.
func TestMergeAsTheKubelet(t *testing.T) {
	t.Parallel()
	got, conflicts := merge([]device.Share{
		{Resource: "a.com/x", Grant: device.Grant{
			Annotations: map[string]string{"cdi.k8s.io/k": "a.com/x=3"}, CDI: []string{"a.com/x=1"},
			Mounts: []device.Mount{
				{ContainerPath: "/m/", HostPath: "/a"}, {ContainerPath: "/m", HostPath: "/b"}, {ContainerPath: "/volume/", HostPath: "/a"},
				{ContainerPath: "/m", HostPath: "/c"}, {ContainerPath: "/m/below", HostPath: "/a"},
			},
		}},
		{Resource: "b.com/y", Grant: device.Grant{
			Annotations: map[string]string{"cdi.k8s.io/k": "a.com/x=4"}, CDI: []string{"a.com/x=2", "a.com/x=1"},
		}},
	}, own{mounts: map[string]bool{"/volume": true}})
	want := device.Grant{
		Env: map[string]string{}, Annotations: map[string]string{},
		Mounts: []device.Mount{{ContainerPath: "/m", HostPath: "/b"}, {ContainerPath: "/m/below", HostPath: "/a"}},
		CDI:    []string{"a.com/x=1", "a.com/x=2", "a.com/x=3"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("merged into\n%+v, want\n%+v", got, want)
	}
	if len(conflicts) != 2 || !strings.Contains(conflicts[0], "mount /m of a.com/x") || !strings.Contains(conflicts[1], "annotation cdi.k8s.io/k of b.com/y") {
		t.Errorf("conflicts %q, want one about the mount and one about the annotation", conflicts)
	}
}
