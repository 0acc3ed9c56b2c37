package nri

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops/hostchecks/hostcheckstest"
)

func granted(g device.Grant) device.Readiness {
	st := ready()
	st.Assignment.Shares[0].Grant = g
	return st
}

// create asks the hook about a container, with so much time.
func create(p *plugin, w *harness, st device.Readiness, limit time.Duration) error {
	w.set(st)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	_, _, err := p.CreateContainer(ctx, sandbox(), container())
	return err
}

func TestHungFileSystem_CostsItsContainersOnly(t *testing.T) {
	t.Parallel()
	dir := hostcheckstest.HungMount(t)
	p, w := newPlugin(t)
	well := granted(device.Grant{Nodes: []device.Node{{HostPath: "/dev/null", ContainerPath: "/dev/x", Permissions: "rw"}}})
	hung := []device.Readiness{
		granted(device.Grant{Mounts: []device.Mount{{HostPath: dir + "/libs", ContainerPath: "/libs"}}}),
		granted(device.Grant{Nodes: []device.Node{{HostPath: dir + "/gpu", ContainerPath: "/dev/x", Permissions: "rw"}}}),
		granted(device.Grant{Nodes: []device.Node{{HostPath: dir + "/gpu", ContainerPath: "/dev/y", Permissions: "r"}}}),
	}
	for try := range 256 { // the kubelet tries a container each 10 to 15 s: this is an hour
		st := hung[try%len(hung)]
		source := dir + map[int]string{0: "/libs", 1: "/gpu", 2: "/gpu"}[try%len(hung)]
		err := create(p, w, st, 4*time.Millisecond) // stands for the runtime's 2 s
		var no *device.Refusal
		if !errors.As(err, &no) || no.Reason != device.HostDeviceMissing || !strings.Contains(err.Error(), "does not answer about") || !strings.Contains(err.Error(), source) {
			t.Fatalf("%v, want that %s does not answer", err, source)
		}
	}
	if err := create(p, w, well, time.Minute); err != nil {
		t.Errorf("another container, with nothing but /dev/null: %v", err)
	}
	if w.claims != 1 {
		t.Errorf("%d containers count as living, want 1", w.claims)
	}
}
