package registry

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	watcherapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/devmgrd/devmgrd/internal/device"
)

// An accepted request names a valid resource and a socket directly in the plugin directory that is not devmgrd's. The error for
// a rejected request names the cause, and is short.
func FuzzRegisterRequest(f *testing.F) {
	for _, endpoint := range []string{"gpu.sock", "", ".", "..", "../gpu.sock", "/gpu.sock", "a/b", "a\x00", "kubelet.sock", ".kubelet.sock.1", "...", "ä"} {
		f.Add("v1beta1", "vendor.example/gpu", endpoint)
	}
	f.Add("v1beta2", "vendor.example/gpu", "gpu.sock")
	f.Add("v1beta1", "kubernetes.io/gpu", "gpu.sock")
	f.Fuzz(func(t *testing.T, version, name, endpoint string) {
		const dir = "/run/devmgrd/device-plugins"
		resource, err := checkRequest(&pluginapi.RegisterRequest{Version: version, ResourceName: name, Endpoint: endpoint})
		if err != nil {
			wantRequestError(t, err, string(resource))
			return
		}
		if _, err := device.ParseResourceName(string(resource)); err != nil || string(resource) != name || version != "v1beta1" {
			t.Errorf("%q of version %q became %q: %v", name, version, resource, err)
		}
		path := (&location{sockets: dir}).locate(endpoint)
		if filepath.Dir(path) != dir || filepath.Base(path) != endpoint || strings.ContainsRune(path, 0) ||
			path == dir+"/kubelet.sock" || path == dir+"/.kubelet.sock.1" {
			t.Errorf("endpoint %q is %q", endpoint, path)
		}
	})
}

func wantRequestError(t *testing.T, err error, left ...string) {
	t.Helper()
	request, other := new(requestError), new(typeError)
	if !errors.As(err, &request) && !errors.As(err, &other) || err.Error() == "" || len(err.Error()) > 5000 {
		t.Errorf("%T of %d bytes: %v", err, len(err.Error()), err)
	}
	for _, s := range left {
		if s != "" {
			t.Errorf("%q comes with the error %v", s, err)
		}
	}
}

// What a plugin says of itself leads to a socket where it means it: below our directories for what it sees below the
// kubelet's, and never outside of the one that it means, nor to our own socket.
func FuzzPluginInfo(f *testing.F) {
	config := location{
		sockets: "/run/devmgrd/device-plugins", registry: "/run/devmgrd/plugins_registry",
		kubelet: "/var/lib/kubelet/device-plugins", kubeletRegistry: "/var/lib/kubelet/plugins_registry",
	}
	own := map[string]bool{config.sockets + "/kubelet.sock": true, config.sockets + "/.kubelet.sock.1": true}
	const found = "/run/devmgrd/plugins_registry/sub/reg.sock"
	for _, endpoint := range []string{
		"", "a.sock", "/", "/a.sock", "//var/lib/kubelet/plugins_registry//a.sock", "/var/lib/kubelet/plugins_registry/a.sock", "/var/lib/kubelet/plugins_registry",
		"/var/lib/kubelet/plugins_registry/../a.sock", "/var/lib/kubelet/plugins_registry/.../a.sock", "/var/lib/kubelet/plugins_registry2/a.sock",
		"/var/lib/kubelet/device-plugins/kubelet.sock", "/var/lib/kubelet/device-plugins/./kubelet.sock", "/run/devmgrd/device-plugins/kubelet.sock/",
		"/var/lib/kubelet/device-plugins/sub/kubelet.sock", "/run/a\x00b", "/" + strings.Repeat("x", 4096),
	} {
		f.Add("DevicePlugin", "vendor.example/gpu", endpoint, "v1alpha1,v1beta1")
	}
	f.Add("CSIPlugin", "csi.vendor.example", "/a.sock", "1.0.0")
	f.Add("DevicePlugin", "vendor.example/gpu", "", "v1")
	f.Fuzz(func(t *testing.T, kind, name, endpoint, versions string) {
		info := &watcherapi.PluginInfo{Type: kind, Name: name, Endpoint: endpoint, SupportedVersions: strings.Split(versions, ",")}
		resource, path, err := config.checkInfo(info, found)
		if err != nil {
			wantRequestError(t, err, string(resource), path)
			return
		}
		if _, err := device.ParseResourceName(string(resource)); err != nil || string(resource) != name || kind != "DevicePlugin" ||
			!strings.Contains(","+versions+",", ",v1beta1,") {
			t.Errorf("%+v became %q: %v", info, resource, err)
		}
		if !filepath.IsAbs(path) || filepath.Clean(path) != path || own[path] || len(path) >= maxPath || strings.ContainsRune(path, 0) {
			t.Errorf("endpoint %q is %q", endpoint, path)
		}
		// The slow way: element by element, as the container's mounts would have it.
		want := []string{""}
		for _, e := range strings.Split(endpoint, "/") {
			if e == ".." {
				t.Errorf("endpoint %q was taken", endpoint)
			}
			if e == "" || e == "." {
				continue
			}
			want = append(want, e)
			switch strings.Join(want, "/") {
			case config.kubelet:
				want = []string{config.sockets}
			case config.kubeletRegistry:
				want = []string{config.registry}
			}
		}
		switch slow := strings.Join(want, "/"); {
		case endpoint == "":
			if path != found {
				t.Errorf("no endpoint is %q", path)
			}
		case slow == config.sockets || slow == config.registry || slow == "": // a directory itself, by whichever name
		case path != slow:
			t.Errorf("endpoint %q is %q, want %q", endpoint, path, slow)
		}
	})
}

// A plugin's advice is given as it is, or not at all, and is never larger than what is there to be advised about.
func FuzzPreferred(f *testing.F) {
	const most = 3
	f.Add(uint8(0), "a", uint16(0))
	f.Add(uint8(1), "", uint16(0))
	f.Add(uint8(1), "a,a,", uint16(0))
	f.Add(uint8(1), "a,b,c,d", uint16(0))
	f.Add(uint8(1), "a", uint16(1024))
	f.Add(uint8(1), "a", uint16(1025))
	f.Add(uint8(2), "a", uint16(0))
	f.Fuzz(func(t *testing.T, containers uint8, names string, long uint16) {
		named := strings.Split(names, ",")
		if long > 0 {
			named = append(named, strings.Repeat("x", int(long)))
		}
		var answer pluginapi.PreferredAllocationResponse
		for range containers {
			answer.ContainerResponses = append(answer.ContainerResponses, &pluginapi.ContainerPreferredAllocationResponse{DeviceIDs: named})
		}
		ids, err := preferred(&answer, most)
		good := len(answer.ContainerResponses) == 1 && len(answer.ContainerResponses[0].DeviceIDs) <= most
		if good {
			for _, id := range answer.ContainerResponses[0].DeviceIDs {
				good = good && len(id) <= 1024
			}
		}
		switch {
		case good != (err == nil):
			t.Errorf("%v: %v", &answer, err)
		case err != nil:
			if len(ids) > 0 || len(err.Error()) > 1000 {
				t.Errorf("%d IDs come with the error %v", len(ids), err)
			}
		case len(ids) != len(answer.ContainerResponses[0].DeviceIDs):
			t.Errorf("%q of %v", ids, &answer)
		default:
			for i, id := range answer.ContainerResponses[0].DeviceIDs {
				if string(ids[i]) != id {
					t.Errorf("%q of %v", ids, &answer)
				}
			}
		}
	})
}
