package nri

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"github.com/devmgrd/devmgrd/internal/device"
)

// access returns what a runtime makes of rules for one device, in their order.
func access(n number, rules []*api.LinuxDeviceCgroup) string {
	sum := ""
	for _, r := range rules {
		switch {
		case r.Type != "" && r.Type != n.kind, r.Major != nil && r.Major.Value != n.major, r.Minor != nil && r.Minor.Value != n.minor:
		case r.Allow:
			sum = both(sum, r.Access)
		default:
			sum = strings.Map(func(letter rune) rune {
				if strings.ContainsRune(r.Access, letter) {
					return -1
				}
				return letter
			}, sum)
		}
	}
	return sum
}

// The rules of one device add up, wherever they come from, as they do for the kubelet's answer.
func TestDeviceRules_OneDeviceTwice_AccessIsCombined(t *testing.T) {
	t.Parallel()
	null, zero := number{"c", 1, 3}, number{"c", 1, 5}
	deny := &api.LinuxDeviceCgroup{Access: "rwm"}
	allow := func(n number, access string) *api.LinuxDeviceCgroup {
		return &api.LinuxDeviceCgroup{Allow: true, Type: n.kind, Major: api.Int64(n.major), Minor: api.Int64(n.minor), Access: access}
	}
	grant := func(at, host, permissions string) device.Node {
		return device.Node{ContainerPath: at, HostPath: host, Permissions: permissions}
	}
	for name, test := range map[string]struct {
		granted []device.Node
		has     []*api.LinuxDeviceCgroup // rules of the container's own
		cdi     edits
		want    map[number]string
		rules   int // that we add next to those of NRI
	}{
		"to read and write":        {granted: []device.Node{grant("/a", "/dev/null", "rw")}, want: map[number]string{null: "rw", zero: ""}},
		"in any order":             {granted: []device.Node{grant("/a", "/dev/null", "wr")}, want: map[number]string{null: "rw"}},
		"to read":                  {granted: []device.Node{grant("/a", "/dev/null", "r")}, want: map[number]string{null: "r"}, rules: 2},
		"to make nodes":            {granted: []device.Node{grant("/a", "/dev/null", "m")}, want: map[number]string{null: "m"}, rules: 2},
		"all of it":                {granted: []device.Node{grant("/a", "/dev/null", "mrw")}, want: map[number]string{null: "rwm"}, rules: 1},
		"at two places":            {granted: []device.Node{grant("/a", "/dev/null", "rw"), grant("/b", "/dev/null", "r")}, want: map[number]string{null: "rw"}},
		"in two parts":             {granted: []device.Node{grant("/a", "/dev/null", "r"), grant("/b", "/dev/null", "w")}, want: map[number]string{null: "rw"}},
		"two devices":              {granted: []device.Node{grant("/a", "/dev/null", "r"), grant("/b", "/dev/zero", "w")}, want: map[number]string{null: "r", zero: "w"}, rules: 4},
		"at a place that is taken": {granted: []device.Node{grant("/a", "/dev/null", "rw"), grant("/a", "/dev/zero", "r")}, want: map[number]string{null: "rw", zero: "r"}, rules: 1},
		"to who has it already":    {granted: []device.Node{grant("/a", "/dev/null", "r")}, has: []*api.LinuxDeviceCgroup{allow(null, "w")}, want: map[number]string{null: "rw"}},
		"to the privileged":        {granted: []device.Node{grant("/a", "/dev/null", "r")}, has: []*api.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}, want: map[number]string{null: "rwm"}},
		"of a CDI device": {
			granted: []device.Node{grant("/a", "/dev/null", "r")}, cdi: edits{DeviceNodes: []cdiNode{{Path: "/a", HostPath: "/dev/null"}}},
			has: []*api.LinuxDeviceCgroup{allow(null, "rwm")}, want: map[number]string{null: "rwm"},
		},
		"of a CDI device with fewer permissions": {
			granted: []device.Node{grant("/a", "/dev/null", "w")}, cdi: edits{DeviceNodes: []cdiNode{{Path: "/a", HostPath: "/dev/null", Permissions: "r"}}},
			has: []*api.LinuxDeviceCgroup{allow(null, "r")}, want: map[number]string{null: "rw"}, rules: 1,
		},
		"of a device in a CDI device's place": {
			granted: []device.Node{grant("/a", "/dev/zero", "r")}, cdi: edits{DeviceNodes: []cdiNode{{Path: "/a", HostPath: "/dev/null"}}},
			has: []*api.LinuxDeviceCgroup{allow(null, "rwm")}, want: map[number]string{null: "rwm", zero: "r"}, rules: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			to := &api.ContainerAdjustment{}
			ctr := &api.Container{Linux: &api.LinuxContainer{Resources: &api.LinuxResources{Devices: append([]*api.LinuxDeviceCgroup{deny}, test.has...)}}}
			if err := addNodes(t.Context(), newChecks(), nil, newAdjustment(to), test.granted, ctr, features{rules: true}, test.cdi); err != nil {
				t.Fatal(err)
			}
			rules := slices.Clone(ctr.Linux.Resources.Devices)
			for _, d := range to.GetLinux().GetDevices() {
				rules = append(rules, allow(number{d.Type, d.Major, d.Minor}, d.AccessString()))
				if test.cdi.has(d.Path) {
					t.Errorf("%s takes the CDI device's place", d.Path)
				}
			}
			rules = append(rules, to.GetLinux().GetResources().GetDevices()...)
			for n, want := range test.want {
				if got := access(n, rules); got != want {
					t.Errorf("device %v may be used %q, want %q", n, got, want)
				}
			}
			if n := len(to.GetLinux().GetResources().GetDevices()); n != test.rules {
				t.Errorf("%d rules more, want %d", n, test.rules)
			}
		})
	}
}

