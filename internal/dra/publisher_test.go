package dra_test

import (
	"errors"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/dra"
	"github.com/devmgrd/devmgrd/internal/kube/kubetest"
)

func TestPublish_FirstSlices_AreCreated(t *testing.T) {
	t.Parallel()
	api, n := kubetest.New(t), newNode()
	n.list(gpu, 130)
	api.Refuse(func(verb, _ string) int {
		n.mu.Lock()
		defer n.mu.Unlock()
		if verb == "create" && len(n.saved[gpu]) != 66 {
			t.Errorf("a slice is created when %d places are saved", len(n.saved[gpu]))
		}
		return 0
	})
	p, registry, stop := publish(t, api, n)
	untilShows(t, api, map[string]string{pool + "0": "64 at 1", pool + "1": "64 at 1", pool + "2": "2 at 1"})
	untilSettled(t, p)
	controls := true
	owners := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "node-uid", Controller: &controls}}
	for _, s := range api.ResourceSlices() {
		if !reflect.DeepEqual(s.OwnerReferences, owners) || s.Spec.Driver != "devmgrd.io" || *s.Spec.NodeName != "n1" || s.Spec.Pool.ResourceSliceCount != 1 {
			t.Errorf("got %+v", s)
		}
	}
	if got := p.Pool(gpu, "d129"); got != pool+"2" || p.Pool(gpu, "d0") != pool+"0" {
		t.Errorf("d129 is in %s", got)
	}
	stop()
	if got := counted(t, registry); got["create ok"] != 3 || len(got) != 6 || got["create error"]+got["update ok"]+got["delete ok"] > 0 {
		t.Errorf("counted %v", got)
	}

	// A devmgrd that starts again finds what it would write.
	before := writes(api)
	p, _, _ = publish(t, api, n)
	untilSettled(t, p)
	if n := writes(api); n != before {
		t.Errorf("%d writes after a restart", n-before)
	}
	if n.saves != 1 {
		t.Errorf("places were saved %d times", n.saves)
	}
}

// counted returns the writes by verb and result.
func counted(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() != "devmgrd_resource_slice_writes_total" {
				continue
			}
			all[m.GetLabel()[1].GetValue()+" "+m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
		}
	}
	return all
}

func TestPublish_ChangeOfOneDevice_IsOneWrite(t *testing.T) { synctest.Test(t, changeOfOneDevice) }

func changeOfOneDevice(t *testing.T) {
	api, n := kubetest.NewInMemory(t), newNode()
	n.list(gpu, 100)
	publish(t, api, n)
	at(time.Minute)
	before := writes(api)
	n.cordon(gpu, 70, true)
	at(0) // at once
	want := map[string]string{pool + "0": "64 at 1", pool + "1": "36 at 2 d70+cordoned"}
	if got := shows(api); !maps.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	at(time.Minute)
	since := taintTime(api)
	n.touch(gpu, 71, func(d *device.DeviceStatus) { d.Healthy, d.State = false, device.StateUnhealthy })
	at(time.Minute)
	if got := shows(api)[pool+"1"]; got != "36 at 3 d70+cordoned d71+unhealthy" {
		t.Errorf("got %v", got)
	}
	if now := taintTime(api); since.IsZero() || !now.Equal(&since) {
		t.Errorf("the time of a taint changed from %v to %v", since, now)
	}
	n.change(func() {}) // nothing of the devices
	at(time.Hour)
	if got := writes(api) - before; got != 2 {
		t.Errorf("%d writes, want 2", got)
	}
}

// taintTime returns when the first taint was added.
func taintTime(api *kubetest.Server) metav1.Time {
	for _, s := range api.ResourceSlices() {
		for _, d := range s.Spec.Devices {
			if len(d.Taints) > 0 {
				return *d.Taints[0].TimeAdded
			}
		}
	}
	return metav1.Time{}
}

func TestPublish_DevicesThatFlap_AreWrittenOnceASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, devicesThatFlap)
}

