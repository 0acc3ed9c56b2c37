package device_test

import (
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
)

func TestGrantCheck(t *testing.T) {
	node := func(at, from, can string) device.Grant {
		return device.Grant{Nodes: []device.Node{{ContainerPath: "/ok", HostPath: "/ok", Permissions: "r"}, {ContainerPath: at, HostPath: from, Permissions: can}}}
	}
	for name, test := range map[string]struct {
		grant device.Grant
		want  string // in the error; empty: it is good
	}{
		"nothing": {device.Grant{}, ""},
		"all of it": {device.Grant{
			Env: map[string]string{"A": "", "B": "b=c"}, Mounts: []device.Mount{{ContainerPath: "/a", HostPath: "/b"}},
			Nodes: []device.Node{{HostPath: "/dev/a", Permissions: "mrw"}}, CDI: []string{"vendor.example/class=a"},
			Annotations: map[string]string{"a": ""},
		}, ""},
		"a variable without a name":     {device.Grant{Env: map[string]string{"": "x"}}, `envs[""]: the name is empty`},
		"a variable with =":             {device.Grant{Env: map[string]string{"A=B": "x"}}, `envs["A=B"]: the name has '=' or NUL in it`},
		"a value with NUL":              {device.Grant{Env: map[string]string{"A": "\x00"}}, `envs["A"]: the value has a NUL in it`},
		"a mount without a place":       {device.Grant{Mounts: []device.Mount{{HostPath: "/b"}}}, `mounts[0]: container_path "" is not an absolute path`},
		"a mount of a relative path":    {device.Grant{Mounts: []device.Mount{{ContainerPath: "/a", HostPath: "b"}}}, `mounts[0]: host_path "b"`},
		"a node without a source":       {node("/a", "", "r"), `devices[1]: host_path "" is not an absolute path`},
		"a node at a relative path":     {node("a", "/a", "r"), `devices[1]: container_path "a"`},
		"a node that may not be used":   {node("/a", "/a", ""), `devices[1]: permissions "" are not one or more of r, w and m`},
		"a node with a permission more": {node("/a", "/a", "rwx"), `permissions "rwx"`},
		"a CDI device without a class":  {device.Grant{CDI: []string{"vendor=a"}}, `cdi_devices[0]: name "vendor=a"`},
		"an annotation without a name":  {device.Grant{Annotations: map[string]string{"": "x"}}, `annotations[""]`},
	} {
		switch err := test.grant.Check(); {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}
