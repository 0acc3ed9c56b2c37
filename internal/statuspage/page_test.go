package statuspage_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"golang.org/x/net/html"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/admin"
	"github.com/devmgrd/devmgrd/internal/allocator/allocatortest"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/statuspage"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

const gpu = "vendor.example/gpu"

// A harness answers as a test says, and counts how often it is asked.
type harness struct {
	mu      sync.Mutex
	status  *adminv1.GetStatusResponse
	plugins []*adminv1.Plugin
	strays  []*adminv1.PodContainer
	devices []*adminv1.Device
	each    iter.Seq[*adminv1.Device] // not nil: yielded for each resource, in place of devices
	holds   []*adminv1.Assignment
	spans   []*adminv1.Span
	explain func(name string) *adminv1.ExplainResponse
	trouble error // of GetStatus
	history error
	wait    chan struct{} // ListPlugins waits for it
	moved   chan struct{}

	asked atomic.Int64
}

func newDesk() *harness {
	return &harness{moved: make(chan struct{}), status: &adminv1.GetStatusResponse{Version: "v1", Node: "worker-7", Started: before(26 * time.Hour)}}
}

func before(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(time.Now().Add(-d)) }

// move changes something, and says so.
func (d *harness) move(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
	close(d.moved)
	d.moved = make(chan struct{})
}

func (d *harness) GetStatus(context.Context, *adminv1.GetStatusRequest) (*adminv1.GetStatusResponse, error) {
	d.asked.Add(1)
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.status, d.trouble
}

func (d *harness) ListPlugins(context.Context, *adminv1.ListPluginsRequest) (*adminv1.ListPluginsResponse, error) {
	if d.wait != nil {
		<-d.wait
	}
	return &adminv1.ListPluginsResponse{Plugins: d.plugins, NotRedirected: d.strays}, nil
}

func (d *harness) EachDevice(resource string) iter.Seq[*adminv1.Device] {
	if d.each != nil {
		return d.each
	}
	return slices.Values(slices.DeleteFunc(slices.Clone(d.devices), func(one *adminv1.Device) bool { return one.ResourceName != resource }))
}

func (d *harness) ListAssignments(context.Context, *adminv1.ListAssignmentsRequest) (*adminv1.ListAssignmentsResponse, error) {
	return &adminv1.ListAssignmentsResponse{Assignments: d.holds}, nil
}

func (d *harness) ListHistory(_ context.Context, r *adminv1.ListHistoryRequest) (*adminv1.ListHistoryResponse, error) {
	return &adminv1.ListHistoryResponse{Spans: d.spans}, d.history
}

func (d *harness) Explain(_ context.Context, r *adminv1.ExplainRequest) (*adminv1.ExplainResponse, error) {
	return d.explain(r.Name), nil
}

func (d *harness) Updated() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.moved
}

// add adds a resource with its devices.
func (d *harness) add(r *adminv1.Resource, devices ...*adminv1.Device) {
	for _, one := range devices {
		one.ResourceName = r.Name
	}
	d.status.Resources = append(d.status.Resources, r)
	d.plugins = append(d.plugins, &adminv1.Plugin{ResourceName: r.Name, State: r.Plugin, Endpoint: "x.sock", Pod: &adminv1.PluginPod{Namespace: "system", Name: "plugin"}, Devices: int32(len(devices)), Healthy: int32(len(devices)),
		Since: before(26 * time.Hour)})
	d.devices = append(d.devices, devices...)
}

// serve serves a page as the daemon does, until the test ends or end is called.
func serve(t *testing.T, from statuspage.Source, change ...func(*http.Server)) (address string, end func()) {
	t.Helper()
	mux := http.NewServeMux()
	statuspage.New(statuspage.Config{Source: from, Log: slog.New(slog.DiscardHandler)}).Mount(mux)
	ctx, cancel := context.WithCancel(context.Background())
	server := httptest.NewUnstartedServer(mux)
	server.Config.ReadTimeout, server.Config.WriteTimeout = 10*time.Second, 30*time.Second // as in the daemon
	server.Config.BaseContext = func(net.Listener) context.Context { return ctx }
	for _, f := range change {
		f(server.Config)
	}
	server.Start()
	end = sync.OnceFunc(func() { cancel(); server.Close() })
	t.Cleanup(end)
	return server.Listener.Addr().String(), end
}

