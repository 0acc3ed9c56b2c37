package nodestatus_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube/kubetest"
	"github.com/devmgrd/devmgrd/internal/loops"
	"github.com/devmgrd/devmgrd/internal/nodestatus"
)

type quantities = map[device.ResourceName]int

// view is what the allocator would say.
type view struct {
	mu      sync.Mutex
	numbers quantities
	bound   quantities
	partial bool
	changed chan struct{}

	contested []device.ResourceName
	parts     []device.Component
	cordons   []device.Cordon
	mistakes  []string
	refuse    error // of DeclareCordons
	retired   []device.ResourceName
	fail      error                        // of Unpublished
	kubelets  map[device.ResourceName]bool // replaced, never edited
}

// kubeletManages is what the kubelet would say.
func (v *view) kubeletManages() map[device.ResourceName]bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.kubelets
}

func (v *view) setKubelets(all ...device.ResourceName) {
	managed := map[device.ResourceName]bool{}
	for _, r := range all {
		managed[r] = true
	}
	v.mu.Lock()
	v.kubelets = managed
	v.mu.Unlock()
	v.signal()
}

func newView(n quantities) *view { return &view{numbers: n, changed: make(chan struct{})} }

func (v *view) Resources() device.Resources {
	v.mu.Lock()
	defer v.mu.Unlock()
	all := device.Resources{ByName: map[device.ResourceName]device.ResourceStatus{}, PodsListed: !v.partial, Retired: slices.Clone(v.retired)}
	for r, n := range v.numbers {
		all.ByName[r] = device.ResourceStatus{Offer: &device.Offer{Reported: true}, Capacity: n, Requested: v.bound[r]}
	}
	return all
}

// bind has pods ask for so many devices.
func (v *view) bind(n quantities) {
	v.mu.Lock()
	v.bound = n
	v.mu.Unlock()
	v.signal()
}

func (v *view) ResourcesRemoved(gone []device.ResourceName) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.fail == nil {
		v.retired = slices.DeleteFunc(v.retired, func(r device.ResourceName) bool { return slices.Contains(gone, r) })
	}
	return v.fail
}

func (v *view) Updated() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.changed
}

func (v *view) set(n quantities) {
	v.mu.Lock()
	v.numbers = n
	v.mu.Unlock()
	v.signal()
}

// complete says that all pods are counted.
func (v *view) complete() {
	v.mu.Lock()
	v.partial = false
	v.mu.Unlock()
	v.signal()
}

// Contested is part of nodestatus.Notifier.
func (v *view) Contested(r device.ResourceName) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.contested = append(v.contested, r)
}

// InvalidCordons is part of nodestatus.Notifier.
func (v *view) InvalidCordons(mistake error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mistakes = append(v.mistakes, mistake.Error())
}

// DeclareCordons is part of nodestatus.Cordons.
func (v *view) DeclareCordons(all []device.Cordon) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.refuse == nil {
		v.cordons = all
	}
	return v.refuse
}

func (v *view) components() []device.Component {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.parts)
}

// alarms returns what has been told.
func (v *view) alarms() []device.ResourceName {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.contested)
}

func (v *view) signal() {
	v.mu.Lock()
	defer v.mu.Unlock()
	close(v.changed)
	v.changed = make(chan struct{})
}

// node makes n1 with some native resources and these extended ones; allocatable differs where it is given.
func node(capacity, allocatable map[string]string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u"}}
	list := func(m map[string]string) corev1.ResourceList {
		l := corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("1Gi")}
		for k, v := range m {
			l[corev1.ResourceName(k)] = resource.MustParse(v)
		}
		return l
	}
	n.Status.Capacity, n.Status.Allocatable = list(capacity), list(allocatable)
	return n
}

// shows returns the pairs capacity/allocatable of extended resources.
func shows(api *kubetest.Server) map[string]string {
	n := api.Node("n1")
	if n == nil {
		return nil
	}
	got := map[string]string{}
	for _, list := range []corev1.ResourceList{n.Status.Capacity, n.Status.Allocatable} {
		for name := range list {
			if strings.Contains(string(name), "/") {
				c, a := n.Status.Capacity[name], n.Status.Allocatable[name]
				got[string(name)] = c.String() + "/" + a.String()
			}
		}
	}
	return got
}

