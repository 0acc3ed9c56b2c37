package device_test

import (
	"fmt"
	"slices"
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
		"a variable with =":             {device.Grant{Env: map[string]string{"A=B": "x"}}, `envs["A=B"]: the name contains '=' or NUL`},
		"a value with NUL":              {device.Grant{Env: map[string]string{"A": "\x00"}}, `envs["A"]: the value contains NUL`},
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

// A grant has all that Allocate may answer up to the limit, and is refused one byte above it with the entry that is to blame.
func TestGrantCheck_Size(t *testing.T) {
	base := device.Grant{
		Env: map[string]string{"A": "1"}, Mounts: []device.Mount{{ContainerPath: "/a", HostPath: "/b"}},
		Nodes: []device.Node{{ContainerPath: "/c", HostPath: "/dev/a", Permissions: "rw"}}, CDI: []string{"vendor.example/class=a"},
		Annotations: map[string]string{"a": ""},
	}
	left := device.MaxGrant - base.Size()
	for field, with := range map[string]func(g *device.Grant, n int){
		`envs["BIG"]`: func(g *device.Grant, n int) { g.Env = map[string]string{"A": "1", "BIG": strings.Repeat("x", n-67)} },
		`mounts[1]`: func(g *device.Grant, n int) {
			g.Mounts = append(g.Mounts[:1:1], device.Mount{ContainerPath: "/" + strings.Repeat("x", n-66), HostPath: "/"})
		},
		`devices[1]`: func(g *device.Grant, n int) {
			g.Nodes = append(g.Nodes[:1:1], device.Node{HostPath: "/" + strings.Repeat("x", n-66), Permissions: "r"})
		},
		`cdi_devices[1]`: func(g *device.Grant, n int) {
			g.CDI = append(g.CDI[:1:1], "vendor.example/class="+strings.Repeat("x", n-85))
		},
		`annotations["big"]`: func(g *device.Grant, n int) {
			g.Annotations = map[string]string{"a": "", "big": strings.Repeat("x", n-67)}
		},
	} {
		g := base
		with(&g, left)
		if g.Size() != device.MaxGrant || g.Check() != nil {
			t.Errorf("%s: a grant of %d bytes: %v", field, g.Size(), g.Check())
		}
		with(&g, left+1)
		if g.Size() != device.MaxGrant+1 {
			t.Errorf("%s: a grant of %d bytes", field, g.Size())
		}
		if err := g.Check(); err == nil || !strings.Contains(err.Error(), field) || len(err.Error()) > 1000 {
			t.Errorf("%s: %v, want that it is too large", field, err)
		}
	}
	many := device.Grant{Env: map[string]string{}}
	for i := range device.MaxGrant / 64 {
		many.Env[fmt.Sprint(i)] = ""
	}
	if many.Check() == nil {
		t.Errorf("%d variables without a value are small", len(many.Env))
	}
}

func TestGrants(t *testing.T) {
	share := func(r device.ResourceName, size int) device.Share {
		return device.Share{Resource: r, Grant: device.Grant{Env: map[string]string{"A": strings.Repeat("x", size-65)}}}
	}
	var c device.Grants
	c.Add(share("a.com/x", device.MaxGrant/4), share("a.com/y", device.MaxGrant/2), share("a.com/z", device.MaxGrant/4))
	if no := c.CheckContainer("main"); no != nil {
		t.Error(no)
	}
	c.Add(share("a.com/one", 65))
	no := c.CheckContainer("main")
	if no == nil || no.Reason != device.PluginError || !strings.Contains(no.Message, "container main") || !strings.Contains(no.Message, "a.com/y") {
		t.Errorf("%v, want that the grants for container main are too large", no)
	}
	var p device.Grants
	for range device.MaxPodGrants / device.MaxGrant {
		p.Add(share("a.com/x", device.MaxGrant))
	}
	if no := p.CheckPod(); no != nil {
		t.Error(no)
	}
	p.Add(share("a.com/x", 65))
	if no := p.CheckPod(); no == nil || no.Reason != device.PluginError || !strings.Contains(no.Message, "the pod") {
		t.Errorf("%v, want that the grants for the pod are too large", no)
	}
}

func TestGrant_CDINames_AnnotationsIncluded(t *testing.T) {
	t.Parallel()
	g := device.Grant{CDI: []string{"v.example/gpu=0"}, Annotations: map[string]string{"cdi.k8s.io/b": "v.example/nic=1,v.example/nic=2", "other": "x", "cdi.k8s.io/a": "v.example/gpu=3"}}
	if got, want := g.CDINames(), []string{"v.example/gpu=0", "v.example/gpu=3", "v.example/nic=1", "v.example/nic=2"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