func ask(t *testing.T, method, address, path, host string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = host
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer, string(body)
}

// A node is an element of a document.
type node struct{ *html.Node }

// view fetches the page and reads it as a browser does.
func rendering(t *testing.T, address string) node {
	t.Helper()
	answer, body := ask(t, http.MethodGet, address, "/", "")
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", answer.Status, body)
	}
	doc, err := html.Parse(strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return node{doc}
}

func (n node) attr(name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

// all returns the elements below for which the condition holds.
func (n node) all(is func(node) bool) (found []node) {
	for d := range n.Descendants() {
		if d.Type == html.ElementNode && is(node{d}) {
			found = append(found, node{d})
		}
	}
	return found
}

func (n node) tags(name string) []node { return n.all(func(n node) bool { return n.Data == name }) }

// id returns the element of that id.
func (n node) id(t *testing.T, id string) node {
	t.Helper()
	found := n.all(func(n node) bool { return n.attr("id") == id })
	if len(found) != 1 {
		t.Fatalf("%d elements have the id %q", len(found), id)
	}
	return found[0]
}

// text is all text below, with single spaces, but for style and script.
func (n node) text() string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode && d.Parent.Data != "style" && d.Parent.Data != "script" {
			b.WriteString(d.Data + " ")
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

func (n node) says(t *testing.T, texts ...string) {
	t.Helper()
	for _, want := range texts {
		if !strings.Contains(n.text(), want) {
			t.Errorf("it does not say %q:\n%s", want, n.text())
		}
	}
}

// cells are the devices.
func (n node) cells() []node {
	return n.all(func(n node) bool {
		return n.Data == "li" && strings.HasPrefix(n.attr("class"), "s-") && n.FirstChild.NextSibling != nil && len(n.tags("details")) == 1
	})
}

// All that the answers say is on the page, with the same words.
func TestPage(t *testing.T) {
	t.Parallel()
	d := newDesk()
	d.status.Components = []*adminv1.Component{{Name: "store", Ready: true}, {Name: "nri", Problem: "not connected to container runtime at /run/nri.sock"}}
	d.status.Waiting = []*adminv1.Waiting{{Namespace: "ml", Name: "next", Reason: "NotEnoughDevices"}}
	d.explain = func(name string) *adminv1.ExplainResponse {
		return &adminv1.ExplainResponse{Namespace: "ml", Name: name, Uid: "u3", Verdict: "waiting", Reason: "NotEnoughDevices", Since: before(95 * time.Second),
			Message: "vendor.example/gpu: 4 wanted, 1 of 7 free", Ends: "a device is released", Retry: before(0)}
	}
	one := &adminv1.Holder{Namespace: "ml", Name: "training-0", Uid: "u1", Containers: []string{"main"}}
	d.add(&adminv1.Resource{Name: gpu, Plugin: "serving", NodeCapacity: 5, TargetCapacity: 6, Free: 1, Assigned: 2, Unhealthy: 1, Stale: 1, Cordoned: 1, Suspended: 1, Refused: 1, Withheld: 1, Quarantined: 1},
		&adminv1.Device{Id: "a", State: "free", Healthy: true, Listed: true, NumaNodes: []int32{0}},
		&adminv1.Device{Id: "b", State: "assigned", Listed: true, NumaNodes: []int32{1}, Holder: one, Failures: 2, Failed: before(time.Minute)},
		&adminv1.Device{Id: "c", State: "assigned", Healthy: true, Holder: &adminv1.Holder{Uid: "u9"}, Cordon: &adminv1.DeviceCordon{}},
		&adminv1.Device{Id: "d", State: "unhealthy", Listed: true, NumaNodes: []int32{0, 1}},
		&adminv1.Device{Id: "e", State: "stale", Healthy: true, Listed: true, NumaNodes: []int32{0}},
		&adminv1.Device{Id: "f", State: "cordoned", Healthy: true, Listed: true, NumaNodes: []int32{0}, Cordon: &adminv1.DeviceCordon{Reason: "fan noise", Since: before(50 * time.Hour)}},
		&adminv1.Device{Id: "j", State: "refused", Healthy: true, Listed: true, NumaNodes: []int32{0}, Cordon: &adminv1.DeviceCordon{Reason: "refused 3 times in a row", Suspended: true}, Refusals: 3, Refusal: "no"},
		&adminv1.Device{Id: "i", State: "suspended", Healthy: true, Listed: true, NumaNodes: []int32{0}, Cordon: &adminv1.DeviceCordon{Reason: "suspended by devmgrd until noon", Suspended: true}},
		&adminv1.Device{Id: "g", State: "quarantined", Healthy: true, Listed: true, NumaNodes: []int32{1}},
		&adminv1.Device{Id: "h", State: "withheld", Healthy: true, Listed: true, NumaNodes: []int32{1}})
	d.add(&adminv1.Resource{Name: "vendor.example/nic", Plugin: "stale", NodeCapacity: 2, TargetCapacity: 1})
	nic := d.plugins[1]
	nic.LastError, nic.LastErrorTime = "connection refused", before(3*time.Second)
	d.strays = []*adminv1.PodContainer{{Namespace: "kube-system", Pod: "plugin", Container: "main"}}
	d.holds = []*adminv1.Assignment{
		{Namespace: "ml", Pod: "training-0", Uid: "u1", Container: "main", ResourceName: gpu, DeviceIds: []string{"b"}},
		{Namespace: "ml", Pod: "old", Uid: "u2", Container: "main", ResourceName: gpu, DeviceIds: []string{"z"}, Ended: true},
	}
	d.spans = []*adminv1.Span{
		{Uid: "u1", Container: "main", ResourceName: gpu, From: before(3 * time.Hour), FromApproximate: true},
		{Uid: "u1", Container: "main", ResourceName: gpu, From: before(9 * time.Hour), Until: before(time.Hour)},
	}
	d.status.Limits = []*adminv1.Limit{
		{Release: "containerd 2.1.9", Text: "containers that are granted x are refused"}, {Release: "containerd 2.1.9", Text: "others\x1b are not"},
	}
	address, _ := serve(t, d)
	doc := rendering(t, address)
	doc.says(t, "worker-7", "devmgrd v1, running for 1d02h")
	doc.id(t, "daemon").says(t, "With containerd 2.1.9 containers that are granted x are refused.", "With containerd 2.1.9 others␛ are not.", "store ok", "nri not connected to container runtime at /run/nri.sock")
	doc.id(t, "matters").says(t, "8 problems need attention", "nri is not ready", "the plugin of vendor.example/nic is stale", "container main of kube-system/plugin was created while devmgrd was away",
		"1 device of vendor.example/gpu refused by the plugin", "1 device of vendor.example/gpu withheld", "1 device of vendor.example/gpu quarantined", "2 devices of vendor.example/gpu unhealthy, 1 of them in use", "1 pod waits for devices")
	doc.id(t, "waiting").says(t, "ml/next NotEnoughDevices for 1m35s", "Why vendor.example/gpu: 4 wanted, 1 of 7 free", "Ends when a device is released", "or earlier after a change")
	doc.id(t, "holds").says(t, "ml/training-0 main vendor.example/gpu b 3h00m or longer", "ml/old ended; its containers may still run main vendor.example/gpu z –")
	doc.id(t, "plugins").says(t, "vendor.example/gpu serving 1d02h 10 10 system/plugin x.sock –", "vendor.example/nic stale 1d02h 0 0 system/plugin x.sock it is away", "Last error, 3s ago: connection refused")
	devices := doc.id(t, "devices")
	devices.says(t, "1 free 2 assigned 1 unhealthy 1 stale 1 cordoned 1 suspended 1 refused 1 withheld 1 quarantined node capacity 5, rising to 6", "node capacity 2, falling to 1")
	var places []string
	for _, h := range devices.tags("h4") {
		places = append(places, h.text())
	}
	if got := strings.Join(places, ", "); got != "NUMA node 0, NUMA nodes 0, 1, NUMA node 1, no NUMA node" {
		t.Errorf("places are %s", got)
	}
	var titles []string
	signs := map[string]string{}
	for _, c := range doc.cells() {
		state := strings.Fields(strings.TrimPrefix(c.attr("class"), "s-"))[0]
		summary := c.tags("summary")[0]
		titles = append(titles, summary.attr("title"))
		signs[state] = summary.tags("use")[0].attr("href")
		if !strings.Contains(summary.text(), state) {
			t.Errorf("%q does not say in words that it is %s", summary.text(), state)
		}
	}
	for _, want := range []string{"a is free", "b is assigned, unhealthy, held by ml/training-0:main", "c is assigned, cordoned, its plugin does not list it, held by a pod with UID u9",
		"d is unhealthy", "e is stale", "f is cordoned, fan noise", "i is suspended, suspended by devmgrd until noon", "j is refused, refused 3 times in a row", "g is quarantined", "h is withheld"} {
		if !strings.Contains(strings.Join(titles, "\n")+"\n", want+"\n") {
			t.Errorf("no device has the title %q: %q", want, titles)
		}
	}
	different := map[string]bool{}
	for state, sign := range signs {
		different[sign] = true
		doc.id(t, strings.TrimPrefix(sign, "#"))
		if sign != "#sign-"+state {
			t.Errorf("%s has the sign %s", state, sign)
		}
	}
	if len(different) != 9 {
		t.Errorf("nine states have the signs %v", signs)
	}
	devices.says(t, "Cordoned for 2d02h : fan noise", "Failures 2 in the last hour, last 1m00s ago", "Holder ml/training-0:main", "Holder none")
}

// After the installation the page says what to do; one of a node where all is well says that.
func TestNothingYet(t *testing.T) {
	t.Parallel()
	d := newDesk()
	address, _ := serve(t, d)
	doc := rendering(t, address)
	doc.says(t, "All is well", "No plugin has registered yet:", "Deploy the device plugin", "recreate its pod", "No pod waits.", "No container has devices.")
	if n := len(doc.cells()); n != 0 {
		t.Errorf("%d devices are shown", n)
	}
	if refresh := doc.all(func(n node) bool { return n.attr("http-equiv") == "refresh" }); len(refresh) > 0 {
		t.Error("a browser with a script reloads the page") // a parser with scripting has text in noscript
	}
}

// What plugins and pods are called stays text, whatever it is.
func TestHostileText(t *testing.T) {
	t.Parallel()
	const evil = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[2J\x00\u202egpj\u200b\xff{{.}}</style>javascript:"
	d := newDesk()
	d.status.Node, d.status.Version = evil, evil
	d.status.Components = []*adminv1.Component{{Name: evil, Problem: evil}}
	d.status.Waiting = []*adminv1.Waiting{{Namespace: evil, Name: evil}}
	d.explain = func(string) *adminv1.ExplainResponse {
		return &adminv1.ExplainResponse{Namespace: evil, Name: evil, Verdict: "waiting", Reason: evil, Message: evil, Ends: evil}
	}
	d.add(&adminv1.Resource{Name: evil, Plugin: evil}, &adminv1.Device{Id: evil, State: evil, Holder: &adminv1.Holder{Namespace: evil, Name: evil, Containers: []string{evil}},
		Cordon: &adminv1.DeviceCordon{Reason: evil}}, &adminv1.Device{Id: strings.Repeat("long", 1000), State: "free", Holder: &adminv1.Holder{Uid: evil}})
	d.plugins[0].Endpoint = evil
	d.holds = []*adminv1.Assignment{{Namespace: evil, Pod: evil, Container: evil, ResourceName: evil, DeviceIds: []string{evil}}}
	address, _ := serve(t, d)
	doc := rendering(t, address)
	_, body := ask(t, http.MethodGet, address, "/", "")
	for _, wrong := range []string{"\x1b", "\x00", "\u202e", "\u200b", "\xff"} {
		if strings.Contains(body, wrong) {
			t.Errorf("%q is on the page", wrong)
		}
	}
	if strings.Contains(body, strings.Repeat("long", 100)) {
		t.Error("a very long ID is there as a whole")
	}
	doc.id(t, "holds").says(t, "<script>alert(1)</script>", "␛[2J␀⟨U+202E⟩gpj⟨U+200B⟩�{{.}}</style>javascript:")
	if n := len(doc.tags("script")); n != 1 {
		t.Errorf("there are %d scripts", n)
	}
	for _, n := range doc.all(func(node) bool { return true }) {
		for _, a := range n.Attr {
			switch {
			case n.Data == "img", strings.HasPrefix(a.Key, "on"), a.Key == "style":
				t.Errorf("<%s %s=%q>", n.Data, a.Key, a.Val)
			case a.Key == "href" && !strings.HasPrefix(a.Val, "#") && a.Val != "metrics" && !strings.HasPrefix(a.Val, "data:image/svg+xml,"):
				t.Errorf("a link leads to %q", a.Val)
			}
		}
	}
}

// Ids are there once each: they say which element of an older page is which.
func TestIDs(t *testing.T) {
	t.Parallel()
	d := newDesk()
	for _, r := range []string{"vendor.example/a", "vendor.example/b"} {
		d.add(&adminv1.Resource{Name: r, Plugin: "serving"}, &adminv1.Device{Id: "0", State: "free", NumaNodes: []int32{0}}, &adminv1.Device{Id: "1", State: "free"})
	}
	address, _ := serve(t, d)
	seen := map[string]bool{}
	for _, n := range rendering(t, address).all(func(n node) bool { return n.attr("id") != "" }) {
		if seen[n.attr("id")] {
			t.Errorf("two elements have the id %s", n.attr("id"))
		}
		seen[n.attr("id")] = true
	}
}

// A plugin lists very many devices. The page has few of them at a time.
func TestPage_VeryManyDevices_FewAreKept(t *testing.T) {
	t.Parallel()
	const n = 20_000
	alive := make(chan int, 1)
	d := newDesk()
	d.add(&adminv1.Resource{Name: "v.example/1", Plugin: "serving", Unhealthy: n})
	d.each = func(yield func(*adminv1.Device) bool) {
		var all []weak.Pointer[adminv1.Device]
		for i := range n {
			one := &adminv1.Device{Id: fmt.Sprintf("%05d", i), State: "unhealthy", Listed: true, NumaNodes: []int32{int32(i)}}
			all = append(all, weak.Make(one))
			if !yield(one) {
				return
			}
		}
		runtime.GC()
		alive <- len(slices.DeleteFunc(all, func(p weak.Pointer[adminv1.Device]) bool { return p.Value() == nil }))
	}
	address, _ := serve(t, d)
	doc := rendering(t, address)
	if kept := <-alive; kept > 2*512 {
		t.Errorf("%d of %d devices are kept", kept, n)
	}
	doc.id(t, "devices").says(t, "The table counts all 20000", "except for 19488 of them", "NUMA node 63 0 0 1", "other places 0 0 19936")
	if n := len(doc.cells()); n != 512 {
		t.Errorf("%d devices are shown", n)
	}
}

// However much there is, the page stays small, and says what it leaves out and where that is.
func TestLimits(t *testing.T) {
	t.Parallel()
	d := newDesk()
	many := func(n int, state func(int) string) []*adminv1.Device {
		all := make([]*adminv1.Device, n)
		for i := range all {
			all[i] = &adminv1.Device{Id: fmt.Sprintf("%05d", i), State: state(i), Healthy: true, Listed: true, NumaNodes: []int32{int32(i % 2)}}
		}
		return all
	}
	d.add(&adminv1.Resource{Name: "v.example/1", Plugin: "serving", Free: 4990, Cordoned: 10}, many(5000, func(i int) string {
		if i%500 == 0 {
			return "cordoned"
		}
		return "free"
	})...)
	d.add(&adminv1.Resource{Name: "v.example/2", Plugin: "stale", Stale: 1000}, many(1000, func(int) string { return "stale" })...)
	for i := range 5 {
		d.add(&adminv1.Resource{Name: fmt.Sprintf("v.example/%d", i+3), Plugin: "serving", Free: 512}, many(512, func(int) string { return "free" })...)
	}
	ids := make([]string, 100)
	for i := range ids {
		ids[i] = fmt.Sprintf("%05d", i)
	}
	for i := range 700 {
		d.holds = append(d.holds, &adminv1.Assignment{Uid: fmt.Sprint(i), ResourceName: "v.example/1", DeviceIds: ids})
		d.status.Waiting = append(d.status.Waiting, &adminv1.Waiting{Name: fmt.Sprint(i)})
	}
	var explained atomic.Int64
	d.explain = func(name string) *adminv1.ExplainResponse {
		explained.Add(1)
		return &adminv1.ExplainResponse{Name: name, Uid: name, Verdict: "waiting"}
	}
	address, _ := serve(t, d)
	doc := rendering(t, address)
	_, body := ask(t, http.MethodGet, address, "/", "")
	if len(body) > 6<<20 {
		t.Errorf("the page has %d bytes", len(body))
	}
	// Of the first those that are cordoned; 512 of the second; all of the third to the fourth, and none of what is plain after that.
	if n := len(doc.cells()); n != 10+512+2*512 {
		t.Errorf("%d devices are shown", n)
	}
	doc.id(t, "devices").says(t, "The table counts all 5000. Listed below it are devices with a note or a state other than free and assigned", "devmgrd devices v.example/1 shows each",
		"NUMA node 0 2490 0 0 0 10 0 0 0 0 0 0 2500", "except for 488 of them", "NUMA node 1 0 0 0 500 0 0 0 0 0 0 0 500")
	doc.id(t, "holds").says(t, "200 more rows: devmgrd assignments", "and 36 more: devmgrd assignments")
	doc.id(t, "waiting").says(t, "600 more pods wait: devmgrd status")
	if n := explained.Load(); n > 200 { // one page, or two
		t.Errorf("%d pods are explained", n)
	}
}

// The policy lets through the one style and the one script that are there, and nothing else.
func TestPolicy(t *testing.T) {
	t.Parallel()
	address, _ := serve(t, newDesk())
	answer, _ := ask(t, http.MethodGet, address, "/", "")
	doc, policy := rendering(t, address), answer.Header.Get("Content-Security-Policy")
	for _, kind := range []string{"style", "script"} {
		all := doc.tags(kind)
		if len(all) != 1 {
			t.Fatalf("%d of %s", len(all), kind)
		}
		h := sha256.Sum256([]byte(all[0].FirstChild.Data))
		if want := kind + "-src 'sha256-" + base64.StdEncoding.EncodeToString(h[:]) + "';"; !strings.Contains(policy, want) {
			t.Errorf("%q is not in %q", want, policy)
		}
	}
	for _, want := range []string{"default-src 'none';", "connect-src 'self';", "frame-ancestors 'none'", "base-uri 'none';", "form-action 'none';"} {
		if !strings.Contains(policy, want) {
			t.Errorf("%q is not in %q", want, policy)
		}
	}
	for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Content-Type": "text/html; charset=utf-8", "Set-Cookie": ""} {
		if got := answer.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// Nothing but GET and HEAD, of the two paths.
func TestWhoMayAskWhat(t *testing.T) {
	t.Parallel()
	address, _ := serve(t, newDesk())
	for _, c := range []struct {
		method, path, host string
		status             int
	}{
		{"GET", "/", "", 200},
		{"HEAD", "/", "", 200},
		{"HEAD", "/events", "", 200},
		{"POST", "/", "", 405},
		{"DELETE", "/events", "", 405},
		{"GET", "/index.html", "", 404},
		{"GET", "/events/", "", 404},
		{"GET", "/favicon.ico", "", 404},
	} {
		answer, body := ask(t, c.method, address, c.path, c.host)
		if answer.StatusCode != c.status || c.method == "HEAD" && body != "" {
			t.Errorf("%s %s of %s: %s", c.method, c.path, c.host, answer.Status)
		}
	}
}

// What cannot be had is said, and is there again later. Without the history the page only lacks since when devices are held.
func TestTrouble(t *testing.T) {
	t.Parallel()
	d := newDesk()
	d.trouble = errors.New("out of order")
	d.history = errors.New("the disk")
	address, _ := serve(t, d)
	if answer, body := ask(t, http.MethodGet, address, "/", ""); answer.StatusCode != http.StatusInternalServerError || !strings.Contains(body, "log") {
		t.Errorf("%s: %s", answer.Status, body)
	}
	d.move(func() { d.trouble = nil })
	rendering(t, address).says(t, "All is well")
}

// However many look at once, and again within a second, the page is made once.
func TestOneForAll(t *testing.T) {
	t.Parallel()
	d := newDesk()
	d.wait = make(chan struct{})
	address, _ := serve(t, d)
	var all sync.WaitGroup
	bodies := make(chan string, 100)
	for range 100 {
		all.Go(func() {
			answer, err := http.Get("http://" + address + "/")
			if err != nil {
				t.Error(err)
				return
			}
			defer answer.Body.Close()
			body, err := io.ReadAll(answer.Body)
			if err != nil {
				t.Error(err)
			}
			bodies <- string(body)
		})
	}
	plugintest.Eventually(t, "a request comes", func() bool { return d.asked.Load() > 0 })
	close(d.wait)
	all.Wait()
	if n := d.asked.Load(); n > 2 { // a second may pass in between on a machine that does other things
		t.Errorf("the page was made %d times", n)
	}
	for range 99 {
		if a, b := <-bodies, <-bodies; !strings.Contains(a, "worker-7") || !strings.Contains(b, "worker-7") {
			t.Fatal("a client got another page")
		}
		if len(bodies) < 2 {
			break
		}
	}
}

// On a busy machine the page takes long to make. The server's limit on writing is for slow clients and does not run meanwhile:
// neither for the request that makes the page nor for the one that waits for it.
func TestSlowMaking(t *testing.T) {
	t.Parallel()
	d := newDesk()
	d.wait = make(chan struct{})
	var asked atomic.Int32
	address, _ := serve(t, d, func(s *http.Server) {
		s.WriteTimeout = time.Nanosecond // it has passed when the page is made
		page := s.Handler
		s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { asked.Add(1); page.ServeHTTP(w, r) })
	})
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			answer, err := http.Get("http://" + address + "/")
			if err != nil {
				t.Error(err)
				return
			}
			answer.Body.Close()
			if answer.StatusCode != http.StatusOK {
				t.Error(answer.Status)
			}
		})
	}
	plugintest.Eventually(t, "the page is being made, and asked for twice", func() bool { return d.asked.Load() > 0 && asked.Load() == 2 })
	close(d.wait)
	both.Wait()
}