func untilShows(t *testing.T, api *kubetest.Server, want map[string]string) {
	t.Helper()
	kubetest.Until(t, "the node shows the capacity", func() bool { return maps.Equal(shows(api), want) })
}

// publish runs a Publisher until the test ends.
func publish(t *testing.T, api *kubetest.Server, v *view) (*nodestatus.Publisher, *prometheus.Registry) {
	t.Helper()
	p, registry := newPublisher(t, api, v)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		before := shows(api)
		stop()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(time.Minute):
			t.Error("Run does not end with its context")
		}
		if after := shows(api); !maps.Equal(before, after) {
			t.Errorf("ending changed %v to %v", before, after)
		}
	})
	return p, registry
}

func newPublisher(t *testing.T, api *kubetest.Server, v *view) (*nodestatus.Publisher, *prometheus.Registry) {
	registry := prometheus.NewRegistry()
	return nodestatus.New(nodestatus.Config{NodeName: "n1", Client: api.Client(), View: v, Notifier: v, Cordons: v, Components: v.components, Ignored: func(r device.ResourceName) bool { return r == "a.example/ignored" }, KubeletManages: v.kubeletManages, KubeletDir: t.TempDir(), Log: kubetest.Log(t), Metrics: registry}), registry
}

// series counts the series of a metric.
func series(t *testing.T, from *prometheus.Registry, name string) int {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return len(f.GetMetric())
		}
	}
	return 0
}

func untilSettled(t *testing.T, p *nodestatus.Publisher) {
	t.Helper()
	kubetest.Until(t, "the publisher is content", func() bool { return p.Check() == nil })
}

func TestOnePatchPublishes(t *testing.T) {
	t.Parallel()
	api := kubetest.New(t)
	api.Put(node(map[string]string{"other.example/x": "3", "a.example/gpu": "2", "a.example/same": "5"},
		map[string]string{"other.example/x": "1", "a.example/gpu": "2", "a.example/same": "5"}))
	p, registry := publish(t, api, newView(quantities{"a.example/gpu": 4, "a.example/nic": 0, "a.example/same": 5}))
	untilShows(t, api, map[string]string{"a.example/gpu": "4/4", "a.example/nic": "0/0", "a.example/same": "5/5", "other.example/x": "3/1"})
	untilSettled(t, p)
	want := `{"status":{"allocatable":{"a.example/gpu":"4","a.example/nic":"0"},"capacity":{"a.example/gpu":"4","a.example/nic":"0"}}}`
	if got := api.Patches(); len(got) != 1 || got[0] != want {
		t.Errorf("got %q, want one %s", got, want)
	}
	if cpu := api.Node("n1").Status.Capacity["cpu"]; cpu.String() != "4" {
		t.Errorf("cpu became %s", cpu.String())
	}
	for metric, want := range map[string]float64{
		`devmgrd_node_capacity{a.example/gpu}`: 4, `devmgrd_node_capacity{a.example/nic}`: 0, `devmgrd_node_capacity{a.example/same}`: 5,
		`devmgrd_node_patches_total{capacity,ok}`: 1, `devmgrd_node_patches_total{capacity,error}`: 0,
	} {
		if got, ok := gathered(t, registry)[metric]; !ok || got != want {
			t.Errorf("%s is %v", metric, got)
		}
	}
}