func devicesThatFlap(t *testing.T) {
	api, n := kubetest.NewInMemory(t), newNode()
	n.list(gpu, 10)
	publish(t, api, n)
	at(time.Minute)
	before := writes(api)
	for i := range 1000 { // in a minute
		n.cordon(gpu, i%10, i%20 < 10)
		at(60 * time.Millisecond)
	}
	if got := writes(api) - before; got > 61 || got < 30 {
		t.Errorf("%d writes in a minute", got)
	}
	at(time.Second)
	if got := shows(api)[pool+"0"]; !strings.HasPrefix(got, "10 at") || strings.Contains(got, "cordoned") {
		t.Errorf("got %q", got)
	}
	before = writes(api)
	at(time.Hour)
	if got := writes(api) - before; got > 0 {
		t.Errorf("%d writes at rest", got)
	}
}

// A plugin that changes its word in each of its pools once a second. What devmgrd and the operator do, and other plugins, do not wait.
func TestPublish_PluginChangesItsWordAllTheTime_PausesGrow(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*device.DeviceStatus, bool){
		"health": func(d *device.DeviceStatus, on bool) { d.Healthy = on },
		"list":   func(d *device.DeviceStatus, on bool) { d.Listed = on },
		"NUMA nodes": func(d *device.DeviceStatus, on bool) {
			d.NUMA = nil
			if on {
				d.NUMA = []int{1}
			}
		},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { changesItsWord(t, change) }) })
	}
}

func changesItsWord(t *testing.T, change func(*device.DeviceStatus, bool)) {
	const nic device.ResourceName = "a.example/nic"
	const pools = 3
	api, n := kubetest.NewInMemory(t), newNode()
	n.list(gpu, 64*pools)
	n.list(nic, 1)
	publish(t, api, n)
	at(time.Minute)
	turn := 0
	minute := func() int {
		before := writes(api)
		for range 60 {
			turn++
			n.change(func() {
				n.devices[gpu] = slices.Clone(n.devices[gpu])
				for j := range pools {
					change(&n.devices[gpu][j*64], turn%2 == 0)
				}
			})
			at(time.Second)
		}
		return writes(api) - before
	}
	if first, second := minute(), minute(); first > 7*pools || second > 2*pools {
		t.Errorf("%d writes in the first minute, %d in the second", first, second)
	}
	// The plugin has had its turn, and waits.
	n.cordon(gpu, 1, true)
	n.touch(nic, 0, func(d *device.DeviceStatus) { d.Healthy = false })
	at(time.Second)
	if got := shows(api)[pool+"0"]; !strings.Contains(got, "d1+cordoned") {
		t.Errorf("a cordon waits: %s", got)
	}
	if got := shows(api)["n1/a.example/nic/0"]; !strings.Contains(got, "d0+unhealthy") {
		t.Errorf("another plugin waits: %s", got)
	}
	at(time.Minute)
	before := writes(api)
	at(time.Hour)
	if got := writes(api) - before; got > 0 {
		t.Errorf("%d writes at rest", got)
	}
	// Its last word is in the slices.
	want, _ := n.Devices(gpu)
	shown := 0
	for _, s := range api.ResourceSlices() {
		if s.Annotations["devmgrd.io/resource"] == string(gpu) {
			shown += len(s.Spec.Devices)
		}
	}
	for _, d := range want {
		if !d.Claimable {
			shown++
		}
	}
	if shown != len(want) {
		t.Errorf("the slices show %d devices too few", len(want)-shown)
	}
	// After a while its changes are written at once.
	n.touch(gpu, 70, func(d *device.DeviceStatus) { d.Healthy = false })
	at(0)
	if got := shows(api)[pool+"1"]; !strings.Contains(got, "d70+unhealthy") {
		t.Errorf("a calm plugin waits: %s", got)
	}
}

