package dra

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
)

const nic device.ResourceName = "a.example/nic"

// A world is what Claims need: an API server with claims, devices, and a sink.
type world struct {
	t  testing.TB
	mu sync.Mutex
	// claims are the API server's, by namespace/name. away: it does not answer.
	claims  map[string]*resourceapi.ResourceClaim
	away    bool
	reads   int
	walks   int // of all lists
	devices map[device.ResourceName][]device.ID
	lists   uint64
	updated chan struct{}
	node    chan struct{}
	unread  bool   // the Node
	answers func() // before the API server does; nil: at once
	asked   func() // when the plugins' lists are read; nil: nothing
	needs   map[device.ResourceName]bool
	bound   map[device.PodUID]device.PodDemand
}

func newWorld(t testing.TB) (*world, *Claims) {
	w := &world{t: t, claims: map[string]*resourceapi.ResourceClaim{}, devices: map[device.ResourceName][]device.ID{}, updated: make(chan struct{}), node: make(chan struct{}, 1),
		needs: map[device.ResourceName]bool{}, bound: map[device.PodUID]device.PodDemand{}}
	scheme := runtime.NewScheme()
	if err := resourceapi.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	version := resourceapi.SchemeGroupVersion
	client, err := rest.RESTClientForConfigAndClient(&rest.Config{Host: "http://api", QPS: -1, APIPath: "/apis", ContentConfig: rest.ContentConfig{
		GroupVersion: &version, NegotiatedSerializer: serializer.NewCodecFactory(scheme).WithoutConversion()}}, &http.Client{Transport: w})
	if err != nil {
		t.Fatal(err)
	}
	return w, NewClaims(ClaimsConfig{
		NodeName: "n1", Client: client, Sink: w, Inventory: w, Plugins: w, Log: slog.New(slog.DiscardHandler),
		Pool: func(r device.ResourceName, _ device.ID) string { return PoolName("n1", r, 0) },
		NeedsClaim: func(r device.ResourceName, _ time.Time) (needs, known bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.needs[r], !w.unread
		},
		NodeChanged: w.node,
	})
}

func (w *world) RoundTrip(r *http.Request) (*http.Response, error) {
	if w.answers != nil {
		w.answers()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reads++
	if w.away {
		return nil, fmt.Errorf("connection refused")
	}
	parts := strings.Split(r.URL.Path, "/") // /apis/resource.k8s.io/v1/namespaces/NS/resourceclaims/NAME
	status, body := http.StatusNotFound, any(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonNotFound, Code: 404})
	if c := w.claims[parts[5]+"/"+parts[7]]; c != nil {
		status, body = http.StatusOK, c
	}
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(text)), Request: r}, nil
}

// allocate has the API server show a claim that is reserved for pod p, with these results: REQUEST=RESOURCE:ID, or driver/REQUEST=... of another driver.
func (w *world) allocate(name string, results ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := &resourceapi.ResourceClaim{TypeMeta: metav1.TypeMeta{Kind: "ResourceClaim", APIVersion: "resource.k8s.io/v1"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for _, text := range results {
		request, chosen, _ := strings.Cut(text, "=")
		r, id, _ := strings.Cut(chosen, ":")
		one := resourceapi.DeviceRequestAllocationResult{Request: request, Driver: Driver, Pool: PoolName("n1", device.ResourceName(r), 0), Device: Name(device.ID(id))}
		if rest, foreign := strings.CutPrefix(request, "other:"); foreign {
			one.Request, one.Driver = rest, "other.example"
		}
		if rest, admin := strings.CutPrefix(request, "admin:"); admin {
			yes := true
			one.Request, one.AdminAccess = rest, &yes
		}
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, one)
	}
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "p"}}
	w.claims["default/"+name] = c
}

func (w *world) list(r device.ResourceName, ids ...device.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.devices[r] = ids
	w.lists++
	close(w.updated)
	w.updated = make(chan struct{})
}