// events opens a stream; next returns the next tag.
func events(t *testing.T, address string) (next func() (string, error), end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { answer.Body.Close() })
	if answer.StatusCode != http.StatusOK {
		return nil, cancel
	}
	lines := bufio.NewReader(answer.Body)
	return func() (string, error) {
		for {
			line, err := lines.ReadString('\n')
			if tag, is := strings.CutPrefix(line, "data: "); is || err != nil {
				return strings.TrimSpace(tag), err
			}
		}
	}, cancel
}

// A stream tells the tag of the page that there is, another one when something has moved, once a second at most, and again when
// nothing has: also after the time that an answer which ends may take.
func TestStream(t *testing.T) {
	t.Parallel()
	d := newDesk()
	address, _ := serve(t, d, func(s *http.Server) { s.WriteTimeout = 3 * time.Second }) // shorter than a beat
	began := time.Now()
	next, _ := events(t, address)
	first, err := next()
	if err != nil || first == "" || first != rendering(t, address).tags("html")[0].attr("data-tag") {
		t.Fatalf("%q, %v", first, err)
	}
	for range 100 {
		d.move(func() {
			d.status = &adminv1.GetStatusResponse{Node: "worker-7", Version: "v2", Started: d.status.Started}
		})
	}
	second, err := next()
	for err == nil && second == first { // a beat, if making the page takes long
		second, err = next()
	}
	if took := time.Since(began); err != nil || second == first || took < time.Second {
		t.Fatalf("%q after %q, after %s, %v", second, first, took, err)
	}
	if n, most := d.asked.Load(), int64(time.Since(began)/time.Second)+1; n > most {
		t.Errorf("the page was made %d times, want %d at most", n, most)
	}
	rendering(t, address).says(t, "devmgrd v2")
	if third, err := next(); err != nil || third != second { // the beat
		t.Errorf("%q after %q, %v", third, second, err)
	}
}

