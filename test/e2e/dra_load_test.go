//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/dra"
	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// random returns a pod with containers of all kinds that request devices or use a claim, alone or shared, and how many devices it has at
// most. If claimed is not 0 the pod needs a claim for so many devices, named after it.
func random(dice *rand.Rand, name string) (p *corev1.Pod, claimed, most int) {
	p = node.Pod(name, "", 0)
	p.Spec.Containers = nil
	claim := claimOf(name)
	if dice.IntN(2) == 0 {
		claimed = 1 + dice.IntN(2)
		most = claimed
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "mine", ResourceClaimName: &claim}}
	}
	container := func(name string, args ...string) corev1.Container {
		count := dice.IntN(2)
		most += count
		c := asks(name, count, args...)
		if claimed > 0 && dice.IntN(3) > 0 {
			c.Resources.Claims = []corev1.ResourceClaim{{Name: "mine"}}
		}
		return c
	}
	if dice.IntN(3) == 0 {
		p.Spec.InitContainers = append(p.Spec.InitContainers, container("first", "report"))
	}
	if dice.IntN(3) == 0 {
		always, c := corev1.ContainerRestartPolicyAlways, container("sidecar", "report", "--then-sleep")
		c.RestartPolicy = &always
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
	for i := range 1 + dice.IntN(2) {
		p.Spec.Containers = append(p.Spec.Containers, container(fmt.Sprint("main-", i), "report", "--then-sleep"))
	}
	if claimed > 0 { // a claim that no container uses is not prepared
		p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "mine"}}
	}
	return p, claimed, most
}

// claimOf is the name of the claim of a random pod.
func claimOf(pod string) string { return "of-" + pod }

// A pool is a number of devices, of which the running pods of a test have some.
type pool struct {
	*harness
	size int
	had  map[string][]string // the devices of each pod's claims
}

// free returns how many devices no pod has.
func (p *pool) free() int {
	n := p.size
	for _, all := range p.had {
		n -= len(all)
	}
	return n
}

// runs waits until the containers of these pods have exactly the devices of their claims, and reports devices that two pods have.
func (p *pool) runs(names ...string) {
	p.t.Helper()
	holder := map[string]string{}
	for name, all := range p.had {
		for _, d := range all {
			holder[d] = name
		}
	}
	for _, name := range names {
		p.exact(name)
		pod := asked(p.harness, func() (*corev1.Pod, error) {
			return p.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(p.ctx, name, metav1.GetOptions{})
		})
		p.had[name] = nil
		for _, c := range pod.Spec.ResourceClaims {
			p.had[name] = append(p.had[name], p.chosen(pod, *c.ResourceClaimName, "")...)
		}
		if status := pod.Status.ExtendedResourceClaimStatus; status != nil {
			p.had[name] = append(p.had[name], p.chosen(pod, status.ResourceClaimName, "")...)
		}
		for _, d := range p.had[name] {
			if other := holder[d]; other != "" {
				p.t.Errorf("pods %s and %s have device %s", other, name, d)
			}
			holder[d] = name
		}
	}
}

// ends deletes a pod, sometimes by force.
func (p *pool) ends(dice *rand.Rand, name string) {
	p.t.Helper()
	options := metav1.DeleteOptions{}
	if dice.IntN(4) == 0 {
		options.GracePeriodSeconds = new(int64(0))
	}
	p.must(p.Client().CoreV1().Pods(metav1.NamespaceDefault).Delete(p.ctx, name, options))
	delete(p.had, name)
}

