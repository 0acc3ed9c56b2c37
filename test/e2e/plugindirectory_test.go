//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/test/node"
)

// ownDir is where a plugin pod's own directories are.
func ownDir(pod *corev1.Pod) string { return filepath.Join("/run/devmgrd/plugins", string(pod.UID)) }

// sources returns where the mounts of a pod's container come from, by destination.
func (r *harness) sources(pod *corev1.Pod) map[string]string {
	r.t.Helper()
	container, err := r.Containers.Container(r.ctx, node.ContainerID(pod))
	r.must(err)
	from := map[string]string{}
	for _, m := range container.Spec["mounts"].([]any) {
		from[m.(map[string]any)["destination"].(string)] = m.(map[string]any)["source"].(string)
	}
	return from
}

// pluginPod returns what devmgrd plugins says of the pod of a resource's plugin.
func (r *harness) pluginPod(resource string) (pod struct{ Namespace, Name, UID, ServiceAccount string }) {
	r.t.Helper()
	var answer struct {
		Plugins []struct {
			ResourceName string
			Pod          struct{ Namespace, Name, UID, ServiceAccount string }
		}
	}
	r.must(json.Unmarshal([]byte(r.says("plugins -o json")), &answer))
	for _, p := range answer.Plugins {
		if p.ResourceName == resource {
			return p.Pod
		}
	}
	r.t.Fatalf("devmgrd plugins does not know %s", resource)
	return
}

// neighbour is a pod that mounts the kubelet's plugin directory, as a plugin does, and opens files there.
func neighbour(name string, readOnly bool, open ...string) *corev1.Pod {
	args := []string{"report"}
	for _, file := range open {
		args = append(args, "--open", "/plugins/"+file)
	}
	p := node.Pod(name, "", 0, append(args, "--then-sleep")...)
	p.Spec.Volumes = []corev1.Volume{{Name: "plugins", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib/kubelet/device-plugins"}}}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "plugins", MountPath: "/plugins", ReadOnly: readOnly}}
	return p
}

// A plugin pod has a directory of its own for as long as it lives: its plugin is known by it, through restarts of the container and
// of devmgrd, and neighbours do not see its socket.
func TestPluginPod_OwnDirectory(t *testing.T) {
	r := start(t)
	r.samplePlugin()
	plugin := r.samplePod(nil)
	own := ownDir(plugin)
	var socket string // the plugin's own

	t.Run("the plugin is known by it", func(t *testing.T) {
		r := r.in(t)
		if from := r.sources(plugin)["/var/lib/kubelet/device-plugins"]; from != own+"/device-plugins" {
			t.Errorf("its directory is %s, want %s", from, own)
		}
		got := r.pluginPod(node.SampleResource)
		if got.Namespace != plugin.Namespace || got.Name != plugin.Name || got.UID != string(plugin.UID) || got.ServiceAccount != plugin.Spec.ServiceAccountName {
			t.Errorf("its pod is %+v", got)
		}
		if out := r.says("plugins"); !strings.Contains(out, plugin.Namespace+"/"+plugin.Name) {
			t.Errorf("devmgrd plugins does not show it:\n%s", out)
		}
		series := fmt.Sprintf("devmgrd_plugin_info{namespace=%q,pod=%q,resource_name=%q,service_account=%q}", plugin.Namespace, plugin.Name, node.SampleResource, plugin.Spec.ServiceAccountName)
		if n := r.metric(series); n != 1 {
			t.Errorf("%s is %v", series, n)
		}
		var names []string
		entries, err := os.ReadDir(own + "/device-plugins")
		r.must(err)
		for _, e := range entries {
			switch name := e.Name(); name {
			case "kubelet.sock", checkpoint.Name:
			default:
				names, socket = append(names, name), name
			}
		}
		if len(names) != 1 {
			t.Errorf("its directory has %q, want its socket", names)
		}
	})

	t.Run("neighbours do not see its socket", func(t *testing.T) {
		r := r.in(t)
		for name, readOnly := range map[string]bool{"writer": false, "reader": true} {
			r.must(r.Create(r.ctx, neighbour(name, readOnly, socket, "kubelet.sock")))
			for _, o := range r.running(name).Opened {
				if gone := strings.Contains(o.Error, "no such file"); gone != (o.Path != "/plugins/kubelet.sock") {
					t.Errorf("%s opens %s: %s", name, o.Path, o.Error)
				}
			}
			pod, err := r.WaitPhase(r.ctx, name, corev1.PodRunning)
			r.must(err)
			want := ownDir(pod) + "/device-plugins"
			if readOnly {
				want = node.SocketDir
			}
			if from := r.sources(pod)["/plugins"]; from != want {
				t.Errorf("%s has %s, want %s", name, from, want)
			}
		}
		writer, err := r.WaitPhase(r.ctx, "writer", corev1.PodRunning)
		r.must(err)
		r.must(r.Delete(r.ctx, "writer"))
		r.must(r.Delete(r.ctx, "reader"))
		r.until("the neighbour's directory is removed", func() bool { _, err := os.Stat(ownDir(writer)); return os.IsNotExist(err) })
	})

	shows := r.watchNumbers(node.SampleResource)
	up := fmt.Sprintf("devmgrd_plugin_up{resource_name=%q}", node.SampleResource)
	t.Run("its container restarts in it", func(t *testing.T) {
		r := r.in(t)
		r.must(r.Containers.Kill(r.ctx, node.ContainerID(plugin)))
		plugin = r.samplePod(plugin)
		r.until("it serves again", func() bool { return r.metric(up) == 1 })
		if from := r.sources(plugin)["/var/lib/kubelet/device-plugins"]; from != own+"/device-plugins" {
			t.Errorf("its directory is %s, want %s", from, own)
		}
	})

	t.Run("devmgrd finds it again", func(t *testing.T) {
		r := r.in(t)
		r.must(r.Devmgrd.Kill())
		r.must(r.StartDevmgrd(r.soon()))
		r.until("it serves again", func() bool { return r.metric(up) == 1 })
		if got := r.pluginPod(node.SampleResource); got.UID != string(plugin.UID) {
			t.Errorf("its pod is %+v", got)
		}
		if got := sampleDevice(r.run("a", node.SampleResource, 1)); !strings.HasPrefix(got, "Dev-") {
			t.Errorf("a pod has %q, want one of its devices", got)
		}
	})

	t.Run("its successor has another one", func(t *testing.T) {
		r := r.in(t)
		r.deleteSamplePlugin(plugin.Namespace)
		next := r.samplePod(plugin)
		r.until("the successor serves", func() bool {
			return r.metric(up) == 1 && r.pluginPod(node.SampleResource).UID == string(next.UID)
		})
		r.until("the former one's directory is removed", func() bool { _, err := os.Stat(own); return os.IsNotExist(err) })
	})
	if all := shows(); slices.ContainsFunc(all, func(n int64) bool { return n != 2 }) {
		t.Errorf("the Node showed %v meanwhile, want 2 all the time", all)
	}
}