// Streams have a limit; who ends one makes room; and all of them end with the daemon, which does not wait for them.
func TestStreams(t *testing.T) {
	t.Parallel()
	address, end := serve(t, newDesk())
	var open []func() (string, error)
	var leave func()
	for range 32 {
		next, cancel := events(t, address)
		if next == nil {
			t.Fatalf("the stream after %d is refused", len(open))
		}
		if _, err := next(); err != nil {
			t.Fatal(err)
		}
		open, leave = append(open, next), cancel
	}
	answer, body := ask(t, http.MethodGet, address, "/events", "")
	if answer.StatusCode != http.StatusServiceUnavailable || answer.Header.Get("Retry-After") == "" {
		t.Errorf("one stream too many: %s %s", answer.Status, body)
	}
	leave()
	open = open[:31]
	plugintest.Eventually(t, "there is room again", func() bool { next, _ := events(t, address); return next != nil })
	began := time.Now()
	end()
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the end took %s", took)
	}
	for _, next := range open {
		for {
			if _, err := next(); err != nil {
				break
			}
		}
	}
}

type none struct{}

func (none) Registrations() map[device.ResourceName]device.Registration { return nil }
func (none) Spans(time.Time) ([]device.Span, error)                     { return nil, nil }
func (none) Seen() []device.PluginGrants                                { return nil }
func (none) SaveActions(...device.Action) error                         { return nil }
func (none) Actions(time.Time) ([]device.Action, error)                 { return nil, nil }
func (none) WriteTo(io.Writer) (int64, error)                           { return 0, nil }

