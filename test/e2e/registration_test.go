//go:build e2e

package e2e

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/internal/plugintest"
	"github.com/devmgrd/devmgrd/test/node"
)

func itoa(n int) string { return strconv.Itoa(n) }

// What is wrong with a registration comes back to the plugin in words, and nothing changes.
func TestRegistrationErrors(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 2)
	r.must(os.WriteFile(filepath.Join(node.SocketDir, "file"), nil, 0o644))
	defer os.Remove(filepath.Join(node.SocketDir, "file"))
	elsewhere := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", elsewhere)
	r.must(err)
	defer listener.Close()
	r.must(os.Symlink(elsewhere, filepath.Join(node.SocketDir, "link")))
	defer os.Remove(filepath.Join(node.SocketDir, "link"))

	for _, test := range []struct {
		name    string
		request *plugintest.RegisterRequest
		want    []string
	}{
		{"wrong version", &plugintest.RegisterRequest{Version: "v1alpha7", ResourceName: gpu, Endpoint: "x"}, []string{"v1alpha7", "v1beta1"}},
		{"native resource", &plugintest.RegisterRequest{Version: "v1beta1", ResourceName: "cpu", Endpoint: "x"}, []string{`"cpu"`, "vendor.example/gpu"}},
		{"Kubernetes' own domain", &plugintest.RegisterRequest{Version: "v1beta1", ResourceName: "kubernetes.io/gpu", Endpoint: "x"}, []string{"kubernetes.io"}},
		{"bad name", &plugintest.RegisterRequest{Version: "v1beta1", ResourceName: "Vendor/g pu", Endpoint: "x"}, []string{"Vendor/g pu"}},
		{"slash", &plugintest.RegisterRequest{Version: "v1beta1", ResourceName: gpu, Endpoint: "../x"}, []string{"../x"}},
		{"no endpoint", &plugintest.RegisterRequest{Version: "v1beta1", ResourceName: gpu}, []string{"endpoint"}},
		{"not a socket", &plugintest.RegisterRequest{Version: "v1beta1", ResourceName: gpu, Endpoint: "file"}, []string{"file", "socket"}},
		{"a link to elsewhere", &plugintest.RegisterRequest{Version: "v1beta1", ResourceName: gpu, Endpoint: "link"}, []string{"link"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := plugintest.Register(r.ctx, node.SocketDir, test.request)
			if err == nil {
				t.Fatal("it was accepted")
			}
			t.Log(err)
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the message does not say %q", want)
				}
			}
		})
	}

	if n := r.metric(`device_plugin_registration_total{resource_name="` + gpu + `"}`); n != 1 {
		t.Errorf("%v registrations are counted, want the one that was accepted", n)
	}
	capacity, allocatable, err := r.Shown(r.ctx, gpu)
	r.must(err)
	if capacity != 2 || allocatable != 2 {
		t.Errorf("the Node shows %d and %d, want 2", capacity, allocatable)
	}
	r.run("a", gpu, 1)
}

// The runtime's own restart is a pause: nothing is lost, and containers start again afterwards.
func TestContainerdRestarts(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 2)
	r.run("a", gpu, 1)
	r.must(r.Containerd.Kill())
	r.until("devmgrd has noticed", func() bool { return r.metric("devmgrd_nri_connected") == 0 })
	r.must(r.Containerd.Start(r.ctx))
	r.must(r.WaitContainerd(r.ctx))
	r.until("devmgrd is connected again", func() bool { return r.metric("devmgrd_nri_connected") == 1 })
	r.run("b", gpu, 1)
	r.must(r.Delete(r.ctx, "a"))
	r.run("c", gpu, 1)
}
