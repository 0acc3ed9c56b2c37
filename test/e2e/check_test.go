//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/devmgrd/devmgrd/test/plugintest"
)

// A remark is what devmgrd check has to say of something that is not ok.
type remark struct{ Verdict, Check, Text, Remedy string }

// check returns the remarks, and looks that the exit status fits.
func (r *harness) check(args ...string) (all []remark) {
	r.t.Helper()
	out, stderr, status := r.devmgrd(append([]string{"check", "-o", "json"}, args...)...)
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		r.t.Fatalf("devmgrd check: %v: %s%s", err, out, stderr)
	}
	fails := slices.ContainsFunc(all, func(one remark) bool { return one.Verdict == "FAIL" })
	if fails != (status == 1) || !fails && status != 0 || fails != strings.Contains(stderr, "this node is not ready for devmgrd") {
		r.t.Errorf("status %d and %q, with %+v", status, stderr, all)
	}
	return slices.DeleteFunc(all, func(one remark) bool {
		// Whether a kubelet that serves a resource too writes its number often enough to be called a rival is a matter of moments.
		return one.Verdict == "ok" || strings.Contains(one.Text, "another writer keeps changing")
	})
}

// remarks waits until exactly these are made, each as its verdict, check and words of its text.
func (r *harness) remarks(what string, want ...[3]string) {
	r.t.Helper()
	r.remarksWith(nil, what, want...)
}

// remarksWith is remarks for a check with these arguments.
func (r *harness) remarksWith(args []string, what string, want ...[3]string) {
	r.t.Helper()
	var all []remark
	if !r.comes(func() bool {
		all = r.check(args...)
		return slices.EqualFunc(all, want, func(one remark, w [3]string) bool {
			return one.Verdict == w[0] && one.Check == w[1] && strings.Contains(one.Text, w[2]) && one.Remedy != ""
		})
	}) {
		r.t.Fatalf("%s: got %+v, want %q", what, all, want)
	}
}

// configureContainerd has containerd start with more configuration, the last to be read.
func (r *harness) configureContainerd(text string) {
	r.t.Helper()
	r.must(os.WriteFile("/etc/containerd/conf.d/zz.toml", []byte("version = 3\n"+text), 0o644))
	r.must(r.Runtime.Kill())
	r.must(r.Runtime.Start(r.ctx))
	r.must(r.WaitRuntime(r.ctx))
}

