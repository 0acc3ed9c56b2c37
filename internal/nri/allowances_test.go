package nri

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// hang starts checks that never answer, until the test ends.
func hang(t *testing.T, l *hostChecks, sources ...string) {
	t.Helper()
	block := make(chan struct{})
	for _, s := range sources {
		if one, _ := l.join(s, func() (any, error) { <-block; return nil, nil }); one == nil {
			t.Fatal("no check is begun")
		}
	}
	t.Cleanup(func() { close(block) })
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
		hang(t, p.hostChecks.of("ns"), "device /hung/gpu")
		time.Sleep(hangs + time.Millisecond)
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

// A host path answers each time, but later than a hook has time once its namespace has spent its allowance. The next try has the answer.
func TestAllowance_PathIsSlowEachTime_NextTryHasTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newPlugin(t)
		slow := func() (int, error) { time.Sleep(700 * time.Millisecond); return 1, nil }
		try := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), leastPatience)
			defer cancel()
			_, err := checkHost(ctx, p.hostChecks.of("ns"), mountSource, "/slow", slow)
			return err
		}
		if try() == nil {
			t.Error("it has answered early")
		}
		time.Sleep(10 * time.Second)
		if err := try(); err != nil {
			t.Error(err)
		}
		if try() == nil {
			t.Error("an answer counts twice")
		}
		time.Sleep(time.Minute)
		if try() == nil {
			t.Error("an answer counts after a minute")
		}
		time.Sleep(time.Second) // the last check ends
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

// The sources of one namespace that do not answer leave room for others'.
func TestHostChecks_ManyOfANamespaceHang_OthersAreMade(t *testing.T) {
	t.Parallel()
	p, w := newPlugin(t)
	var sources []string
	for i := range maxHostChecks / (ownShare + 1) {
		sources = append(sources, fmt.Sprint("device /hung/", i))
	}
	hang(t, p.hostChecks.of("evil"), sources...)
	if one, others := p.hostChecks.of("evil").join("device /hung/more", nil); one != nil || others != len(sources) {
		t.Errorf("another one is checked; %d others hang", others)
	}
	w.set(granted(device.Grant{Nodes: []device.Node{{HostPath: "/dev/null", ContainerPath: "/dev/x", Permissions: "rw"}}}))
	if _, _, err := p.CreateContainer(context.Background(), sandbox(), container()); err != nil {
		t.Error(err)
	}
}

// Sources of many namespaces do not answer. Those of another one are checked.
func TestHostChecks_ManyNamespacesHang_OthersAreMade(t *testing.T) {
	t.Parallel()
	p, _ := newPlugin(t)
	block := make(chan struct{})
	defer close(block)
	for i := range 50 {
		for j := range ownShare {
			p.hostChecks.of(fmt.Sprint("evil", i)).join(fmt.Sprint("device /hung/", i, "/", j), func() (any, error) { <-block; return nil, nil })
		}
	}
	if one, others := p.hostChecks.of("ns").join("device /dev/null", func() (any, error) { <-block; return nil, nil }); one == nil {
		t.Errorf("no source of another namespace is checked; %d hang", others)
	}
}

// The CDI files of a container that could not be created do not answer. Its end holds up the runtime as its creation does.
func TestAllowance_ContainerEnds_HookDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newPlugin(t)
		const name = "a.com/x=1"
		hang(t, p.hostChecks.of("ns"), "files of CDI devices "+name)
		time.Sleep(hangs + time.Millisecond)
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