func TestMounts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ctr := &api.Container{PodSandboxId: "s", Mounts: []*api.Mount{
		{Destination: "/dev", Type: "tmpfs"}, {Destination: "/dev/pts", Type: "devpts"}, {Destination: "/dev/shm", Type: "bind", Source: "/run/c/sandboxes/s/shm"},
		{Destination: "/sys", Type: "sysfs"}, {Destination: "/sys/fs/cgroup", Type: "cgroup"}, {Destination: "/system", Type: "tmpfs"},
		{Destination: "/volume/", Type: "bind", Source: "/var/lib/kubelet/pods/u/volumes/v"},
	}}
	if got := slices.Sorted(maps.Keys(volumes(ctr))); !slices.Equal(got, []string{"/volume"}) {
		t.Errorf("the pod's own volumes are at %q", got)
	}
	for _, test := range []struct {
		at   []string
		cdi  edits
		want []string
	}{
		{at: []string{"/opt//x/", "/dev/shm"}, want: []string{"/opt/x", "/dev/shm"}},
		{at: []string{"/dev"}, want: []string{"/dev", "-/dev/pts"}}, // the bind mount stays
		{at: []string{"/sys/", "/dev"}, want: []string{"/sys", "/dev", "-/dev/pts", "-/sys/fs/cgroup"}},
		{at: []string{"/sys", "/sys/fs/cgroup"}, want: []string{"/sys", "/sys/fs/cgroup"}},
		{at: []string{"/a", "/b"}, cdi: edits{Mounts: []cdiMount{{ContainerPath: "/a/"}}}, want: []string{"/b"}},
	} {
		var granted []device.Mount
		for _, at := range test.at {
			granted = append(granted, device.Mount{ContainerPath: at, HostPath: dir})
		}
		to := &api.ContainerAdjustment{}
		if err := addMounts(t.Context(), newChecks(), nil, newAdjustment(to), granted, ctr, features{}, test.cdi, true); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range to.Mounts {
			got = append(got, m.Destination)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("mounts at %q became %q, want %q", test.at, got, test.want)
		}
	}
}