// A plugin may change the health of a device that devmgrd has suspended: that is not written.
func TestPublish_SuspendedDeviceFlaps_NoWrites(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api, n := kubetest.NewInMemory(t), newNode()
		n.list(gpu, 2)
		publish(t, api, n)
		at(time.Minute)
		n.touch(gpu, 0, func(d *device.DeviceStatus) {
			d.State, d.Cordon = device.StateSuspended, &device.Cordon{Suspended: true}
		})
		at(time.Minute)
		before := writes(api)
		for i := range 60 {
			n.touch(gpu, 0, func(d *device.DeviceStatus) { d.Healthy = i%2 == 1 })
			at(time.Minute)
		}
		if got := writes(api) - before; got > 0 {
			t.Errorf("%d writes", got)
		}
	})
}

// A plugin whose list is now too long and now not loses its slices at once. They come back at the pace of its word.
func TestPublish_ResourceComesAndGoes_PausesGrow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api, n := kubetest.NewInMemory(t), newNode()
		n.list(gpu, 64)
		publish(t, api, n)
		at(time.Minute)
		before := api.Requests("create")
		for range 60 {
			n.refuse(gpu, true)
			at(5 * time.Second)
			n.refuse(gpu, false)
			at(5 * time.Second)
		}
		if got := api.Requests("create") - before; got > 16 {
			t.Errorf("%d slices were created in 10 minutes", got)
		}
	})
}

// A kubelet that starts removes all slices of its node. They are back at once, even if they have just been written.
func TestPublish_SlicesRemovedByTheKubelet_AreBackAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, removedByTheKubelet)
}

func removedByTheKubelet(t *testing.T) {
	api, n := kubetest.NewInMemory(t), newNode()
	n.list(gpu, 200)
	publish(t, api, n)
	at(time.Minute)
	for i := range 200 {
		n.cordon(gpu, i, i%64 == 0)
	}
	at(25 * time.Millisecond) // each pool has just been written
	want := shows(api)
	if len(want) != 4 || want[pool+"3"] != "8 at 2 d192+cordoned" {
		t.Fatalf("got %v", want)
	}
	removeAll(api)
	at(0)
	got := shows(api)
	for name := range want {
		if got[name] != strings.Replace(want[name], "at 2", "at 1", 1) {
			t.Errorf("%s is %q after its removal", name, got[name])
		}
	}
	// Another client that keeps removing them is answered once a second.
	before := api.Requests("create")
	for range 60 { // 6 s
		removeAll(api)
		at(100 * time.Millisecond)
	}
	if created := api.Requests("create") - before; created > 4*7 || created < 4*5 {
		t.Errorf("%d slices were created in 6 s", created)
	}
	at(time.Second)
	if got := shows(api); len(got) != 4 {
		t.Errorf("got %v", got)
	}
}

func removeAll(api *kubetest.Server) {
	for _, s := range api.ResourceSlices() {
		api.Delete("resourceslices/" + s.Name)
	}
}

// slice returns a slice of another client.
func slice(name, driver, node, pool string) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{
		Driver: driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: pool, ResourceSliceCount: 1, Generation: 5}}}
}

func TestPublish_SlicesOfOthers_AreLeftAlone(t *testing.T) {
	t.Parallel()
	api, n := kubetest.New(t), newNode()
	n.list(gpu, 2)
	api.Put(slice("other-driver", "gpu.example", "n1", "other"))
	api.Put(slice("other-node", "devmgrd.io", "n2", "n2/a.example/gpu/0"))
	api.Put(slice("an-old-name", "devmgrd.io", "n1", "n1/old"))
	api.Put(slice(dra.SliceName("n1", gpu, 0), "devmgrd.io", "n1", "n1/another-pool")) // the pool's name cannot be changed
	p, _, _ := publish(t, api, n)
	untilShows(t, api, map[string]string{"other": "0 at 5", "n2/a.example/gpu/0": "0 at 5", pool + "0": "2 at 1"})
	untilSettled(t, p)

	shown := api.ResourceSlices()[slices.IndexFunc(api.ResourceSlices(), func(s resourceapi.ResourceSlice) bool { return s.Spec.Pool.Name == pool+"0" })]
	shown.Spec.Devices = shown.Spec.Devices[:1] // another client changes devmgrd's
	api.Put(&shown)
	untilShows(t, api, map[string]string{"other": "0 at 5", "n2/a.example/gpu/0": "0 at 5", pool + "0": "2 at 2"})
}