// gathered returns the values of all series, by name{label values}.
func gathered(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := make([]string, len(m.GetLabel()))
			for i, l := range m.GetLabel() {
				labels[i] = l.GetValue()
			}
			got[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return got
}

func TestNothingIsWrittenWhenNothingDiffers(t *testing.T) {
	t.Parallel()
	api := kubetest.New(t)
	api.Put(node(map[string]string{"a.example/gpu": "4"}, map[string]string{"a.example/gpu": "4"}))
	v := newView(quantities{"a.example/gpu": 4})
	p, _ := publish(t, api, v)
	untilSettled(t, p)
	v.set(quantities{"a.example/gpu": 4})
	api.Put(node(map[string]string{"a.example/gpu": "4", "other.example/x": "1"}, map[string]string{"a.example/gpu": "4"}))
	v.set(quantities{"a.example/gpu": 5}) // the patch that this needs ends the test
	untilShows(t, api, map[string]string{"a.example/gpu": "5/5", "other.example/x": "1/0"})
	if n := len(api.Patches()); n != 1 {
		t.Errorf("%d patches, want 1: %q", n, api.Patches())
	}
}

func TestViewChanges(t *testing.T) {
	t.Parallel()
	api := kubetest.New(t)
	api.Put(node(nil, nil))
	v := newView(quantities{"a.example/gpu": 4, "a.example/nic": 1})
	p, registry := publish(t, api, v)
	untilShows(t, api, map[string]string{"a.example/gpu": "4/4", "a.example/nic": "1/1"})
	for i := range 50 { // a burst
		v.set(quantities{"a.example/gpu": 5 + i, "a.example/nic": 1})
	}
	untilShows(t, api, map[string]string{"a.example/gpu": "54/54", "a.example/nic": "1/1"})
	if n := len(api.Patches()); n > 3 {
		t.Errorf("%d patches for one burst", n)
	}
	v.set(quantities{"a.example/gpu": 54}) // a resource that is no longer named stays on the node, and its series ends
	untilSettled(t, p)
	if got := gathered(t, registry); len(got) != 5 || got["devmgrd_node_capacity{a.example/gpu}"] != 54 {
		t.Errorf("got %v", got)
	}
	if got := shows(api)["a.example/nic"]; got != "1/1" {
		t.Errorf("a resource that the view does not name became %q", got)
	}
}

// Before all pods are counted the Node's numbers may rise, but they do not fall.
func TestNothingIsLoweredBeforeAllPodsAreCounted(t *testing.T) { synctest.Test(t, nothingIsLowered) }

func nothingIsLowered(t *testing.T) {
	api := kubetest.NewInMemory(t)
	api.Put(node(map[string]string{"a.example/gpu": "8", "a.example/nic": "2", "a.example/odd": "6"},
		map[string]string{"a.example/gpu": "8", "a.example/nic": "2", "a.example/odd": "3"}))
	v := newView(quantities{"a.example/gpu": 0, "a.example/nic": 3, "a.example/odd": 1, "a.example/new": 0})
	v.partial = true
	p, _ := publish(t, api, v)
	untilShows(t, api, map[string]string{"a.example/gpu": "8/8", "a.example/nic": "3/3", "a.example/odd": "6/6", "a.example/new": "0/0"})
	untilSettled(t, p)
	v.set(quantities{"a.example/gpu": 9, "a.example/nic": 0, "a.example/odd": 1, "a.example/new": 0})
	untilShows(t, api, map[string]string{"a.example/gpu": "9/9", "a.example/nic": "3/3", "a.example/odd": "6/6", "a.example/new": "0/0"})
	v.set(quantities{"a.example/gpu": 4, "a.example/nic": 0, "a.example/odd": 1, "a.example/new": 1})
	untilShows(t, api, map[string]string{"a.example/gpu": "9/9", "a.example/nic": "3/3", "a.example/odd": "6/6", "a.example/new": "1/1"})
	time.Sleep(time.Hour)
	for _, patch := range api.Patches()[1:] {
		if strings.Contains(patch, "odd") || strings.Contains(patch, "nic") {
			t.Errorf("a number was touched that had not to be raised: %s", patch)
		}
	}
	v.complete()
	time.Sleep(5 * time.Second)
	untilShows(t, api, map[string]string{"a.example/gpu": "4/4", "a.example/nic": "0/0", "a.example/odd": "1/1", "a.example/new": "1/1"})
	v.set(quantities{"a.example/gpu": 2, "a.example/nic": 0, "a.example/odd": 1, "a.example/new": 1})
	time.Sleep(8 * time.Second) // two falls are 10 s apart
	untilShows(t, api, map[string]string{"a.example/gpu": "2/2", "a.example/nic": "0/0", "a.example/odd": "1/1", "a.example/new": "1/1"})
}

func TestDriftIsPutRight(t *testing.T) {
	t.Parallel()
	for name, drift := range map[string]func(api *kubetest.Server){
		"other numbers": func(api *kubetest.Server) {
			api.Put(node(map[string]string{"a.example/gpu": "9"}, map[string]string{"a.example/gpu": "9"}))
		},
		"allocatable": func(api *kubetest.Server) {
			api.Put(node(map[string]string{"a.example/gpu": "4"}, map[string]string{"a.example/gpu": "1"}))
		},
		"both are gone": func(api *kubetest.Server) { api.Put(node(nil, nil)) },
		"zero": func(api *kubetest.Server) {
			api.Put(node(map[string]string{"a.example/gpu": "0"}, map[string]string{"a.example/gpu": "0"}))
		},
		"recreated":       func(api *kubetest.Server) { api.Delete("nodes/n1"); api.Put(node(nil, nil)) },
		"while API away":  func(api *kubetest.Server) { api.Stop(); api.Put(node(nil, nil)); api.Start() },
		"history is gone": func(api *kubetest.Server) { api.Stop(); api.Put(node(nil, nil)); api.Forget(); api.Start() },
	} {
		t.Run(name, func(t *testing.T) {
			api := kubetest.New(t)
			api.Put(node(nil, nil))
			p, _ := publish(t, api, newView(quantities{"a.example/gpu": 4}))
			untilShows(t, api, map[string]string{"a.example/gpu": "4/4"})
			untilSettled(t, p)
			drift(api)
			untilShows(t, api, map[string]string{"a.example/gpu": "4/4"})
			untilSettled(t, p)
			want := 2
			if name == "other numbers" {
				want = 3 // a number that is too high is lowered by way of nothing
			}
			if n := len(api.Patches()); n != want {
				t.Errorf("%d patches, want %d: %q", n, want, api.Patches())
			}
		})
	}
}

// A number is taken off the Node before a lower one is shown. What is shown then counts the pods that have been bound
// meanwhile. Raising it takes one step.
func TestANumberFalls(t *testing.T) {
	t.Parallel()
	set := func(n string) string {
		if n != "null" {
			n = strconv.Quote(n)
		}
		return `{"status":{"allocatable":{"a.example/gpu":` + n + `},"capacity":{"a.example/gpu":` + n + `}}}`
	}
	for name, test := range map[string]struct {
		meanwhile func(*view)
		ends      bool
		shows     int
	}{
		"no pod is bound":              {func(*view) {}, false, 2},
		"a pod is bound":               {func(v *view) { v.bind(quantities{"a.example/gpu": 3}) }, false, 3},
		"it is as it was":              {func(v *view) { v.set(quantities{"a.example/gpu": 4}) }, false, 4},
		"devmgrd ends":                 {func(*view) {}, true, 2},
		"devmgrd ends, a pod is bound": {func(v *view) { v.bind(quantities{"a.example/gpu": 3}) }, true, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				aNumberFalls(t, test.meanwhile, test.ends, test.shows, []string{set("4"), set("null"), set(fmt.Sprint(test.shows))})
			})
		})
	}
}