// In a user namespace of the container's own the files of the host's root belong to no user, unless the runtime maps their owners.
func TestMounts_ContainerHasUserNamespace_OwnersAreMapped(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	granted := []device.Mount{{ContainerPath: "/a", HostPath: dir}, {ContainerPath: "/b", HostPath: dir, ReadOnly: true}}
	for name, test := range map[string]struct {
		namespace string
		can       features
		cdi       edits
		want      [][]string
		refused   bool
	}{
		"none of its own":           {namespace: "network", want: [][]string{{"rbind", "rprivate", "rw"}, {"rbind", "rprivate", "ro"}}},
		"its own":                   {namespace: "user", can: features{idmap: true}, want: [][]string{{"rbind", "rprivate", "rw", "idmap"}, {"rbind", "rprivate", "ro", "idmap"}}},
		"its own, an old runtime":   {namespace: "user", refused: true},
		"mounts of CDI devices":     {namespace: "user", cdi: edits{Mounts: []cdiMount{{ContainerPath: "/a"}, {ContainerPath: "/b"}}}},
		"one mount of a CDI device": {namespace: "user", can: features{idmap: true}, cdi: edits{Mounts: []cdiMount{{ContainerPath: "/a"}}}, want: [][]string{{"rbind", "rprivate", "ro", "idmap"}}},
	} {
		ctr := &api.Container{Linux: &api.LinuxContainer{Namespaces: []*api.LinuxNamespace{{Type: "pid"}, {Type: test.namespace, Path: "/proc/1/ns/x"}}}}
		to := &api.ContainerAdjustment{}
		err := addMounts(t.Context(), newChecks(), nil, newAdjustment(to), granted, ctr, test.can, test.cdi, true)
		var no *device.Refusal
		if test.refused != (errors.As(err, &no) && no.Reason == device.PluginError && strings.Contains(no.Message, "user namespace")) {
			t.Errorf("%s: %v, refused: want %v", name, err, test.refused)
		}
		var got [][]string
		for _, m := range to.Mounts {
			got = append(got, m.Options)
		}
		if !slices.EqualFunc(got, test.want, slices.Equal[[]string]) {
			t.Errorf("%s: mount options %q, want %q", name, got, test.want)
		}
	}
}

// A CDI device that the pod has by other means is not injected twice, and a command line is rewritten only if it changes.
func TestAdjust(t *testing.T) {
	t.Parallel()
	st := ready()
	st.Demand.Refs = []string{"NEW"}
	ctr := container()
	ctr.CDIDevices = []*api.CDIDevice{{Name: "a.com/x=1"}}
	for arg, want := range map[string][]string{"$(NEW)": {"2"}, "$(OLD)": nil} {
		ctr.Args = []string{arg}
		to := &api.ContainerAdjustment{}
		if _, err := adjust(t.Context(), newChecks(), nil, to, st, ctr, featuresOf("containerd", "v2.4.2")); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(to.Args, want) || len(to.CDIDevices) != 0 {
			t.Errorf("%s became %q, with the CDI devices %v", arg, to.Args, to.CDIDevices)
		}
	}
}

// A name that NRI would take for an order to remove another is a refusal, not a removal.
func TestAdjust_NameWithRemovalMark_IsRefused(t *testing.T) {
	t.Parallel()
	for _, grant := range []device.Grant{{Env: map[string]string{"-PATH": "x"}}, {Annotations: map[string]string{"-k": "x"}}} {
		st := ready()
		st.Assignment.Shares[0].Grant = grant
		_, err := adjust(t.Context(), newChecks(), nil, &api.ContainerAdjustment{}, st, container(), featuresOf("containerd", "v2.4.2"))
		var no *device.Refusal
		if !errors.As(err, &no) || no.Reason != device.PluginError {
			t.Errorf("%+v: %v, want a refusal", grant, err)
		}
	}
}