// A node's credentials may create ResourceSlices of that node under any name.
func TestPublish_NamesTakenByAnotherNode_OthersAreUsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, namesTakenByAnotherNode)
}

func namesTakenByAnotherNode(t *testing.T) {
	api, n := kubetest.NewInMemory(t), newNode()
	n.list(gpu, 66)
	for k := range 2 {
		api.Put(slice(dra.SliceName("n1", gpu, k), "devmgrd.io", "n2", "n2/forged"))
	}
	p, _, stop := publish(t, api, n)
	want := map[string]string{"n2/forged": "0 at 5", pool + "0": "64 at 1", pool + "1": "2 at 1"}
	expect := func(what string) {
		t.Helper()
		if got := shows(api); !maps.Equal(got, want) || p.Check() != nil {
			t.Errorf("%s: %v, want %v; %v", what, got, want, p.Check())
		}
	}
	at(3 * time.Second)
	expect("after 3 s")
	at(time.Minute)
	tries := api.Requests("create")
	for _, s := range api.ResourceSlices() {
		if s.Spec.Pool.Name == pool+"0" {
			api.Delete("resourceslices/" + s.Name) // as a kubelet does that starts
		}
	}
	at(0)
	expect("after a removal")
	if n := api.Requests("create") - tries; n != 1 {
		t.Errorf("%d tries to create it again", n)
	}
	stop()
	before := writes(api)
	p, _, _ = publish(t, api, n)
	at(time.Minute)
	expect("after a restart")
	if n := writes(api) - before; n != 0 {
		t.Errorf("%d writes after a restart", n)
	}
}

// Two creations may both have succeeded, where the answer to the first one was lost: a pool has one slice.
func TestPublish_SecondSliceOfAPool_IsRemoved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api, n := kubetest.NewInMemory(t), newNode()
		n.list(gpu, 2)
		publish(t, api, n)
		at(time.Minute)
		api.Put(slice("a-second-one", "devmgrd.io", "n1", pool+"0"))
		at(3 * time.Second)
		if all := api.ResourceSlices(); len(all) != 1 || len(all[0].Spec.Devices) != 2 {
			t.Errorf("the slices are %v", all)
		}
	})
}

func TestPublish_Offered_Changes(t *testing.T) { synctest.Test(t, offeredChanges) }