func (w *world) Offers() map[device.ResourceName]device.Offer {
	if w.asked != nil {
		w.asked()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.walks++
	all := map[device.ResourceName]device.Offer{}
	for r, ids := range w.devices {
		all[r] = device.Offer{Inventory: device.Inventory{Resource: r, Devices: lists.Map(ids, func(id device.ID) device.Device { return device.Device{ID: id, Healthy: true} })}}
	}
	return all
}

func (w *world) Revision() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return 1 + w.lists
}

func (w *world) Devices(r device.ResourceName) (all []device.DeviceStatus, known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range w.devices[r] {
		all = append(all, device.DeviceStatus{Resource: r, Device: device.Device{ID: id, Healthy: true}, Listed: true})
	}
	return all, w.devices[r] != nil
}

func (w *world) Updated() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.updated
}

func (w *world) Bind(d device.PodDemand) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bound[d.Pod.UID] = d
}

func (w *world) Drop(uid device.PodUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.bound, uid)
}

func (w *world) Replace(all []device.PodDemand) {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.bound)
	for _, d := range all {
		w.bound[d.Pod.UID] = d
	}
}

// has returns what a pod was last bound with: CONTAINER RESOURCE:IDS, or the reason to wait.
func (w *world) has(uid device.PodUID) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	d, bound := w.bound[uid]
	if !bound {
		return "unbound"
	}
	var all []string
	for _, one := range d.Demands {
		text := one.Container.Name
		for _, r := range []device.ResourceName{gpu, nic} {
			switch ids := one.Fixed[r]; {
			case ids != nil:
				for _, uid := range one.Claimed[r] {
					if !strings.HasPrefix(string(uid), "uid-") {
						w.t.Errorf("claim %q", uid)
					}
				}
				text += fmt.Sprintf(" %s:%v", r[len("a.example/"):], ids)
				if one.Wants[r] != len(ids) {
					text += fmt.Sprintf(" wants %d", one.Wants[r])
				}
				if n := len(one.Claimed[r]); n > 0 {
					text += fmt.Sprintf(" uncounted %d", n)
				}
			case one.Wants[r] > 0:
				text += fmt.Sprintf(" %s=%d", r[len("a.example/"):], one.Wants[r])
			}
		}
		if one.Mistake != "" {
			text += " " + string(one.Blocked)
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

func (w *world) expect(uid device.PodUID, want string) {
	w.t.Helper()
	time.Sleep(lookPause)
	synctest.Wait()
	if got := w.has(uid); got != want {
		w.t.Errorf("pod %s: %q, want %q", uid, got, want)
	}
}

// demand returns a pod whose containers use claims: CONTAINER CLAIM/REQUEST, with =RESOURCE for one that the scheduler has made.
func demand(uid device.PodUID, containers ...string) device.PodDemand {
	d := device.PodDemand{Pod: device.Pod{UID: uid, Namespace: "default", Name: string(uid)}}
	for _, text := range containers {
		words := strings.Fields(text)
		one := device.Demand{Container: device.Container{Pod: uid, Name: words[0]}, Kind: device.App}
		for _, w := range words[1:] {
			if r, n, counted := strings.Cut(w, "#"); counted {
				one.Wants = map[device.ResourceName]int{device.ResourceName("a.example/" + r): len(n)}
				continue
			}
			w, r, _ := strings.Cut(w, "=")
			use := device.ClaimUse{}
			if r != "" {
				use.Resource = device.ResourceName("a.example/" + r)
			}
			use.Claim, use.Request, _ = strings.Cut(w, "/")
			one.Claims = append(one.Claims, use)
		}
		d.Demands = append(d.Demands, one)
	}
	return d
}

// runClaims runs a test with Claims at work.
func runClaims(t *testing.T, test func(*world, *Claims)) {
	synctest.Test(t, func(t *testing.T) {
		w, c := newWorld(t)
		stop := make(chan struct{})
		ctx := t.Context()
		go func() { defer close(stop); _ = c.Run(ctx) }()
		test(w, c)
	})
}

func TestClaims_Resolve(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		claims map[string][]string
		pod    []string
		want   string
	}{
		"by request":                        {map[string][]string{"c": {"a=a.example/gpu:2", "b=a.example/gpu:1"}}, []string{"main c/b"}, "main gpu:[1] uncounted 1"},
		"the whole claim, in natural order": {map[string][]string{"c": {"a=a.example/gpu:10", "b=a.example/gpu:2"}}, []string{"main c"}, "main gpu:[2 10] uncounted 2"},
		"an alternative of a request":       {map[string][]string{"c": {"a/small=a.example/gpu:3"}}, []string{"main c/a"}, "main gpu:[3] uncounted 1"},
		"not of a longer name":              {map[string][]string{"c": {"ab=a.example/gpu:3"}}, []string{"main c/a"}, ""},
		"made by the scheduler":             {map[string][]string{"c": {"r0=a.example/gpu:3"}}, []string{"main c/r0=gpu"}, "main gpu:[3]"},
		"by the class's implicit name":      {map[string][]string{"c": {"r0=a.example/gpu:3"}}, []string{"main c/r0"}, "main gpu:[3] uncounted 1"},
		"one request of both kinds":         {map[string][]string{"c": {"r0=a.example/gpu:3"}, "d": {"x=a.example/gpu:4"}}, []string{"main c/r0=gpu d"}, "main gpu:[3 4] uncounted 1"},
		"two requests of one container":     {map[string][]string{"c": {"r0=a.example/gpu:3", "r1=a.example/gpu:1"}}, []string{"main c/r0=gpu c/r1=gpu"}, "main gpu:[1 3]"},
		"twice the same device":             {map[string][]string{"c": {"a=a.example/gpu:3"}}, []string{"main c c/a"}, "main gpu:[3] uncounted 1"},
		"two containers":                    {map[string][]string{"c": {"a=a.example/gpu:3", "b=a.example/nic:x"}}, []string{"main c/a", "side c"}, "main gpu:[3] uncounted 1, side gpu:[3] uncounted 1 nic:[x] uncounted 1"},
		"of another driver":                 {map[string][]string{"c": {"other:a=a.example/gpu:3"}}, []string{"main c"}, ""},
		"partly of another driver":          {map[string][]string{"c": {"other:a=a.example/gpu:3", "b=a.example/gpu:2"}}, []string{"main c"}, "main gpu:[2] uncounted 1"},
		"admin access":                      {map[string][]string{"c": {"admin:a=a.example/gpu:3"}}, []string{"main c"}, "main NoClaim"},
		"an unknown device":                 {map[string][]string{"c": {"a=a.example/gpu:77"}}, []string{"main c"}, "main DeviceGone"},
		"an unknown pool":                   {map[string][]string{"c": {"a=a.example/fpga:3"}}, []string{"main c"}, "main DeviceGone"},
		"a claim that does not exist":       {nil, []string{"main c"}, "main ClaimUnknown"},
		"requested, and by a claim":         {map[string][]string{"c": {"a=a.example/gpu:3"}}, []string{"main gpu#1 c"}, "main gpu:[3] uncounted 1 NoClaim"},
		"a container without a claim":       {map[string][]string{"c": {"a=a.example/gpu:3"}}, []string{"main nic#1", "side c"}, "main nic=1, side gpu:[3] uncounted 1"},
	} {
		t.Run(name, func(t *testing.T) {
			runClaims(t, func(w *world, claims *Claims) {
				w.list(gpu, "1", "2", "3", "4", "10")
				w.list(nic, "x")
				for name, results := range c.claims {
					w.allocate(name, results...)
				}
				claims.Bind(demand("p", c.pod...))
				w.expect("p", c.want)
			})
		})
	}
}

// A plugin that changes its list all the time costs ten looks a second at most.
func TestClaims_PluginChangesItsListAllTheTime_LooksPause(t *testing.T) {
	t.Parallel()
	runClaims(t, func(w *world, c *Claims) {
		w.allocate("c", "a=a.example/gpu:2")
		c.Bind(demand("p", "main c"))
		w.expect("p", "main DeviceGone")
		w.walks = 0
		for range 1000 {
			w.list(gpu, "1")
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		if w.walks < 50 || w.walks > 110 {
			t.Errorf("%d looks at all lists within 10 s", w.walks)
		}
		w.list(gpu, "1", "2")
		w.expect("p", "main gpu:[2] uncounted 1")
	})
}

// A claim's users are looked up by the requests for which the scheduler has chosen devices: a pod may name thousands of others.
func TestClaims_Users_AreFoundByRequest(t *testing.T) {
	t.Parallel()
	c := claim{results: []result{{request: "a/small"}, {request: "b"}}}
	for request, want := range map[string]bool{"": true, "a": true, "a/small": true, "b": true, "a/large": false, "c": false, "a/": false} {
		by := map[string]device.Container{request: {Pod: "p", Name: "main"}}
		if _, uses := c.user(by); uses != want || c.has(request) != want {
			t.Errorf("%q: found %v, has %v, want %v", request, uses, c.has(request), want)
		}
	}
	if _, uses := (claim{}).user(map[string]device.Container{"": {}}); uses {
		t.Error("a claim without devices has a user")
	}
}

// A claim costs little, and any number of containers may use it: their uses have a limit, of a pod and in sum.
func TestClaims_ManyContainersUseAClaim_PodsWait(t *testing.T) {
	t.Parallel()
	runClaims(t, func(w *world, c *Claims) {
		var ids []device.ID
		var results []string
		for i := range 32 {
			id := fmt.Sprint(i)
			ids, results = append(ids, device.ID(id)), append(results, "a=a.example/gpu:"+id)
		}
		w.list(gpu, ids...)
		w.allocate("c", results...)
		many := func(uid device.PodUID, n int) device.PodDemand {
			var containers []string
			for i := range n {
				containers = append(containers, fmt.Sprintf("c%d c", i))
			}
			return demand(uid, containers...)
		}
		state := func(uid device.PodUID) string {
			time.Sleep(lookPause)
			synctest.Wait()
			w.mu.Lock()
			defer w.mu.Unlock()
			d := w.bound[uid]
			uses := 0
			for _, one := range d.Demands {
				uses += len(one.Fixed[gpu])
			}
			return fmt.Sprintf("%s %d of %d", d.Demands[0].Blocked, uses, len(d.Demands))
		}
		var pods []device.PodUID
		for i := range maxUses/maxPodUses + 1 {
			pods = append(pods, device.PodUID(fmt.Sprint("p", i)))
		}
		w.reserve("c", append(pods, "large", "small", "other")...)
		w.claims["other/c"] = w.claims["default/c"]
		c.Bind(many("large", 33))
		if got := state("large"); got != "PodTooLarge 0 of 33" {
			t.Errorf("33 containers with 32 devices: %s", got)
		}
		for _, uid := range pods {
			c.Bind(many(uid, 32))
			time.Sleep(time.Second)
		}
		last := pods[len(pods)-1]
		if got := state(pods[0]); got != " 1024 of 32" {
			t.Errorf("the first pod: %s", got)
		}
		if got := state(last); got != "PodTooLarge 0 of 32" {
			t.Errorf("the last pod: %s", got)
		}
		c.Bind(many("small", 4))
		if got := state("small"); got != " 128 of 4" {
			t.Errorf("a small pod: %s", got)
		}
		other := many("other", 32)
		other.Pod.Namespace = "other"
		c.Bind(other)
		if got := state("other"); got != " 1024 of 32" {
			t.Errorf("a large pod of another namespace: %s", got)
		}
		c.Drop("other")
		all := []device.PodDemand{}
		for _, uid := range pods {
			all = append(all, many(uid, 32))
		}
		c.Replace(all) // without the large one
		if got := state(pods[0]) + state(last); got != " 1024 of 32PodTooLarge 0 of 32" {
			t.Errorf("after a list: %s", got)
		}
		c.Drop(pods[0])
		w.list(nic, "x") // the allocator has freed devices
		if got := state(last); got != " 1024 of 32" {
			t.Errorf("the last pod, after the end of another: %s", got)
		}
		for _, uid := range pods {
			c.Drop(uid)
		}
		if c.uses != 0 {
			t.Errorf("%d uses without pods", c.uses)
		}
	})
}

func TestClaims_APIServerIsAway_PodWaitsAndEachClaimIsReadOnce(t *testing.T) {
	t.Parallel()
	runClaims(t, func(w *world, c *Claims) {
		w.list(gpu, "1")
		w.away = true
		w.allocate("c", "a=a.example/gpu:1")
		c.Bind(demand("p", "main c"))
		w.expect("p", "main ClaimUnknown")
		time.Sleep(time.Minute)
		synctest.Wait()
		if w.reads > 20 {
			t.Errorf("%d reads within a minute", w.reads)
		}
		w.mu.Lock()
		w.away, w.reads = false, 0
		w.mu.Unlock()
		time.Sleep(lastRead)
		w.expect("p", "main gpu:[1] uncounted 1")
		for range 10 { // the pod's status changes
			c.Bind(demand("p", "main c"))
		}
		c.Replace([]device.PodDemand{demand("p", "main c")})
		w.expect("p", "main gpu:[1] uncounted 1")
		if w.reads != 1 {
			t.Errorf("read %d times", w.reads)
		}
		c.Drop("p")
		w.expect("p", "unbound")
		if len(c.pods) > 0 {
			t.Error("the pod is remembered")
		}
	})
}

func TestClaims_PluginListsTheDeviceLater_PodGetsIt(t *testing.T) {
	t.Parallel()
	runClaims(t, func(w *world, c *Claims) {
		w.allocate("c", "a=a.example/gpu:1")
		c.Bind(demand("p", "main c"))
		w.expect("p", "main DeviceGone")
		w.list(gpu, "2")
		w.expect("p", "main DeviceGone")
		w.list(gpu, "1", "2")
		w.expect("p", "main gpu:[1] uncounted 1")
		w.list(gpu) // a demand does not lose its devices again: the allocator waits for them
		c.Bind(demand("p", "main c"))
		w.expect("p", "main gpu:[1] uncounted 1")
	})
}

func TestClaims_RequestWithoutClaim_IsRefused(t *testing.T) {
	t.Parallel()
	runClaims(t, func(w *world, c *Claims) {
		w.list(gpu, "1")
		c.Bind(demand("before", "main gpu#1"))
		w.expect("before", "main gpu=1")
		w.needs[gpu] = true
		c.Bind(demand("p", "main gpu#1"))
		w.expect("p", "main gpu=1 NoClaim")
		c.Bind(demand("q", "main nic#11"))
		w.expect("q", "main nic=2")
	})
}

// A pod that was bound past the scheduler names the claim of another pod, or thousands that do not exist.
func TestClaims_NotReservedForThePod_PodWaits(t *testing.T) {
	t.Parallel()
	runClaims(t, func(w *world, c *Claims) {
		w.list(gpu, "1")
		w.allocate("c", "a=a.example/gpu:1")
		c.Bind(demand("q", "main c"))
		w.expect("q", "main ClaimUnknown")
		w.reserve("c", "p", "q")
		time.Sleep(lastRead)
		w.expect("q", "main gpu:[1] uncounted 1")
		w.mu.Lock()
		w.reads = 0
		w.mu.Unlock()
		container := "main"
		for i := range 1000 {
			container += fmt.Sprint(" none", i)
		}
		c.Bind(demand("p", container))
		w.expect("p", "main ClaimUnknown")
		if w.reads != 1 {
			t.Errorf("%d reads at once", w.reads)
		}
	})
}

// A claim is reserved for the PodGroup of its pods.
func TestClaims_ReservedForThePodGroup_PodsHaveIt(t *testing.T) {
	t.Parallel()
	runClaims(t, func(w *world, c *Claims) {
		w.list(gpu, "1")
		w.allocate("c", "a=a.example/gpu:1")
		w.claims["default/c"].Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "g", UID: "u"}}
		for uid, group := range map[device.PodUID]string{"p": "g", "q": "other", "r": ""} {
			d := demand(uid, "main c")
			d.Group = group
			c.Bind(d)
		}
		w.expect("p", "main gpu:[1] uncounted 1")
		w.expect("q", "main ClaimUnknown")
		w.expect("r", "main ClaimUnknown")
		got, err := c.read(context.Background(), "default", "c")
		if err != nil {
			t.Fatal(err)
		}
		if users, unused, _ := c.users("default", "c", got); len(users) != 1 || users[0].Pod != "p" || unused != (device.Pod{}) {
			t.Errorf("used by %v, not by %v", users, unused)
		}
	})
}

