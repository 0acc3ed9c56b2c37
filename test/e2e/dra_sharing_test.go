//go:build e2e

package e2e

import (
	"os"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// Pods that use one claim have its device together, whatever dies. It is free when the last of them has ended.
func TestDRA_ClaimOfSeveralPods_AllHaveItsDevice(t *testing.T) {
	r := start(t, "--set", "dra.resources="+gpu)
	r.class(gpu)
	p := r.offered(gpu, 2)
	r.claim("shared", "vendor.example-gpu", 1)
	r.claim("own", "vendor.example-gpu", 1)
	join := func(name string) string {
		t.Helper()
		r.must(r.Create(r.ctx, claiming(name, "shared")))
		return r.exact(name)["main"][0]
	}
	has := join("first")
	if other := join("stubborn"); other != has {
		t.Errorf("the pods have %s and %s", has, other)
	}
	if other := join("second"); other != has || p.Calls(plugintest.Allocate) != 1 {
		t.Errorf("the pods have %s and %s after %d calls of Allocate", has, other, p.Calls(plugintest.Allocate))
	}
	r.must(r.Create(r.ctx, claiming("another", "own")))
	if other := r.exact("another")["main"][0]; other == has {
		t.Errorf("pods of two claims have device %s", has)
	}
	r.says("devices", has, "default/first:main and 2 more")
	together := func(pods ...string) {
		t.Helper()
		for _, name := range pods {
			if now := r.exact(name)["main"][0]; now != has {
				t.Errorf("pod %s has %s, the first pod had %s", name, now, has)
			}
		}
	}

	r.killed()
	together("first", "second")
	r.must(r.Kubelet.Kill())
	r.must(r.Kubelet.Start(r.ctx))
	r.must(r.WaitNodeReady(r.soon()))
	join("third")
	together("first", "second", "third")

	r.must(r.Devmgrd.Kill())
	r.must(os.Remove(stateFile))
	r.must(r.StartDevmgrd(r.soon()))
	p.MustRegister() // no record of it is left
	r.until("the slices show all devices", func() bool { return len(r.sliced()) == 2 })
	join("fourth")
	together("first", "second", "third", "fourth")
	if n := p.Calls(plugintest.Allocate); n > 4 {
		t.Errorf("Allocate was called %d times", n)
	}

	// The pods end one after the other, one of them by force while its processes cannot be killed.
	thaw := freeze(t, processWith(t, "HOSTNAME=stubborn"))
	now := int64(0)
	r.must(r.Client().CoreV1().Pods(metav1.NamespaceDefault).Delete(r.ctx, "stubborn", metav1.DeleteOptions{GracePeriodSeconds: &now}))
	for _, name := range []string{"first", "third", "fourth"} {
		r.must(r.Delete(r.ctx, name))
		together("second")
	}
	join("fifth")
	together("second", "fifth")
	for _, name := range []string{"second", "fifth", "another"} {
		r.must(r.Delete(r.ctx, name))
	}
	r.must(r.Create(r.ctx, node.Pod("all", gpu, 2, "report", "--then-sleep")))
	r.until("the last pod waits", func() bool { return r.metric(`devmgrd_pods_waiting{reason="DeviceInUse"}`) == 1 })
	thaw()
	r.running("all")
	if all := slices.Sorted(slices.Values(r.exact("all")["main"])); len(all) != 2 {
		t.Errorf("the last pod has %v", all)
	}
	r.states(0, 2, 0)
}