func offeredChanges(t *testing.T) {
	api, n := kubetest.NewInMemory(t), newNode()
	n.list(gpu, 66)
	n.list("a.example/nic", 1)
	n.refused["a.example/nic"] = true
	p, _, _ := publish(t, api, n)
	expect := func(what string, want map[string]string) {
		t.Helper()
		at(2 * time.Second)
		if got := shows(api); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
		if err := p.Check(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	both := map[string]string{pool + "0": "64 at 1", pool + "1": "2 at 1"}
	expect("at first", both)
	n.refuse("a.example/nic", false)
	expect("another is offered", map[string]string{pool + "0": "64 at 1", pool + "1": "2 at 1", "n1/a.example/nic/0": "1 at 1"})
	n.refuse(gpu, true)
	expect("one is not offered", map[string]string{"n1/a.example/nic/0": "1 at 1"})
	n.refuse(gpu, false)
	n.refuse("a.example/nic", true)
	expect("the other way round", both)
	n.change(func() { n.resources[gpu] = &device.Offer{} })
	expect("the plugin has registered and listed nothing yet", both)
	n.list(gpu, 66)
	n.change(func() { n.unread = true })
	expect("the Node has not been read yet", both)
	n.change(func() { n.unread = false })
	n.change(func() { n.partial = true; delete(n.resources, gpu); delete(n.devices, gpu) })
	expect("not all pods are known", both)
	n.change(func() { n.partial = false })
	expect("forgotten", map[string]string{})
	if got := p.Pool(gpu, "d65"); got != pool+"0" {
		t.Errorf("a forgotten device is in %s", got)
	}
	n.change(func() { delete(n.saved, gpu) }) // as the store does
	n.list(gpu, 66)
	expect("back", both)
	if len(n.saved[gpu]) != 2 {
		t.Errorf("saved %v", n.saved)
	}
}

func TestPublish_Claims(t *testing.T) { synctest.Test(t, claims) }

func claims(t *testing.T) {
	api, n := kubetest.NewInMemory(t), newNode()
	n.list(gpu, 3)
	publish(t, api, n)
	at(time.Minute)
	n.change(func() { n.claimed = map[device.ID]bool{"d1": true} })
	hold := func(i int) {
		n.touch(gpu, i, func(d *device.DeviceStatus) { d.State, d.Holder = device.StateAssigned, &device.Holder{} })
	}
	hold(1)
	at(time.Minute)
	if got := shows(api)[pool+"0"]; got != "3 at 1" {
		t.Errorf("a device of a pod with a claim: %s", got)
	}
	hold(0)
	at(time.Minute)
	if got := shows(api)[pool+"0"]; got != "2 at 2" {
		t.Errorf("a device of a pod without a claim: %s", got)
	}
	hold(2)
	n.change(func() { n.claimed = nil })
	at(time.Minute)
	if got := shows(api); len(got) > 0 {
		t.Errorf("all devices are with pods without a claim: %v", got)
	}
	n.touch(gpu, 2, func(d *device.DeviceStatus) { d.State, d.Holder = device.StateFree, nil })
	at(0)
	if got := shows(api)[pool+"0"]; got != "1 at 1" {
		t.Errorf("one device is free: %s", got)
	}
}

func TestPublish_TooManyDevices_AreNotPublished(t *testing.T) {
	t.Parallel()
	api, n := kubetest.New(t), newNode()
	n.most = 10
	n.list(gpu, 10)
	n.list("a.example/nic", 1)
	p, _, _ := publish(t, api, n)
	untilShows(t, api, map[string]string{pool + "0": "10 at 1", "n1/a.example/nic/0": "1 at 1"})
	n.list(gpu, 11)
	untilShows(t, api, map[string]string{"n1/a.example/nic/0": "1 at 1"})
	untilSettled(t, p) // readiness and conditions of the Node do not depend on it
	n.list(gpu, 9)
	untilShows(t, api, map[string]string{pool + "0": "9 at 1", "n1/a.example/nic/0": "1 at 1"})
	untilSettled(t, p)
}

func TestPublish_WithoutAnOwner_NothingIsCreated(t *testing.T) { synctest.Test(t, withoutAnOwner) }

func withoutAnOwner(t *testing.T) {
	api, n := kubetest.NewInMemory(t), newNode()
	n.anonymous = true
	n.list(gpu, 2)
	p, _, _ := publish(t, api, n)
	at(time.Hour)
	if err := p.Check(); writes(api) > 0 || err == nil || !strings.Contains(err.Error(), "there is no Node named n1") {
		t.Errorf("%d writes, %v", writes(api), err)
	}
	n.change(func() { n.anonymous = false })
	at(15 * time.Second)
	if got := shows(api)[pool+"0"]; got != "2 at 1" || p.Check() != nil {
		t.Errorf("got %q, %v", got, p.Check())
	}
}

func TestPublish_PlacesThatCannotBeSaved_AreNotPublished(t *testing.T) {
	t.Parallel()
	synctest.Test(t, unsavedPlaces)
}

func unsavedPlaces(t *testing.T) {
	api, n := kubetest.NewInMemory(t), newNode()
	n.list(gpu, 64)
	p, _, _ := publish(t, api, n)
	at(time.Minute)
	n.change(func() { n.full = errors.New("no space left on device") })
	n.list(gpu, 65)
	at(time.Hour)
	if got := shows(api); !maps.Equal(got, map[string]string{pool + "0": "64 at 1"}) {
		t.Errorf("got %v", got)
	}
	if err := p.Check(); err == nil || err.Error() != "saving the places of the devices of a.example/gpu: no space left on device" {
		t.Errorf("Check: %v", err)
	}
	if n.saves < 300 || n.saves > 1000 { // every 5 to 10 s
		t.Errorf("%d attempts in an hour", n.saves)
	}
	n.change(func() { n.full = nil })
	at(15 * time.Second)
	if got := shows(api); !maps.Equal(got, map[string]string{pool + "0": "64 at 1", pool + "1": "1 at 1"}) || p.Check() != nil {
		t.Errorf("got %v, %v", got, p.Check())
	}
}

func TestPublish_TaintsDropped_DevicesAreLeftOut(t *testing.T) { synctest.Test(t, taintsDropped) }

func taintsDropped(t *testing.T) {
	api, n := kubetest.NewInMemory(t), newNode()
	api.DropTaints()
	n.list(gpu, 4)
	p, _, _ := publish(t, api, n)
	at(time.Minute)
	if p.TaintsDropped() {
		t.Error("no taint has been written")
	}
	n.change(func() { n.claimed = map[device.ID]bool{"d3": true} })
	n.cordon(gpu, 1, true)
	n.touch(gpu, 3, func(d *device.DeviceStatus) {
		d.Cordon, d.State, d.Holder = &device.Cordon{}, device.StateAssigned, &device.Holder{}
	})
	at(50 * time.Millisecond)
	if got := shows(api)[pool+"0"]; got != "3 at 3" || !p.TaintsDropped() || p.Check() != nil {
		t.Errorf("got %q, %v, %v", got, p.TaintsDropped(), p.Check())
	}
	before := writes(api)
	at(time.Hour)
	if got := writes(api) - before; got > 0 {
		t.Errorf("%d writes at rest", got)
	}
	n.cordon(gpu, 1, false)
	at(0)
	if got := shows(api)[pool+"0"]; got != "4 at 4" {
		t.Errorf("got %q", got)
	}
}

func TestPublish_Refusals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, verb string
		code       int
		says       string
	}{
		{"create forbidden", "create", http.StatusForbidden, "creating ResourceSlice n1-devmgrd.io-a.example-gpu-0-"},
		{"create forbidden, the remedy", "create", http.StatusForbidden, "devmgrd needs permission to create, update and delete resourceslices"},
		{"already there", "create", http.StatusConflict, "creating ResourceSlice"},
		{"update conflict", "update", http.StatusConflict, "updating ResourceSlice"},
		{"update invalid", "update", http.StatusUnprocessableEntity, "updating ResourceSlice"},
		{"delete forbidden", "delete", http.StatusForbidden, "deleting ResourceSlice an-old-name"},
		{"watch forbidden", "watch", http.StatusForbidden, "not following this node's resource slices"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api, n := kubetest.NewInMemory(t), newNode()
				n.list(gpu, 2)
				if c.verb == "delete" {
					api.Put(slice("an-old-name", "devmgrd.io", "n1", "n1/old"))
				}
				api.Refuse(func(verb, _ string) int {
					if verb == c.verb {
						return c.code
					}
					return 0
				})
				p, registry, _ := publish(t, api, n)
				at(10 * time.Second)
				n.cordon(gpu, 0, true)
				at(10 * time.Minute)
				if err := p.Check(); err == nil || !strings.Contains(err.Error(), c.says) {
					t.Errorf("Check: %v", err)
				}
				if n := api.Requests(c.verb); n < 30 || n > 500 { // with pauses of 2.5 to 10 s
					t.Errorf("%d attempts in 10 minutes", n)
				}
				if got := counted(t, registry)[c.verb+" error"]; c.verb != "watch" && got != float64(api.Requests(c.verb)) {
					t.Errorf("%v errors are counted, of %d", got, api.Requests(c.verb))
				}
				api.Refuse(nil)
				at(15 * time.Second)
				if got := shows(api); len(got) != 1 || !strings.HasSuffix(got[pool+"0"], "d0+cordoned") || p.Check() != nil {
					t.Errorf("got %v, %v", got, p.Check())
				}
			})
		})
	}
}