// Pods that request devices, use claims or share one between containers have exactly the devices of their claims, and no two pods have one.
// Each pod for which there are enough devices runs: at the end of each round one that requests all that are left.
func TestDRA_ManyPods_HaveExactlyTheDevicesOfTheirClaims(t *testing.T) {
	pods, seed := times(t, "E2E_PODS", 40), times(t, "E2E_SEED", int(time.Now().UnixNano()>>10&0xffffff))
	t.Logf("%d pods, E2E_SEED=%d", pods, seed)
	dice := rand.New(rand.NewPCG(uint64(seed), 0))
	r := start(t, "--set", "dra.resources="+gpu)
	r.class(gpu)
	p := &pool{r, 24, map[string][]string{}}
	r.offered(gpu, p.size, func(plugin *plugintest.Plugin) {
		all := make([]*plugintest.Device, p.size)
		for i := range all {
			all[i] = plugintest.Dev(fmt.Sprintf("GPU %d", i), plugintest.Healthy, int64(i%2))
		}
		plugin.Set(all...)
	})

	_, err := r.Client().ResourceV1().ResourceClaims(metav1.NamespaceDefault).Create(r.ctx, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "near"},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{{Name: "devices", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: "vendor.example-gpu", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 12,
			}}},
			Constraints: []resourceapi.DeviceConstraint{{MatchAttribute: new(resourceapi.FullyQualifiedName("devmgrd.io/numaNode"))}},
		}},
	}, metav1.CreateOptions{})
	r.must(err)
	r.must(r.Create(r.ctx, claiming("near", "near")))
	near := map[int]int{}
	for _, id := range r.exact("near")["main"] {
		var i int
		if _, err := fmt.Sscanf(id, "GPU %d", &i); err != nil {
			t.Fatal(err)
		}
		near[i%2]++
	}
	if len(near) != 1 {
		t.Errorf("the devices of one claim are on the NUMA nodes %v", near)
	}
	r.removePods()

	for created := 0; created < pods; {
		var names []string
		for left := p.free(); created < pods; {
			name := fmt.Sprint("pod-", created)
			pod, claimed, most := random(dice, name)
			if left -= most; left < 0 {
				break
			}
			if claimed > 0 {
				r.claim(claimOf(name), "vendor.example-gpu", int64(claimed))
			}
			r.must(r.Create(r.ctx, pod))
			names, created = append(names, name), created+1
		}
		p.runs(names...)
		if rest := p.free(); rest > 0 && created < pods {
			name := fmt.Sprint("rest-", created)
			created++
			if dice.IntN(2) == 0 {
				r.must(r.Create(r.ctx, node.Pod(name, gpu, rest, "report", "--then-sleep")))
			} else {
				r.claim(claimOf(name), "vendor.example-gpu", int64(rest))
				r.must(r.Create(r.ctx, claiming(name, claimOf(name))))
			}
			p.runs(name)
			p.ends(dice, name)
		}
		for _, name := range slices.Sorted(maps.Keys(p.had)) {
			if dice.IntN(3) > 0 {
				p.ends(dice, name)
			}
		}
	}
	r.removePods()
	r.until("all devices are free", func() bool { return r.inState(gpu, "free") == float64(p.size) })
	r.run("last", gpu, p.size)
}

