package nri

import (
	"reflect"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
)

func TestMerge(t *testing.T) {
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
