package nri

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"github.com/devmgrd/devmgrd/internal/device"
)

// mounts reads "source > destination options; ...".
func mounts(text string) (all []*api.Mount) {
	for one := range strings.SplitSeq(text, "; ") {
		f := strings.Fields(one)
		all = append(all, &api.Mount{Type: "bind", Source: f[0], Destination: f[2], Options: strings.Split(f[3], ",")})
	}
	return all
}

func written(all []*api.Mount) string {
	var parts []string
	for _, m := range all {
		parts = append(parts, m.Source+" > "+m.Destination)
	}
	return strings.Join(parts, "; ")
}

// ownRedirects makes a plugin that redirects each plugin pod to a directory of its own.
func ownRedirects(t *testing.T) (*plugin, *harness) {
	p, w := newPlugin(t)
	p.Redirect = &Redirect{From: "/k/device-plugins", To: "/d", RegistryFrom: "/k/plugins_registry", RegistryTo: "/r", Own: true}
	w.set(device.Readiness{State: device.NoDevices})
	return p, w
}

// Who may put sockets into the kubelet's directory has one of its own. Who only reads there, or sees all that is above, sees what
// all share.
func TestOwnDirectory(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, annotation, mounts, want string }{
		{"a plugin", "", "/k/device-plugins > /p rprivate,rw", "/own/uid/d > /p"},
		{"its socket alone", "", "/k/device-plugins/kubelet.sock > /s rprivate,rw", "/own/uid/d/kubelet.sock > /s"},
		{"both directories", "", "/k/device-plugins > /p rw; /k/plugins_registry > /q rw", "/own/uid/d > /p; /own/uid/r > /q"},
		{"a directory above as well", "", "/k > /k rw; /k/device-plugins > /p rw", "/own/uid/d > /k/device-plugins; /own/uid/d > /p; /own/uid/r > /k/plugins_registry"},
		{"reading only", "", "/k/device-plugins > /p rprivate,ro", "/d > /p"},
		{"a directory above", "", "/k > /k rprivate,rw", "/d > /k/device-plugins"},
		{"the root", "", "/ > /host rprivate,rw", "/d > /host/k/device-plugins"},
		{"a CSI driver", "", "/k/plugins_registry > /q rw", ""},
		{"a plugin that waits to be asked", "devmgrd.io/redirect=plugins_registry", "/k/plugins_registry > /q rw", "/own/uid/r > /q"},
		{"one that reads only", "devmgrd.io/redirect=plugins_registry", "/k/plugins_registry > /q ro", "/r > /q"},
		{"it wants the common one", "devmgrd.io/plugin-directory=common", "/k/device-plugins > /p rw", "/d > /p"},
		{"it wants the kubelet's", "devmgrd.io/redirect=false", "/k/device-plugins > /p rw", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, w := ownRedirects(t)
			s, c := sandbox(), container()
			if key, value, is := strings.Cut(test.annotation, "="); is {
				s.Annotations[key] = value
			}
			c.Mounts = mounts(test.mounts)
			adj, _, err := p.CreateContainer(context.Background(), s, c)
			if err != nil || written(adj.GetMounts()) != test.want {
				t.Errorf("mounts %q, want %q (%v)", written(adj.GetMounts()), test.want, err)
			}
			if made := len(w.dirs) > 0; made != strings.Contains(test.want, "/own/") {
				t.Errorf("directories: %v", w.dirs)
			}
		})
	}
}

// Containers of one pod share its directory, one that only reads too, and restart in it.
func TestOwnDirectory_OnePod_SharesIt(t *testing.T) {
	t.Parallel()
	p, _ := ownRedirects(t)
	for _, text := range []string{"/k/device-plugins > /p rw", "/k/device-plugins > /p ro", "/k/device-plugins > /p rw"} {
		c := container()
		c.Mounts = mounts(text)
		adj, _, err := p.CreateContainer(context.Background(), sandbox(), c)
		if err != nil || written(adj.GetMounts()) != "/own/uid/d > /p" {
			t.Errorf("%s: mounts %q (%v)", text, written(adj.GetMounts()), err)
		}
	}
}

// Without its directory a plugin does not start: it would register with the kubelet, or among others. A container that mounts
// nothing does.
func TestOwnDirectory_NotMade_Refused(t *testing.T) {
	t.Parallel()
	p, w := ownRedirects(t)
	w.noDirectory = errors.New("no space left on device")
	c := container()
	c.Mounts = mounts("/k/device-plugins > /p rw")
	adj, _, err := p.CreateContainer(context.Background(), sandbox(), c)
	if err == nil || adj != nil || !strings.Contains(err.Error(), "PluginDirectoryMissing") || !strings.Contains(err.Error(), "no space left on device") {
		t.Errorf("%v, %v", adj, err)
	}
	c.Mounts = nil
	if _, _, err := p.CreateContainer(context.Background(), sandbox(), c); err != nil {
		t.Errorf("another container: %v", err)
	}
}

// The directory is there for as long as the pod has a sandbox.
func TestOwnDirectory_End(t *testing.T) {
	t.Parallel()
	p, w := ownRedirects(t)
	has := func() bool { _, has := w.OwnDirectory("uid"); return has }
	first, second := sandbox(), sandbox()
	second.Id = "s2"
	c := container()
	c.Mounts = mounts("/k/device-plugins > /p rw")
	create := func(s *api.PodSandbox) {
		t.Helper()
		if _, _, err := p.CreateContainer(t.Context(), s, c); err != nil || !has() {
			t.Fatal(err)
		}
	}
	p.RunPodSandbox(t.Context(), first)
	create(first)
	p.StopContainer(t.Context(), first, c)
	p.StopPodSandbox(t.Context(), first)
	if !has() {
		t.Error("it is gone when the sandbox stops: the pod may have another one")
	}
	p.RunPodSandbox(t.Context(), second)
	p.RemovePodSandbox(t.Context(), first)
	if !has() {
		t.Error("it is gone with the first sandbox")
	}
	create(second)
	p.RemovePodSandbox(t.Context(), second)
	if has() {
		t.Error("it is there after the last sandbox")
	}

	// A sandbox counts though its RunPodSandbox event was not received.
	create(first)
	create(second)
	p.RemovePodSandbox(t.Context(), first)
	if !has() {
		t.Error("it is gone, and a container runs in the second sandbox")
	}
	p.RemovePodSandbox(t.Context(), second)

	// What ended while devmgrd was away shows when the runtime lists what it has.
	create(first)
	if _, err := p.Synchronize(t.Context(), []*api.PodSandbox{first}, nil); err != nil || !has() {
		t.Error("it is gone, and its sandbox is not")
	}
	running := container()
	running.PodSandboxId, running.Labels = first.Id, map[string]string{podUIDKey: "uid"}
	if _, err := p.Synchronize(t.Context(), nil, []*api.Container{running}); err != nil || !has() {
		t.Error("it is gone, and a container of it runs in a sandbox that is not listed")
	}
	if _, err := p.Synchronize(t.Context(), nil, nil); err != nil || has() {
		t.Error("it is there, and its sandbox is not")
	}
}