func aNumberFalls(t *testing.T, meanwhile func(*view), ends bool, finally int, patches []string) {
	api := kubetest.NewInMemory(t)
	api.Put(node(nil, nil))
	v := newView(quantities{"a.example/gpu": 4})
	ctx, stop := context.WithCancel(t.Context())
	p := nodestatus.New(nodestatus.Config{NodeName: "n1", Client: api.Client(), View: v, Notifier: v, Cordons: v, Components: v.components, Ignored: func(device.ResourceName) bool { return false }, KubeletDir: t.TempDir(), Log: kubetest.Log(t), Metrics: prometheus.NewRegistry()})
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	untilShows(t, api, map[string]string{"a.example/gpu": "4/4"})
	untilSettled(t, p)
	v.set(quantities{"a.example/gpu": 2})
	fell := time.Now()
	time.Sleep(4900 * time.Millisecond)
	untilShows(t, api, map[string]string{})
	if after := time.Since(fell).Round(100 * time.Millisecond); after != 5*time.Second {
		t.Errorf("the number is off the Node %v after less was wanted, want 5 s", after)
	}
	synctest.Wait()
	if n, shown := p.Shown("a.example/gpu"); n != 2 || !shown {
		t.Errorf("of the number that is off the Node Shown says %d, %v; want the one that follows", n, shown)
	}
	meanwhile(v)
	if ends {
		stop()
	}
	untilShows(t, api, map[string]string{"a.example/gpu": fmt.Sprintf("%d/%[1]d", finally)})
	synctest.Wait()
	if n, shown := p.Shown("a.example/gpu"); n != finally || !shown {
		t.Errorf("Shown says %d, %v; want %d", n, shown, finally)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	// The answer to the last patch may be lost when devmgrd ends, and the patch be sent again.
	if got := slices.Compact(api.Patches()); !slices.Equal(got, patches) {
		t.Errorf("patches %q, want %q", got, patches)
	}
	if len(v.alarms()) > 0 {
		t.Errorf("alarms about %q", v.alarms())
	}
}

func TestNodeIsNotThereYet(t *testing.T) {
	t.Parallel()
	api := kubetest.New(t)
	p, _ := publish(t, api, newView(quantities{"a.example/gpu": 4}))
	kubetest.Until(t, "the lack of a node is seen", func() bool {
		err := p.Check()
		return err != nil && strings.Contains(err.Error(), "no Node named n1")
	})
	if n := api.Requests("patch"); n != 0 {
		t.Errorf("%d patches of nothing", n)
	}
	api.Put(node(nil, nil))
	untilShows(t, api, map[string]string{"a.example/gpu": "4/4"})
}

func TestServerAwayAtStart(t *testing.T) {
	t.Parallel()
	api := kubetest.NewAway(t)
	api.Put(node(nil, nil))
	v := newView(quantities{"a.example/gpu": 4})
	p, _ := publish(t, api, v)
	kubetest.Until(t, "an attempt has failed", func() bool {
		err := p.Check()
		return err != nil && strings.Contains(err.Error(), "refused")
	})
	v.set(quantities{"a.example/gpu": 6})
	api.Start()
	untilShows(t, api, map[string]string{"a.example/gpu": "6/6"})
	untilSettled(t, p)
}

func TestFailingPatchesAreSpaced(t *testing.T) {
	t.Parallel()
	api := kubetest.New(t)
	api.Put(node(nil, nil))
	api.Refuse(func(verb, _ string) int {
		if verb == "patch" || verb == "conditions" {
			return http.StatusForbidden
		}
		return 0
	})
	start := time.Now()
	p, registry := publish(t, api, newView(quantities{"a.example/gpu": 4}))
	kubetest.Until(t, "some attempts", func() bool { return api.Requests("patch") >= 4 })
	if took := time.Since(start); took < (100+200+400)*time.Millisecond-200*time.Millisecond {
		t.Errorf("four attempts in %v", took)
	}
	if err := p.Check(); err == nil || !strings.Contains(err.Error(), "needs permission to patch nodes/status") {
		t.Errorf("Check: %v", err)
	}
	kubetest.Until(t, "the refused conditions are counted", func() bool {
		return gathered(t, registry)["devmgrd_node_patches_total{conditions,error}"] >= 1
	})
	api.Refuse(nil)
	untilShows(t, api, map[string]string{"a.example/gpu": "4/4"})
	untilSettled(t, p)
	if got := gathered(t, registry)["devmgrd_node_patches_total{capacity,error}"]; got < 4 {
		t.Errorf("%v errors counted", got)
	}
}

// afterPatches runs f, in a goroutine of its own, some time after each patch, until stop.
func afterPatches(api *kubetest.Server, f func()) (stop func()) {
	patched, ended := make(chan struct{}, 1), make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case <-patched:
				f()
			case <-ended:
				return
			}
		}
	})
	api.OnPatch(func() {
		loops.Signal(patched)
	})
	return func() { close(ended); running.Wait() }
}