// Pods whose processes cannot be killed, as processes in a driver's uninterruptible sleep, are deleted by force, and the scheduler hands their
// devices on at once. Each next pod waits until the processes of the former one have ended: the containers of a device lock one file.
func TestDRA_HoldersDeletedByForce_NextPodsWaitForTheirEnd(t *testing.T) {
	const pods, held = 20, vendor + "/held"
	r := start(t, "--set", "dra.resources="+gpu)
	r.class(gpu)
	r.must(os.MkdirAll(held, 0o755))
	t.Cleanup(func() {
		if err := os.RemoveAll(held); err != nil {
			t.Error(err)
		}
	})
	r.offered(gpu, pods, func(p *plugintest.Plugin) {
		p.OnAllocate = func(_ context.Context, request *plugintest.AllocateRequest) (*plugintest.AllocateResponse, error) {
			answer := &plugintest.AllocateResponse{}
			for _, c := range request.ContainerRequests {
				answer.ContainerResponses = append(answer.ContainerResponses, &plugintest.Answer{
					Envs: map[string]string{"DEVICES": strings.Join(c.DevicesIds, ",")}, Mounts: []*pluginapi.Mount{mount("/held", "held")},
				})
			}
			return answer, nil
		}
	})
	of := func(kind string, i int) string { return fmt.Sprintf("%s-%02d", kind, i) }
	create := func(kind string) {
		for i := range pods {
			r.must(r.Create(r.ctx, node.Pod(of(kind, i), gpu, 1, "hold", "/held")))
		}
	}
	running := func(kind string) {
		for i := range pods {
			_, err := r.WaitPhase(r.soon(), of(kind, i), corev1.PodRunning)
			r.must(err)
		}
	}
	create("former")
	running("former")
	var thaw []func()
	for i := range pods {
		thaw = append(thaw, freeze(t, processWith(t, fmt.Sprintf("DEVICES=dev-%06d", i))))
	}
	api := r.Client().CoreV1().Pods(metav1.NamespaceDefault)
	r.must(api.DeleteCollection(r.ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}, metav1.ListOptions{}))
	create("next")
	r.until("each next pod waits for a device that the scheduler has handed on", func() bool {
		return r.metric(`devmgrd_pods_waiting{reason="DeviceInUse"}`) == pods
	})
	thawed := time.Now()
	for _, thaw := range thaw {
		thaw()
	}
	running("next")
	t.Logf("the next pods run %s after the processes may end", time.Since(thawed).Round(time.Millisecond))
	for i := range pods { // none has ended
		p := asked(r, func() (*corev1.Pod, error) { return api.Get(r.ctx, of("next", i), metav1.GetOptions{}) })
		if p.Status.Phase != corev1.PodRunning {
			log, err := r.PodLogs(r.ctx, metav1.NamespaceDefault, p.Name, "main")
			t.Errorf("pod %s is %s: %s %v", p.Name, p.Status.Phase, log, err)
		}
	}
}

// A written slice is a ResourceSlice that the API server has created, changed or deleted, as a watch has shown it.
type writtenSlice struct {
	how  watch.EventType
	name string
	at   time.Time
}

// followSlices follows devmgrd's ResourceSlices of the node. The function that it returns has all changes since.
func (r *harness) followSlices() (written func() []writtenSlice) {
	r.t.Helper()
	all := r.Client().ResourceV1().ResourceSlices()
	of := metav1.ListOptions{FieldSelector: "spec.driver=" + dra.Driver + ",spec.nodeName=" + r.NodeName()}
	list, err := all.List(r.ctx, of)
	r.must(err)
	of.ResourceVersion = list.ResourceVersion
	w, err := all.Watch(r.ctx, of)
	r.must(err)
	var mu sync.Mutex
	var events []writtenSlice
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for e := range w.ResultChan() {
			slice, is := e.Object.(*resourceapi.ResourceSlice)
			if !is {
				return
			}
			mu.Lock()
			events = append(events, writtenSlice{e.Type, slice.Name, time.Now()})
			mu.Unlock()
		}
	}()
	r.t.Cleanup(func() { w.Stop(); <-ended })
	return func() []writtenSlice {
		r.t.Helper()
		select {
		case <-ended:
			r.t.Fatal("the watch of the slices has ended")
		default:
		}
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(events)
	}
}

// writes returns how often devmgrd has written slices and the Node's capacity, by kind.
func (r *harness) writes() map[string]float64 {
	r.t.Helper()
	all := map[string]float64{"capacity": r.metric(`devmgrd_node_patches_total{part="capacity",result="ok"}`)}
	for _, verb := range []string{"create", "update", "delete"} {
		for _, result := range []string{"ok", "error"} {
			all[verb+" "+result] = r.metric(fmt.Sprintf("devmgrd_resource_slice_writes_total{result=%q,verb=%q}", result, verb))
		}
	}
	return all
}

