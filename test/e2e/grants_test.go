//go:build e2e

package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// grantsNodes answers Allocate with a device node for each device, /run/vendor/<ID>, and names them.
func grantsNodes(_ context.Context, request *plugintest.AllocateRequest) (*plugintest.AllocateResponse, error) {
	answer := &plugintest.Answer{Envs: map[string]string{"DEVICES": request.ContainerRequests[0].DevicesIds[0]}}
	for _, id := range request.ContainerRequests[0].DevicesIds {
		answer.Devices = append(answer.Devices, &pluginapi.DeviceSpec{ContainerPath: "/dev/" + id, HostPath: filepath.Join("/run/vendor", id), Permissions: "rw"})
	}
	return &plugintest.AllocateResponse{ContainerResponses: []*plugintest.Answer{answer}}, nil
}

// A device's node vanishes from the host when it has been allocated. A pod that has never run gets another device.
func TestDevice_GoneBeforeTheFirstStart_PodGetsAnother(t *testing.T) {
	r := start(t)
	dies := makeNode(t, "dev-000000", 0o666, 1, 3)
	makeNode(t, "dev-000001", 0o666, 1, 5)
	var once sync.Once
	r.plugin(gpu, 2, func(p *plugintest.Plugin) {
		p.OnAllocate = func(ctx context.Context, request *plugintest.AllocateRequest) (*plugintest.AllocateResponse, error) {
			var err error
			once.Do(func() { err = os.Remove(dies) })
			if err != nil {
				return nil, err
			}
			return grantsNodes(ctx, request)
		}
	})
	got := r.run("a", gpu, 1)
	if d, _ := got.Device("/dev/dev-000001"); got.Env["DEVICES"] != "dev-000001" || d.Type != "c" {
		t.Errorf("the pod has %q, %+v", got.Env["DEVICES"], got.Devices)
	}
	r.states(1, 1, 0)
}

// A device's node vanishes while its container is restarted. A pod that has run keeps its device: it waits, and the plugin
// is asked for the same device again once the node is back.
func TestDevice_GoneAfterAStart_PodGetsItAgain(t *testing.T) {
	r := start(t)
	makeNode(t, "dev-000000", 0o666, 1, 3)
	makeNode(t, "dev-000001", 0o666, 1, 5)
	p := r.plugin(gpu, 2, func(p *plugintest.Plugin) { p.OnAllocate = grantsNodes })
	had := r.stays("a", 1)
	r.must(os.Remove(filepath.Join("/run/vendor", had)))
	ids, err := r.RunningContainers(r.ctx, "main")
	r.must(err)
	r.must(r.Containers.Kill(r.ctx, ids[0]))
	r.refused("a", "HostDeviceMissing")
	r.states(1, 1, 0)
	calls := p.Calls(plugintest.Allocate)
	makeNode(t, had, 0o666, 1, 3)
	r.until("the container runs again", func() bool {
		r.nudge("a")
		ids, err := r.RunningContainers(r.ctx, "main")
		return err == nil && len(ids) == 1
	})
	if got := r.running("a"); got.Env["DEVICES"] != had {
		t.Errorf("the pod had %q and has %q", had, got.Env["DEVICES"])
	}
	var asked [][]string
	for _, request := range p.Requests() {
		if request.Method == plugintest.Allocate {
			asked = append(asked, request.IDs)
		}
	}
	if len(asked) < 2 || slices.ContainsFunc(asked, func(ids []string) bool { return !slices.Equal(ids, []string{had}) }) {
		t.Errorf("Allocate was called for %v, %d times before the node was back; want more than once, for %s alone", asked, calls, had)
	}
}

// failsPreStart has PreStartContainer fail for a device.
func failsPreStart(p *plugintest.Plugin, id string) {
	p.Before(plugintest.PreStart, func(context.Context) error {
		var last []string
		for _, r := range p.Requests() {
			if r.Method == plugintest.PreStart {
				last = r.IDs
			}
		}
		if slices.Contains(last, id) {
			return errors.New("the device does not answer")
		}
		return nil
	})
}

// PreStartContainer fails for a device. A pod that has never run gets another device, and a pod that has run gets its own
// device again when the call succeeds.
func TestDevice_PreStartFails_OnlyANewPodGetsAnother(t *testing.T) {
	r := start(t)
	p := r.plugin(gpu, 3, func(p *plugintest.Plugin) { p.Options = &plugintest.Options{PreStartRequired: true} })
	had := r.stays("a", 1)

	failsPreStart(p, "dev-000001")
	if got := r.run("b", gpu, 1).Env["DEVICES"]; got != "dev-000002" {
		t.Errorf("the new pod has %q, want dev-000002", got)
	}

	failsPreStart(p, had)
	pod, err := r.WaitPhase(r.ctx, "a", "Running")
	r.must(err)
	r.must(r.Containers.Kill(r.ctx, node.ContainerID(pod)))
	r.refused("a", "PreStartFailed")
	p.Before(plugintest.PreStart, nil)
	r.until("the container runs again", func() bool {
		r.nudge("a")
		ids, err := r.RunningContainers(r.ctx, "main")
		return err == nil && len(ids) == 2
	})
	if got := r.running("a").Env["DEVICES"]; got != had {
		t.Errorf("the pod had %q and has %q", had, got)
	}
}

// Within a boot, too, what a plugin has granted may go: its driver is loaded again, or its files are removed. The container
// waits with the reason until the plugin has granted it again, and explain tells it.
func TestGrant_GoneBetweenTwoStarts_IsGrantedAgain(t *testing.T) {
	r := start(t)
	path := "/run/vendor/again"
	r.must(os.MkdirAll(filepath.Dir(path), 0o755))
	var broken atomic.Bool
	p := r.plugin(gpu, 1, func(p *plugintest.Plugin) {
		p.OnAllocate = func(ctx context.Context, request *plugintest.AllocateRequest) (*plugintest.AllocateResponse, error) {
			if !broken.Load() {
				// Where a mount's source is missing, devmgrd makes a directory, if the kubelet tries again before the test goes on.
				if err := errors.Join(os.RemoveAll(path), os.WriteFile(path, nil, 0o644)); err != nil {
					return nil, err
				}
			}
			return plugintest.Grants(&plugintest.Answer{Mounts: []*pluginapi.Mount{{ContainerPath: "/file", HostPath: path}},
				Devices: []*pluginapi.DeviceSpec{{HostPath: path + "-node", ContainerPath: "/dev/x", Permissions: "r"}}})(ctx, request)
		}
	})
	special := makeNode(t, "again-node", 0o666, 1, 3)
	r.restarting("a", gpu)
	r.running("a")
	pod, err := r.Client().CoreV1().Pods("default").Get(r.ctx, "a", metav1.GetOptions{})
	r.must(err)
	broken.Store(true)
	r.must(os.Remove(path))
	r.must(os.Remove(special))
	r.must(r.Containers.Kill(r.ctx, node.ContainerID(pod)))
	r.refused("a", "HostDeviceMissing")
	r.told("a", "WaitingForDevices: HostDeviceMissing")
	r.until("it waits", func() bool { return r.metric(`devmgrd_pods_waiting{reason="HostDeviceMissing"}`) == 1 })
	r.says("explain default/a", "waiting", "HostDeviceMissing")
	r.says("status", "default/a", "HostDeviceMissing")
	r.until("the plugin is asked again", func() bool { return p.Calls(plugintest.Allocate) > 1 })
	broken.Store(false)
	makeNode(t, "again-node", 0o666, 1, 3)
	r.runsAgain("a")
}