// TestKubeletSetsAllocatable runs next to a writer that does what a kubelet does to resources it does not manage:
// allocatable becomes capacity, and what has no capacity goes. An equal pair needs no change.
func TestKubeletSetsAllocatable(t *testing.T) {
	t.Parallel()
	api := kubetest.New(t)
	api.Put(node(nil, nil))
	writes := 0 // by the goroutine of afterPatches
	stop := afterPatches(api, func() {
		n := api.Node("n1")
		if got := shows(api)["a.example/gpu"]; got != "" && got != "4/4" && got != "6/6" {
			n.Status.Allocatable = n.Status.Capacity
			api.Put(n)
			writes++
		}
	})
	v := newView(quantities{"a.example/gpu": 4})
	p, _ := publish(t, api, v)
	untilShows(t, api, map[string]string{"a.example/gpu": "4/4"})
	untilSettled(t, p)
	v.set(quantities{"a.example/gpu": 6})
	untilShows(t, api, map[string]string{"a.example/gpu": "6/6"})
	untilSettled(t, p)
	stop()
	if n := len(api.Patches()); writes != 0 || n != 2 {
		t.Errorf("the kubelet wrote %d times, we patched %d times", writes, n)
	}
}

// TestFight runs against a writer that overwrites each value.
func TestFight(t *testing.T) {
	t.Parallel()
	api := kubetest.New(t)
	api.Put(node(nil, nil))
	stop := afterPatches(api, func() {
		api.Put(node(map[string]string{"a.example/gpu": "0"}, map[string]string{"a.example/gpu": "0"}))
	})
	start := time.Now()
	v := newView(quantities{"a.example/gpu": 4})
	p, metrics := publish(t, api, v)
	kubetest.Until(t, "some rounds", func() bool { return api.Requests("patch") >= 6 })
	if took := time.Since(start); took < 5*200*time.Millisecond {
		t.Errorf("six patches in %v", took)
	}
	stop()
	untilShows(t, api, map[string]string{"a.example/gpu": "4/4"})
	// There is one event, and the alarm lasts for a while.
	if got, want := v.alarms(), []device.ResourceName{"a.example/gpu"}; !slices.Equal(got, want) {
		t.Errorf("alarms about %q, want %q", got, want)
	}
	if err := p.Check(); err == nil || !strings.Contains(err.Error(), "keeps changing the node's capacity of [a.example/gpu]") {
		t.Errorf("Check: %v", err)
	}
	if n := series(t, metrics, "devmgrd_node_capacity_contested"); n != 1 {
		t.Errorf("%d resources are contested in the metrics, want 1", n)
	}
}

