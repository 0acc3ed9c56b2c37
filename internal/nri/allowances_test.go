package nri

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// hang starts a check of a namespace that never answers, until the test ends, and waits until it is known to hang.
func hang(t *testing.T, p *plugin, namespace, what, source string) {
	t.Helper()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	block := make(chan struct{})
	t.Cleanup(func() { close(block) })
	_, err := checkHost(over, p.hostChecks.ForHook(namespace), what, source, func() (int, error) { <-block; return 0, nil })
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
}

// holdUp has containers of a namespace created one after the other, and returns how long the runtime created no other.
func holdUp(p *plugin, namespace string, n int) time.Duration {
	began := time.Now()
	for range n {
		s := sandbox()
		s.Namespace = namespace
		_, _, _ = p.CreateContainer(context.Background(), s, container())
	}
	return time.Since(began)
}

// A container whose device node's file system has not answered for a while is refused at once, however often it is tried.
func TestAllowance_SourceIsKnownToHang_HookDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, w := newPlugin(t)
		hang(t, p, "ns", "device", "/hung/gpu")
		w.set(granted(device.Grant{Nodes: []device.Node{{HostPath: "/hung/gpu", ContainerPath: "/dev/x", Permissions: "rw"}}}))
		if took := holdUp(p, "ns", 5); took > 0 {
			t.Errorf("5 attempts took %v", took)
		}
	})
}

// A namespace's containers hold up the runtime for a second, and for a twentieth of the time after that; those of others wait as before.
func TestAllowance_AllocationInFlight_NamespaceWaitsForItsShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, w := newPlugin(t)
		w.set(busy(make(chan struct{})))
		if took := holdUp(p, "ns", 100); took > patienceBurst+p.MaxWait {
			t.Errorf("100 containers took %v", took)
		}
		if took := holdUp(p, "other", 1); took != p.MaxWait {
			t.Errorf("one of another namespace took %v", took)
		}
		time.Sleep(time.Minute)
		if took := holdUp(p, "ns", 1); took != p.MaxWait {
			t.Errorf("a minute later it took %v", took)
		}
		time.Sleep(time.Minute)
		p.allowances.spend("third", time.Second)
		if len(p.allowances.of) != 1 {
			t.Errorf("%d namespaces are remembered", len(p.allowances.of))
		}
	})
}

// The containers of many namespaces hold up the runtime for four seconds, and for a fifth of the time after that.
func TestAllowance_AllocationsInFlightInManyNamespaces_HaveALimitInSum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, w := newPlugin(t)
		w.set(busy(make(chan struct{})))
		var took time.Duration
		for i := range 100 {
			took += holdUp(p, fmt.Sprint("ns", i), 10)
		}
		if most := (sumBurst + p.MaxWait) * sumShare / (sumShare - 1); took > most {
			t.Errorf("1000 containers took %v, at most %v expected", took, most)
		}
	})
}

// A namespace's containers whose hooks take long, and get their answers, start: however many there are.
func TestAllowance_HooksGetTheirAnswers_CostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, w := newPlugin(t)
		st := busy(nil)
		for range 100 {
			done := make(chan struct{})
			st.Done = done
			w.set(st)
			time.AfterFunc(p.MaxWait-time.Millisecond, func() {
				w.set(ready())
				close(done)
			})
			if _, _, err := p.CreateContainer(context.Background(), sandbox(), container()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// The CDI files of a container that could not be created do not answer. Its end holds up the runtime as its creation does.
func TestAllowance_ContainerEnds_HookDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newPlugin(t)
		const name = "a.com/x=1"
		hang(t, p, "ns", "files of CDI devices", name)
		began := time.Now()
		for range 5 {
			p.attempts.given(main, "c", []string{name})
			if _, err := p.StopContainer(context.Background(), sandbox(), container()); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("5 ends took %v", took)
		}
	})
}
