//go:build e2e

package e2e

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	corev1 "k8s.io/api/core/v1"

	"github.com/devmgrd/devmgrd/test/node"
)

// A concealer is an NRI plugin that fails at the end of each container. NRI then hides the end from the plugins after it.
type concealer struct{}

func (concealer) StopContainer(context.Context, *api.PodSandbox, *api.Container) ([]*api.ContainerUpdate, error) {
	return nil, errors.New("not today")
}

func (concealer) RemoveContainer(context.Context, *api.PodSandbox, *api.Container) error {
	return errors.New("not today")
}

// The ends of containers are hidden from devmgrd. The end of their sandbox releases their devices.
func TestContainerEnd_HiddenByAnotherNRIPlugin_ReleasesDevices(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 1)
	s, err := stub.New(concealer{}, stub.WithPluginName("concealer"), stub.WithPluginIdx("00"), stub.WithSocketPath(r.NRISocket()), stub.WithOnClose(func() {}))
	r.must(err)
	r.must(s.Start(r.ctx))
	t.Cleanup(s.Stop)

	held := r.run("a", gpu, 1).Env["DEVICES"]
	r.must(r.Delete(r.ctx, "a"))
	if got := r.run("b", gpu, 1).Env["DEVICES"]; got != held {
		t.Errorf("pod b has %q, want %q", got, held)
	}
	log, err := os.ReadFile(r.Devmgrd.LogPath())
	r.must(err)
	if !strings.Contains(string(log), "end of a container was not reported") {
		t.Error("the other plugin has hidden nothing")
	}
}

// Another NRI plugin sets a variable that devmgrd sets too, so NRI rejects the container. The pod's events name the other
// plugin and, from devmgrd, the cause. The container starts as soon as the other plugin leaves.
func TestContainer_VariableSetByAnotherNRIPlugin_EventsNameIt(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 2)
	for name, index := range map[string]string{"before": "04", "after": "10"} {
		leave := r.meddle(index, &meddler{change: func(*api.Container) *api.ContainerAdjustment {
			a := &api.ContainerAdjustment{}
			a.AddEnv("DEVICES", "another plugin's")
			return a
		}})
		r.must(r.Create(r.ctx, node.Pod(name, gpu, 1, "report", "--then-sleep")))
		r.told(name, index+"-meddler")
		r.until("devmgrd reports the cause", func() bool {
			r.nudge(name)
			events := r.Events(r.ctx, name)
			return strings.Contains(events, "ContainerNotStarted") && strings.Contains(events, "another NRI plugin refuses it, or sets the same variable")
		})
		t.Logf("index %s:\n%s", index, r.Events(r.ctx, name))
		leave()
		r.nudge(name)
		if got := r.running(name).Env["DEVICES"]; !strings.HasPrefix(got, "dev-") {
			t.Errorf("pod %s has %q", name, got)
		}
	}
	_, err := r.WaitPhase(r.ctx, "before", corev1.PodRunning)
	r.must(err)
}