// The claim of a pod that waits is deleted past its finalizer, and created again.
func TestClaims_CreatedAgain_PodHasTheNewDevices(t *testing.T) {
	t.Parallel()
	runClaims(t, func(w *world, c *Claims) {
		w.list(gpu, "1", "2")
		w.allocate("c", "a=a.example/gpu:1")
		c.Bind(demand("p", "main c"))
		w.expect("p", "main gpu:[1] uncounted 1")
		w.allocate("c", "a=a.example/gpu:2")
		got, err := c.read(context.Background(), "default", "c") // the test's own context is outside the bubble
		if err != nil {
			t.Fatal(err)
		}
		c.renew("other", "c", got)
		w.expect("p", "main gpu:[1] uncounted 1")
		c.renew("default", "c", got)
		w.expect("p", "main gpu:[2] uncounted 1")
	})
}

// The Node decides whether a request without a claim is served. It is read later than the pod, and changes.
func TestClaims_NodeIsReadLater_PodWaitsForIt(t *testing.T) {
	t.Parallel()
	runClaims(t, func(w *world, c *Claims) {
		w.list(gpu, "1")
		w.unread = true
		c.Bind(demand("p", "main gpu#1"))
		w.expect("p", "main gpu=1 Allocating")
		for _, needs := range []bool{true, false} {
			w.mu.Lock()
			w.unread, w.needs[gpu] = false, needs
			w.mu.Unlock()
			w.node <- struct{}{}
			w.expect("p", map[bool]string{true: "main gpu=1 NoClaim", false: "main gpu=1"}[needs])
		}
	})
}