// Another writer is found out by numbers above and below ours, and by taking ours off the Node.
func TestRival_AnyNumber_RaisesTheAlarm(t *testing.T) {
	t.Parallel()
	for name, theirs := range map[string]map[string]string{
		"lower":  {"a.example/gpu": "2"},
		"higher": {"a.example/gpu": "8"},
		"none":   nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := kubetest.NewInMemory(t)
				api.Put(node(nil, nil))
				v := newView(quantities{"a.example/gpu": 4})
				p, _ := publish(t, api, v)
				for i := range 8 {
					untilShows(t, api, map[string]string{"a.example/gpu": "4/4"})
					synctest.Wait()
					if alarmed := len(v.alarms()) > 0; alarmed != (i >= 3) {
						t.Errorf("after %d changes there is an alarm: %v", i, alarmed)
					}
					api.Put(node(theirs, theirs))
					time.Sleep(3 * time.Second)
				}
				if got, want := v.alarms(), []device.ResourceName{"a.example/gpu"}; !slices.Equal(got, want) {
					t.Errorf("alarms about %q, want %q", got, want)
				}
				if err := p.Check(); err == nil || !strings.Contains(err.Error(), "keeps changing the node's capacity of [a.example/gpu]") {
					t.Errorf("Check: %v", err)
				}
			})
		})
	}
}

func TestKeepsAFileInTheKubeletsDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "kubelet", "device-plugins")
	start := func() {
		p := nodestatus.New(nodestatus.Config{NodeName: "n1", Client: kubetest.New(t).Client(), View: newView(nil), Notifier: newView(nil), Cordons: newView(nil), Components: newView(nil).components, Ignored: func(device.ResourceName) bool { return false }, KubeletDir: dir,
			Log: kubetest.Log(t), Metrics: prometheus.NewRegistry()})
		ctx, stop := context.WithCancel(context.Background())
		stop()
		if err := p.Run(ctx); err != nil {
			t.Fatal(err)
		}
	}
	start()
	name := filepath.Join(dir, "devmgrd.txt")
	text, err := os.ReadFile(name)
	if err != nil || !strings.Contains(string(text), "kubelet") {
		t.Fatalf("got %q, %v", text, err)
	}
	if err := os.WriteFile(name, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	start() // what is there stays
	if text, _ := os.ReadFile(name); string(text) != "mine" {
		t.Errorf("the file became %q", text)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	start() // what cannot be done is no failure
}

// A resource that is in ResourceSlices still is not shown by the Node, unless the Node shows it already.
func TestSlicedResource_IsShownAfterItsSlices(t *testing.T) { synctest.Test(t, slicedResource) }

func slicedResource(t *testing.T) {
	api := kubetest.NewInMemory(t)
	api.Put(node(map[string]string{"a.example/nic": "1"}, map[string]string{"a.example/nic": "1"}))
	v := newView(quantities{"a.example/gpu": 4, "a.example/nic": 2})
	var gone atomic.Bool
	p := nodestatus.New(nodestatus.Config{
		NodeName: "n1", Client: api.Client(), View: v, Notifier: v, Cordons: v, Components: v.components, Ignored: func(device.ResourceName) bool { return false },
		Slices:     slicesOf{sliced: func(device.ResourceName) bool { return !gone.Load() }},
		KubeletDir: t.TempDir(), Log: kubetest.Log(t), Metrics: prometheus.NewRegistry(),
	})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	defer func() { stop(); <-done }()
	untilShows(t, api, map[string]string{"a.example/nic": "2/2"})
	time.Sleep(time.Minute)
	untilShows(t, api, map[string]string{"a.example/nic": "2/2"})
	if n := len(api.Patches()); n != 1 {
		t.Errorf("%d patches while the slices show the resource, want 1: %q", n, api.Patches())
	}
	gone.Store(true)
	time.Sleep(time.Second)
	synctest.Wait()
	if got := shows(api)["a.example/gpu"]; got != "4/4" {
		t.Errorf("a second after the slices are gone the Node shows %q", got)
	}
}

// A number that devmgrd finds on the Node does not rise at first, and falls as at any other time, also while the slices of a resource may be there.
func TestStart_NumberOnTheNode_RisesLater(t *testing.T) { synctest.Test(t, numberAtTheStart) }

func numberAtTheStart(t *testing.T) {
	api := kubetest.NewInMemory(t)
	quantity := map[string]string{"a.example/gpu": "2", "a.example/nic": "4"}
	api.Put(node(quantity, quantity))
	v, began := newView(quantities{"a.example/gpu": 4, "a.example/nic": 3}), time.Now()
	p := nodestatus.New(nodestatus.Config{
		NodeName: "n1", Began: began, Client: api.Client(), View: v, Notifier: v, Cordons: v, Components: v.components, Ignored: func(device.ResourceName) bool { return false },
		Slices:     slicesOf{sliced: func(device.ResourceName) bool { return time.Since(began) < 10*time.Second }},
		KubeletDir: t.TempDir(), Log: kubetest.Log(t), Metrics: prometheus.NewRegistry(),
	})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	defer func() { stop(); <-done }()
	for _, step := range []struct {
		at   time.Duration
		want map[string]string
	}{
		{4 * time.Second, map[string]string{"a.example/gpu": "2/2", "a.example/nic": "4/4"}},
		{7 * time.Second, map[string]string{"a.example/gpu": "2/2", "a.example/nic": "3/3"}},
		{29 * time.Second, map[string]string{"a.example/gpu": "2/2", "a.example/nic": "3/3"}},
		{31 * time.Second, map[string]string{"a.example/gpu": "4/4", "a.example/nic": "3/3"}},
	} {
		time.Sleep(time.Until(began.Add(step.at)))
		synctest.Wait()
		if got := shows(api); !maps.Equal(got, step.want) {
			t.Errorf("after %s the Node shows %v, want %v", step.at, got, step.want)
		}
	}
}

// A plugin that lists one device more five times a second has the Node patched as often at first, and then not more often than the kubelet would. The
// last number is shown all the same.
func TestPatches_PluginChangesItsListAllTheTime_FewInTheLongRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewInMemory(t)
		api.Put(node(nil, nil))
		v := newView(quantities{"a.example/gpu": 1})
		publish(t, api, v)
		untilShows(t, api, map[string]string{"a.example/gpu": "1/1"})
		time.Sleep(10 * time.Minute)
		n := 1
		minute := func() int {
			before := len(api.Patches())
			for range 300 {
				n++
				v.set(quantities{"a.example/gpu": n})
				time.Sleep(200 * time.Millisecond)
			}
			return len(api.Patches()) - before
		}
		if first := minute(); first < 60 || first > 80 {
			t.Errorf("%d patches in the first minute", first)
		}
		if second := minute(); second > 12 {
			t.Errorf("%d patches in the second minute", second)
		}
		time.Sleep(time.Minute)
		untilShows(t, api, map[string]string{"a.example/gpu": fmt.Sprintf("%d/%d", n, n)})
	})
}