// Each thing that keeps devmgrd from its work on a real node, and what check says of it.
func TestCheck_EachObstacle_HasARemedy(t *testing.T) {
	const nriTable = "[plugins.'io.containerd.nri.v1.nri']\n"
	r := start(t)
	r.remarks("at the start")
	r.must(r.Devmgrd.Stop(stopLimit))
	t.Cleanup(func() { (&harness{r.Node, t, context.Background(), false}).devmgrdIsBack() }) // the test's own context is over
	r.remarks("without devmgrd")

	kubelet := plugintest.New(t, "/var/lib/kubelet/device-plugins", gpu, plugintest.Devices(2)...)
	kubelet.Serve()
	kubelet.MustRegister()
	r.remarks("with the kubelet", [3]string{"warn", "plugins", gpu + " (2 devices) is registered with the kubelet, and not with devmgrd"},
		[3]string{"warn", "checkpoint", "names " + gpu + ", which the kubelet serves"})
	r.must(r.StartDevmgrd(r.ctx))
	p := r.plugin(gpu, 2)
	r.remarks("with both", [3]string{"FAIL", "plugins", "devices may be assigned twice"}, [3]string{"FAIL", "checkpoint", gpu})
	kubelet.Stop()
	r.remarks("left in the kubelet's file", [3]string{"FAIL", "checkpoint", "fails pods that request them"})
	p.Stop()
	r.must(r.Kubelet.Kill())
	r.must(os.Remove("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"))
	r.remarks("without the kubelet", [3]string{"warn", "plugins", "the kubelet does not list its devices"})
	r.must(r.Kubelet.Start(r.ctx))
	r.remarks("as new")

	// The kubelet's PodResources leaves out devices with an empty topology; its file has them.
	usb := plugintest.Dev("usb", plugintest.Healthy)
	usb.Topology = &pluginapi.TopologyInfo{}
	nowhere := plugintest.New(t, "/var/lib/kubelet/device-plugins", "vendor.example/usb", usb)
	nowhere.Serve()
	r.until("the kubelet registers plugins", func() bool {
		if _, err := os.Lstat(nowhere.Socket()); err != nil { // the kubelet removes all sockets when it starts
			nowhere.Stop()
			nowhere.Serve()
		}
		return nowhere.Register() == nil
	})
	r.remarks("an empty topology", [3]string{"warn", "plugins", "vendor.example/usb (1 devices) is registered with the kubelet, and not with devmgrd"},
		[3]string{"warn", "checkpoint", "names vendor.example/usb, which the kubelet serves"})
	nowhere.Stop()
	r.remarks("its plugin has gone", [3]string{"FAIL", "checkpoint", "names vendor.example/usb"})
	r.must(r.Kubelet.Kill())
	r.must(os.Remove("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"))
	r.must(r.Kubelet.Start(r.ctx))
	r.remarks("as new again")

	noRights := r.withoutRights()
	r.remarksWith([]string{"--set", "kubernetes.kubeconfig=" + noRights}, "without rights",
		[3]string{"FAIL", "permissions", "devmgrd may not list nodes"}, [3]string{"FAIL", "permissions", "watch nodes"}, [3]string{"FAIL", "permissions", "list pods"},
		[3]string{"FAIL", "permissions", "watch pods"}, [3]string{"warn", "permissions", "create events"}, [3]string{"warn", "permissions", "patch events"},
		[3]string{"warn", "permissions", "create pods/eviction"})
	r.must(r.APIServer.Kill())
	r.remarks("without the API server", [3]string{"FAIL", "daemon", ""}, [3]string{"FAIL", "daemon", ""}, [3]string{"FAIL", "api server", "connection refused"})
	r.must(r.APIServer.Start(r.ctx))
	r.must(r.Devmgrd.Stop(stopLimit))
	r.must(r.WaitAPIServer(r.ctx))

	r.configureContainerd(nriTable + "plugin_request_timeout = '500ms'\n")
	r.remarks("a short time for the hook", [3]string{"FAIL", "nri timeout", "the runtime waits 500ms"})
	r.configureContainerd(nriTable + "plugin_request_timeout = '2s'\n")
	r.remarks("the runtime's own time for the hook", [3]string{"warn", "nri timeout", "it may drop a healthy devmgrd"})
	r.configureContainerd(nriTable + "[plugins.'io.containerd.nri.v1.nri'.default_validator]\nenable = false\n")
	r.remarks("no validator", [3]string{"warn", "validator", "start without their devices"})
	r.configureContainerd(nriTable + "[plugins.'io.containerd.nri.v1.nri'.default_validator]\nrequired_plugins = ['devmgrd']\n")
	r.remarks("a validator for all pods", [3]string{"warn", "validator", "while devmgrd is away no container starts"})
	r.configureContainerd("[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\nSystemdCgroup = true\n")
	r.remarks("another cgroup driver", [3]string{"warn", "cgroups", "the kubelet's file says cgroup driver cgroupfs, the runtime systemd"})
	r.configureContainerd(nriTable + "disable_connections = true\n")
	r.remarks("no connections", [3]string{"FAIL", "nri", "disables NRI connections"})
	r.configureContainerd(nriTable + "disable = true\n")
	r.remarks("NRI is off", [3]string{"FAIL", "nri", "NRI is off in containerd's configuration (/etc/containerd/config.toml)"})
	r.remarksWith([]string{"--set", "nri.socket=/run/other.sock"}, "NRI is off, and its socket is another one", [3]string{"FAIL", "nri", "NRI is off"})
	r.must(os.WriteFile("/etc/containerd/conf.d/zz.toml", []byte("version = 3\n"+nriTable+"plugin_request_timeout = '20s'\n"), 0o644)) // not in force
	r.remarks("a file that is not in force", [3]string{"FAIL", "nri", "the runtime has NRI off"})
	r.must(r.Runtime.Kill())
	r.remarks("without the runtime", [3]string{"FAIL", "runtime", "no container runtime answers"}, [3]string{"FAIL", "nri", "no process listens"})
	r.configureContainerd("")
	r.remarks("at the end")
}

// withoutRights writes the kubeconfig of an account without any rights, and returns its path.
func (r *harness) withoutRights() string {
	r.t.Helper()
	accounts := r.Client().CoreV1().ServiceAccounts(metav1.NamespaceDefault)
	_, err := accounts.Create(r.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "no-rights"}}, metav1.CreateOptions{})
	r.must(err)
	token, err := accounts.CreateToken(r.ctx, "no-rights", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	r.must(err)
	server := r.RESTConfig()
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: server.Host, CertificateAuthority: server.CAFile, CertificateAuthorityData: server.CAData}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	path := r.t.TempDir() + "/kubeconfig"
	r.must(clientcmd.WriteToFile(*config, path))
	return path
}

// devmgrdIsBack starts devmgrd if it does not run, for what is looked at after each test.
func (r *harness) devmgrdIsBack() {
	if !r.Devmgrd.Running() {
		r.must(r.StartDevmgrd(r.ctx))
	}
}