// A slice that another client removes while it is updated is created again at once: the answer says so before the watch does.
func TestPublish_RemovedWhileUpdated_IsCreated(t *testing.T) { synctest.Test(t, removedWhileUpdated) }

func removedWhileUpdated(t *testing.T) {
	api, n := kubetest.NewInMemory(t), newNode()
	n.list(gpu, 2)
	p, _, _ := publish(t, api, n)
	at(time.Minute)
	api.Refuse(func(verb, path string) int {
		if verb == "update" {
			removeAll(api)
		}
		return 0
	})
	n.cordon(gpu, 0, true)
	at(50 * time.Millisecond)
	if got := shows(api)[pool+"0"]; got != "2 at 1 d0+cordoned" || p.Check() != nil {
		t.Errorf("got %q, %v", got, p.Check())
	}
}

// While the API server is away changes collect, and one write follows when it is back, also with a history that it has forgotten.
func TestPublish_APIServerAway(t *testing.T) {
	t.Parallel()
	api, n := kubetest.New(t), newNode()
	n.list(gpu, 2)
	p, _, _ := publish(t, api, n)
	untilShows(t, api, map[string]string{pool + "0": "2 at 1"})
	api.Stop()
	for i := range 5 {
		n.cordon(gpu, 0, i%2 == 0)
	}
	kubetest.Until(t, "the loss is reported", func() bool { return p.Check() != nil })
	api.Forget()
	api.Start()
	untilShows(t, api, map[string]string{pool + "0": "2 at 2 d0+cordoned"})
	untilSettled(t, p)
}