// The kubelet deletes the node's slices at each of its starts. devmgrd creates each of them again, and writes nothing else.
func TestDRA_KubeletRestartsOften_SlicesAreCreatedAgain(t *testing.T) {
	restarts := times(t, "E2E_RESTARTS", 8)
	const devices, pools = 130, 3
	r := start(t, "--set", "dra.resources="+gpu)
	r.class(gpu)
	r.offered(gpu, devices)
	r.run("a", gpu, 1)
	container, err := r.RunningContainers(r.ctx, "main")
	r.must(err)
	written, before := r.followSlices(), r.writes()
	var absent []time.Duration
	for i := range restarts {
		seen := len(written())
		r.must(r.Kubelet.Kill())
		r.must(r.Kubelet.Start(r.ctx))
		back := map[string]time.Duration{}
		r.until(fmt.Sprintf("the slices are back after restart %d", i), func() bool {
			gone := map[string]time.Time{}
			for _, w := range written()[seen:] {
				switch since, was := gone[w.name]; {
				case w.how == watch.Deleted:
					gone[w.name] = w.at
					delete(back, w.name)
				case w.how == watch.Added && was:
					back[w.name] = w.at.Sub(since)
				}
			}
			return len(back) == pools
		})
		absent = slices.AppendSeq(absent, maps.Values(back))
	}
	r.must(r.WaitNodeReady(r.soon()))
	r.run("b", "", 0)
	slices.Sort(absent)
	t.Logf("in %d restarts the slices were absent for %s at the median, %s at most", restarts,
		absent[len(absent)/2].Round(time.Millisecond), absent[len(absent)-1].Round(time.Millisecond))
	events := map[watch.EventType]float64{}
	for _, w := range written() {
		events[w.how]++
	}
	if events[watch.Modified] > 0 || events[watch.Added] != events[watch.Deleted] {
		t.Errorf("changes of slices: %v", events)
	}
	for what, n := range r.writes() {
		want := 0.
		if what == "create ok" {
			want = events[watch.Deleted]
		}
		if n -= before[what]; n != want {
			t.Errorf("%s: %.0f writes, want %.0f", what, n, want)
		}
	}
	if all := r.sliced(); len(all) != devices {
		t.Errorf("the slices show %d devices", len(all))
	}
	now, err := r.RunningContainers(r.ctx, "main")
	r.must(err)
	if !slices.Contains(now, container[0]) {
		t.Errorf("pod a had container %q, and now %q run", container, now)
	}
	r.exact("a")
}

// The health of devices changes a thousand times a minute, for half a minute. The slices follow after pauses that grow, of up to a minute, and are not written
// when that is over.
func TestDRA_HealthFlaps_WritesAreCoalesced(t *testing.T) {
	flaps := times(t, "E2E_FLAPS", 500)
	const devices, pools, interval = 130, 3, time.Minute / 1000
	r := start(t, "--set", "dra.resources="+gpu, "--set", "health.onFlapping=*=none")
	r.class(gpu)
	p := r.offered(gpu, devices)
	written, before := r.followSlices(), r.generations()
	if len(before) != pools {
		t.Fatalf("the pools are %v", before)
	}
	began := time.Now()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	health := []string{plugintest.Unhealthy, plugintest.Healthy}
	for i := range flaps {
		<-tick.C
		p.SetHealth(fmt.Sprintf("dev-%06d", i/2*67%devices), health[i%2]) // most follow one of another pool
	}
	// Two of each pool stay unhealthy, as never before. When the slices show these alone, no write of an earlier state is under way.
	last := plugintest.Devices(devices)
	want := map[string][]string{}
	for i, d := range last {
		name := dra.Name(device.ID(d.ID))
		want[name] = []string{}
		if i%64 < 2 {
			d.Health = plugintest.Unhealthy
			want[name] = []string{"devmgrd.io/unhealthy"}
		}
	}
	p.Set(last...)
	r.until("the slices show the last list", func() bool { return maps.EqualFunc(r.sliced(), want, slices.Equal) })
	after, took := r.generations(), time.Since(began)
	var all int64
	for pool, n := range after {
		writes, most := n-before[pool], int64(took/time.Second)+1
		if all += writes; writes > most || writes < 1 {
			t.Errorf("pool %s was written %d times in %s", pool, writes, took)
		} else {
			t.Logf("pool %s was written %d times in %s, for %d changes in all pools", pool, writes, took.Round(time.Millisecond), flaps)
		}
	}
	r.run("a", "", 0)
	r.run("b", "", 0)
	if changes := written(); len(changes) != int(all) {
		t.Errorf("the slices were written %d times, and %d times when two pods had started without a change of health", all, len(changes))
	}
}