// The commands' own answers are on the page, of a real allocator.
func TestAnswers(t *testing.T) {
	t.Parallel()
	ledger := allocatortest.Start(t, filepath.Join(t.TempDir(), "state"))
	office := admin.New(admin.Config{
		Socket: "unused", Version: "v1", Node: "worker-7", View: ledger, Allocator: ledger, Plugins: none{}, Rules: none{}, History: none{}, Actions: none{}, StateFile: none{}, HistoryFile: none{},
		Components: func() []device.Component { return []device.Component{{Name: "store"}} }, Log: slog.New(slog.DiscardHandler),
	})
	address, _ := serve(t, office)
	next, _ := events(t, address)
	if _, err := next(); err != nil {
		t.Fatal(err)
	}
	ledger.Plugins.Stock(gpu, 1)
	ledger.Settle(t, allocatortest.Pod("has", gpu, 1))
	ledger.Bind(allocatortest.Pod("waits", gpu, 1))
	plugintest.Eventually(t, "one pod waits", func() bool { return ledger.PodByUID("uid-waits").Wait.Reason == device.NotEnoughDevices })
	plugintest.Eventually(t, "the page says so", func() bool {
		if _, err := next(); err != nil {
			t.Fatal(err)
		}
		return strings.Contains(rendering(t, address).text(), "ns/waits")
	})
	doc := rendering(t, address)
	doc.id(t, "waiting").says(t, "ns/waits NotEnoughDevices for", "vendor.example/gpu: 1 wanted, 0 of 1 free",
		"a device of vendor.example/gpu is released by another pod, uncordoned, or newly listed")
	doc.id(t, "holds").says(t, "ns/has main vendor.example/gpu d000")
	doc.id(t, "devices").says(t, "d000 assigned has")
}

// A page of eight devices, of a hundred, and of more than are shown.
func BenchmarkPage(b *testing.B) {
	for _, n := range []int{8, 100, 5000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			d := newDesk()
			var all []*adminv1.Device
			for i := range n {
				all = append(all, &adminv1.Device{Id: fmt.Sprint(i), State: "assigned", Healthy: true, Listed: true, NumaNodes: []int32{int32(i % 2)},
					Holder: &adminv1.Holder{Namespace: "ml", Name: "training-0", Containers: []string{"main"}}})
			}
			d.add(&adminv1.Resource{Name: gpu, Plugin: "serving"}, all...)
			for b.Loop() {
				if body, err := statuspage.Render(d); err != nil || !bytes.Contains(body, []byte("worker-7")) {
					b.Fatal(err)
				}
			}
		})
	}
}