// The slices show no device that a pod of the Node's number may be assigned: not before all pods are known, not right after the removal of the
// number, when such a pod may be on its way, and not while one waits.
func TestPublish_PodsOfTheNumber_AreServedFirst(t *testing.T) { synctest.Test(t, podsOfTheNumber) }

func podsOfTheNumber(t *testing.T) {
	api, n := kubetest.NewInMemory(t), newNode()
	n.list(gpu, 3)
	n.since = time.Now()
	p, _, _ := publish(t, api, n)
	at(9 * time.Second)
	if got := shows(api); len(got) != 0 {
		t.Errorf("right after the removal the slices show %v", got)
	}
	n.change(func() { n.partial = true })
	at(time.Minute)
	if got := shows(api); len(got) != 0 {
		t.Errorf("before all pods are known the slices show %v", got)
	}
	n.change(func() { n.partial = false })
	for _, step := range []struct {
		what   string
		change func()
		want   string
	}{
		{"a pod waits", func() { n.awaited = true }, ""},
		{"a pod waits, and another one has a claim", func() { n.claimed = map[device.ID]bool{"d1": true} }, "1"},
		{"no pod waits", func() { n.awaited = false }, "3"},
		// Slices that are there follow the devices.
		{"another writer puts the number back", func() { n.counted, n.claimed = true, nil; n.devices[gpu] = n.devices[gpu][:2] }, "2"},
		{"a pod waits while the number is there", func() { n.awaited = true }, ""},
		{"no pod waits any longer", func() { n.awaited = false }, "2"},
		{"the number has gone again", func() { n.counted, n.since = false, time.Now(); n.devices[gpu] = n.devices[gpu][:1] }, "1"},
	} {
		n.change(step.change)
		n.retoken <- struct{}{}
		at(2 * time.Second)
		if got, _, _ := strings.Cut(shows(api)[pool+"0"], " "); got != step.want {
			t.Errorf("%s: the slice has %q devices, want %q", step.what, got, step.want)
		}
	}
	if err := p.Check(); err != nil {
		t.Error(err)
	}
}