// A claim that is still to be made from a template blocks its container.
func TestClaims_NotMadeYet_PodWaits(t *testing.T) {
	t.Parallel()
	runClaims(t, func(w *world, c *Claims) {
		d := demand("p", "main")
		d.Demands[0].Claims = []device.ClaimUse{{}}
		c.Bind(d)
		w.expect("p", "main ClaimUnknown")
		if w.reads > 0 {
			t.Errorf("%d reads", w.reads)
		}
	})
}

func TestClaims_NamesOfPools(t *testing.T) {
	t.Parallel()
	w, c := newWorld(t)
	w.devices = map[device.ResourceName][]device.ID{gpu: {"GPU-1"}, "a.example/GPU_big": {"GPU-1"}}
	for _, r := range []device.ResourceName{gpu, "a.example/GPU_big"} {
		if got := c.index.find([]result{{pool: PoolName("n1", r, 3), device: Name("GPU-1")}}); got[0] != (device.Key{Resource: r, ID: "GPU-1"}) {
			t.Errorf("%s: %v", r, got)
		}
	}
	for _, pool := range []string{"", "0", "n1/a.example/gpu", "n2/a.example/gpu/0", "n1/a.example/gpu/00", "n1/a.example/gpu/-0"} {
		if got := c.index.find([]result{{pool: pool, device: Name("GPU-1")}}); got[0] != (device.Key{}) {
			t.Errorf("pool %q is found: %v", pool, got)
		}
	}
}