// A resource counts as being in slices for ten seconds after the last one has left, no matter which client has removed it.
func TestSliced_Removed_EndsLater(t *testing.T) { synctest.Test(t, slicedRemoved) }

func slicedRemoved(t *testing.T) {
	for what, remove := range map[string]func(*kubetest.Server, *node){
		"devmgrd": func(_ *kubetest.Server, n *node) { n.refuse(gpu, true) },
		"another client": func(api *kubetest.Server, n *node) {
			name := api.ResourceSlices()[0].Name
			api.Refuse(func(string, string) int { return http.StatusServiceUnavailable }) // so that devmgrd does not remove it first
			n.refuse(gpu, true)
			api.Delete("resourceslices/" + name)
			api.Refuse(nil)
		},
	} {
		api, n := kubetest.NewInMemory(t), newNode()
		n.list(gpu, 3)
		api.Refuse(func(string, string) int { return http.StatusServiceUnavailable })
		_, _, stop := publish(t, api, n)
		at(time.Minute)
		if !n.slices.Sliced(gpu) {
			t.Error("before the slices are listed the Node would show the resource")
		}
		at(9 * time.Second)
		if !n.slices.Sliced(gpu) {
			t.Error("nine seconds later, too")
		}
		api.Refuse(nil)
		for range 11 { // ten are the longest pause between two attempts
			at(time.Second)
			if len(shows(api)) > 0 {
				break
			}
		}
		if !n.slices.Sliced("a.example/nic") {
			t.Error("the slices may have left just before they could be listed")
		}
		at(time.Minute)
		if !n.slices.Sliced(gpu) || n.slices.Sliced("a.example/nic") {
			t.Errorf("gpu: %v, nic: %v; only the first is in slices", n.slices.Sliced(gpu), n.slices.Sliced("a.example/nic"))
		}
		remove(api, n)
		at(9 * time.Second)
		if got := shows(api); len(got) > 0 || !n.slices.Sliced(gpu) {
			t.Errorf("removed by %s: the slices show %v, sliced: %v", what, got, n.slices.Sliced(gpu))
		}
		at(2 * time.Second)
		if n.slices.Sliced(gpu) {
			t.Errorf("removed by %s: more than ten seconds later the resource is in slices still", what)
		}
		stop()
	}
}

// An API server takes seconds for a write. No question to the Publisher waits for it, and later slices show what has changed meanwhile.
func TestPublish_SlowWrites_LaterSlicesAreNew(t *testing.T) { synctest.Test(t, slowWrites) }

func slowWrites(t *testing.T) {
	api, n := kubetest.NewInMemory(t), newNode()
	n.list(gpu, 130)
	api.Refuse(func(verb, _ string) int {
		if verb == "create" {
			time.Sleep(5 * time.Second)
		}
		return 0
	})
	p, _, _ := publish(t, api, n)
	at(time.Second)
	began := time.Now()
	if got := p.Pool(gpu, "d129"); got != pool+"2" {
		t.Errorf("d129 is in %s", got)
	}
	_, _ = n.slices.Sliced(gpu), p.Check()
	if waited := time.Since(began); waited > 0 {
		t.Errorf("the answers took %v", waited)
	}
	n.cordon(gpu, 129, true)
	at(time.Minute)
	want := map[string]string{pool + "0": "64 at 1", pool + "1": "64 at 1", pool + "2": "2 at 1 d129+cordoned"}
	if got := shows(api); !maps.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}