// crowd binds that many pods of another namespace. Each names a claim that does not exist.
func crowd(c *Claims, from, n int) {
	for i := range n {
		d := demand(device.PodUID(fmt.Sprint("crowd", from+i)), "main none")
		d.Pod.Namespace = "crowd"
		c.Bind(d)
	}
}

func (w *world) readSoFar() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.reads
}

// Many pods name claims that do not exist. They delay the claim of a pod of another namespace by one read, and cost less as time goes by.
func TestClaims_ManyPodsWithoutTheirClaims_OthersAreReadSoon(t *testing.T) {
	t.Parallel()
	const pods = 100
	runClaims(t, func(w *world, c *Claims) {
		w.answers = func() { time.Sleep(20 * time.Millisecond) }
		defer func() { // the last reads end
			c.Replace(nil)
			time.Sleep(10 * time.Second)
		}()
		w.list(gpu, "1")
		w.allocate("c", "a=a.example/gpu:1")
		for i := range 3 { // new ones, in a queue of old ones
			crowd(c, i*pods, pods)
			before := w.readSoFar()
			c.Bind(demand("p", "main c"))
			for w.has("p") != "main gpu:[1] uncounted 1" {
				time.Sleep(time.Millisecond)
				synctest.Wait()
				if w.readSoFar()-before > 3 {
					t.Fatalf("the claim is not read before %d others", w.readSoFar()-before)
				}
			}
			c.Drop("p")
			time.Sleep(time.Second)
		}
		time.Sleep(5 * time.Minute)
		before := w.readSoFar()
		time.Sleep(time.Minute)
		if n := w.readSoFar() - before; n > 3*3*pods {
			t.Errorf("%d reads within a minute, for %d pods", n, 3*pods)
		}
	})
}

// In one namespace, a pod that has just been bound comes before those whose claims could not be read.
func TestClaims_NewPodOfTheSameNamespace_ComesFirst(t *testing.T) {
	t.Parallel()
	_, c := newWorld(t)
	old := time.Now()
	for i := range 10 {
		d := demand(device.PodUID(fmt.Sprint("old", i)), "main none")
		c.Bind(d)
		c.pods[d.Pod.UID].due = old.Add(-time.Duration(i) * time.Second)
	}
	c.Bind(demand("new", "main c"))
	for _, want := range []device.PodUID{"new", "old9", "old8"} {
		pod, names, _ := c.turn(old)
		if pod.Pod.UID != want || len(names) != 1 {
			t.Fatalf("the turn is that of %s, with %v, and not of %s", pod.Pod.UID, names, want)
		}
		c.Drop(want)
	}
}

// The names of the claims are known once a pod is bound: to look whose turn it is costs the same for any number of names.
func TestClaims_ManyNames_TurnDoesNotReadThem(t *testing.T) {
	_, c := newWorld(t)
	for i := range 100 {
		container := "main"
		for k := range 64 {
			container += fmt.Sprint(" none", k)
		}
		c.Bind(demand(device.PodUID(fmt.Sprint("p", i)), container, strings.Replace(container, "main", "side", 1)))
	}
	for _, p := range c.pods {
		if len(p.unread) != 64 {
			t.Fatalf("%d names", len(p.unread))
		}
		p.due = time.Now().Add(time.Hour)
	}
	if n := testing.AllocsPerRun(10, func() { c.turn(time.Now()) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// The kubelet asks for a claim whose next read is far away: it exists by now.
func TestClaims_KubeletAsksFirst_PodHasItsDevicesAtOnce(t *testing.T) {
	t.Parallel()
	runClaims(t, func(w *world, c *Claims) {
		w.list(gpu, "1")
		c.Bind(demand("p", "main c"))
		time.Sleep(10 * time.Minute)
		w.expect("p", "main ClaimUnknown")
		w.allocate("c", "a=a.example/gpu:1")
		got, err := c.read(context.Background(), "default", "c")
		if err != nil {
			t.Fatal(err)
		}
		c.renew("default", "c", got)
		w.expect("p", "main gpu:[1] uncounted 1")
		w.allocate("unused", "a=a.example/gpu:1")
		c.renew("default", "unused", got)
		if len(c.known()) != 1 {
			t.Errorf("claims %v are known", c.known())
		}
	})
}

// A tenant's claims have long texts in an annotation, and are reserved for many pods, which all name all of them: memory has each claim once, and neither text nor pods.
func TestClaims_ManyPodsNameTheSame_AreKeptOnce(t *testing.T) {
	t.Parallel()
	const pods, claims = 8, 64
	runClaims(t, func(w *world, c *Claims) {
		w.list(gpu, "1", "2")
		var uids []device.PodUID
		for i := range pods {
			uids = append(uids, device.PodUID(fmt.Sprint("p", i)))
		}
		names := ""
		for i := range claims {
			name := fmt.Sprint("c", i)
			w.allocate(name, "a=a.example/gpu:1")
			if i%2 == 0 {
				w.allocate(name) // of another driver
			}
			w.claims["default/"+name].Annotations = map[string]string{resourceapi.PodResourceClaimAnnotation: strings.Repeat("x", 4<<10)}
			w.reserve(name, uids...)
			names += " " + name
		}
		for _, uid := range uids {
			c.Bind(demand(uid, "main"+names))
		}
		w.expect("p0", "main gpu:[1] uncounted 1")
		got, err := c.read(context.Background(), "default", "c1")
		if err != nil {
			t.Fatal(err)
		}
		c.renew("default", "c1", got)
		first, bytes := map[*result]bool{}, 0
		for _, p := range c.pods {
			for _, one := range p.claims {
				bytes += len(one.podClaim)
				for _, uid := range one.reserved {
					bytes += len(uid)
				}
				if len(one.results) > 0 {
					first[&one.results[0]] = true
				}
			}
		}
		if bytes > 0 || len(first) != claims/2 {
			t.Errorf("%d pods keep %d copies of the results of %d claims, and %d bytes of the authors' texts and of other pods", pods, len(first), claims/2, bytes)
		}
		for _, one := range c.known() {
			if users, _, _ := c.users("default", "c1", one.claim); len(users) != pods {
				t.Fatalf("%d pods of %d are known to use a claim", len(users), pods)
			}
		}
	})
}

// The names of all devices of a plugin are computed to find one. The watch of the pods and hooks wait for the lock of the claims, and not for that.
func TestClaims_DevicesAreLookedFor_LockIsFree(t *testing.T) {
	t.Parallel()
	runClaims(t, func(w *world, c *Claims) {
		asked := 0
		w.asked = func() {
			asked++
			c.Changed() // takes the lock
		}
		step := func(what, pod string) {
			t.Helper()
			w.expect("p", pod)
			if asked == 0 {
				t.Errorf("%s: nothing was looked for", what)
			}
			asked = 0
		}
		w.allocate("c", "a=a.example/gpu:1")
		c.Bind(demand("p", "main c"))
		step("read", "main DeviceGone")
		w.list(gpu, "1", "2")
		step("listed", "main gpu:[1] uncounted 1")
		w.allocate("c", "a=a.example/gpu:2")
		got, err := c.read(context.Background(), "default", "c")
		if err != nil {
			t.Fatal(err)
		}
		c.renew("default", "c", got)
		step("chosen again", "main gpu:[2] uncounted 1")
		if is := c.health(); len(is) != 1 || is[result{pool: PoolName("n1", gpu, 0), device: "2"}] == (reported{}) {
			t.Errorf("the kubelet hears of %v: the pod has device 2 and no other", is)
		}
	})
}

// The kubelet has a claim prepared once, for the containers of all pods: also of those requests that only a later pod uses, and whose devices are listed later.
func TestClaims_RequestThatNoContainerUses_DeviceIsFound(t *testing.T) {
	t.Parallel()
	runClaims(t, func(w *world, c *Claims) {
		w.list(gpu, "1")
		w.allocate("c", "a=a.example/gpu:1", "b=a.example/nic:x")
		c.Bind(demand("p", "main c/a"))
		w.expect("p", "main gpu:[1] uncounted 1")
		got, err := c.read(context.Background(), "default", "c")
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []device.ResourceName{"", nic, nic} {
			time.Sleep(lookPause)
			synctest.Wait()
			if all := c.devices("default", "c", got); len(all) != 2 || all[0].Resource != gpu || all[1].Resource != want {
				t.Errorf("devices %v, want one of %q", all, want)
			}
			switch want {
			case "":
				w.list(nic, "x")
			default:
				w.list(nic) // the plugin starts again: the pod has its device all the same
			}
		}
	})
}
