package browser

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
)

// A node as people have it: all of it is on the page, it can be read by light and by dark, and on a telephone.
func TestNode(t *testing.T) {
	address := serve(t, aNode(t))
	tb := open(t, 1280, 900)
	tb.do(chromedp.Navigate("http://" + address + "/"))
	tb.until("the stream tells", `document.querySelector("#live").innerText === "Live"`)
	tb.says("worker-7", "devmgrd v1.0.0, running for 1d02h", "3 problems need attention", "the plugin of vendor.example/fpga is stale",
		"1 device of vendor.example/gpu unhealthy", "2 pods wait for devices", "plugin stale", "6 assigned", "fan noise, ticket 4711", "NUMA node 1",
		"0000:af:00.1", "ml/training-1", "NotEnoughDevices", "for 12m4", "vendor.example/gpu: 2 wanted, 0 of 8 free, 1 cordoned", "is released by another pod",
		"video/transcode-0", "PluginStale", "for 1m3", "search/embed-7d9c8-x2kqp", "3d02h", "it is away for less than plugins.gracePeriod")
	counts := value[map[string]int](tb, `Object.groupBy ? Object.fromEntries(Object.entries(Object.groupBy(document.querySelectorAll(".tiles > li"),
		li => li.className.split(" ")[0])).map(([k, v]) => [k, v.length])) : {}`)
	if fmt.Sprint(counts) != "map[s-assigned:9 s-cordoned:1 s-free:1 s-stale:2 s-unhealthy:1]" {
		t.Errorf("the devices are %v", counts)
	}
	tb.do(chromedp.Click(chromedp.CSS(`#holds a[href^="#d"]`)))
	if open := value[string](tb, `[...document.querySelectorAll("details[open]")].map((d) => d.innerText).join()`); !strings.Contains(open, "ml/notebook-anna:notebook") {
		t.Errorf("a link to a device opens %q", open)
	}
	value[bool](tb, `for (const d of document.querySelectorAll("details")) d.open = true; location.hash = ""; history.replaceState(null, "", "/"); scrollTo(0, 0); true`)
	for _, name := range []string{"light", "dark"} {
		tb.scheme(name)
		tb.readable(name)
	}
	value[bool](tb, `for (const d of document.querySelectorAll("details")) d.open = false; true`)
	tb.fits(1280)
	tb.scheme("light")
	keep(t, "status-page-light.png", tb.picture())
	tb.scheme("dark")
	keep(t, "status-page-dark.png", tb.picture())
	tb.scheme("light")
	tb.do(chromedp.EmulateViewport(360, 1180, chromedp.EmulateScale(2), chromedp.EmulateMobile))
	tb.fits(360)
	keep(t, "status-page-narrow.png", get(tb, chromedp.CaptureScreenshot()))
	debug(t, "narrow-full.png", tb.picture())
	value[bool](tb, `for (const d of document.querySelectorAll("details")) d.open = true; true`)
	tb.fits(360)
	tb.readable("narrow")
	debug(t, "narrow-open.png", tb.picture())
	tb.do(chromedp.EmulateViewport(1280, 900))
	debug(t, "open.png", tb.picture())
	call(tb, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Media: "print"})
	tb.readable("print")
	debug(t, "print.png", tb.picture())
	if value[bool](tb, `document.querySelector("#live").checkVisibility()`) {
		t.Error("paper is live")
	}
	tb.clean(address)
}

// Many devices, with hostile names, and no devices at all: the page fits a telephone and a wall, and can be read.
func TestExtremes(t *testing.T) {
	for name, n := range map[string]int{"empty": 0, "cells": 200, "figures": 5000} {
		t.Run(name, func(t *testing.T) {
			address := serve(t, many{n: n})
			tb := open(t, 1280, 900)
			tb.do(chromedp.Navigate("http://" + address + "/"))
			tb.until("the stream tells", `document.querySelector("#live").innerText === "Live"`)
			tb.fits(1280)
			tb.readable("light")
			tb.scheme("dark")
			tb.readable("dark")
			debug(t, name+".png", tb.picture())
			if n > 0 { // one by one with the keyboard alone
				value[bool](tb, `document.querySelector("summary").focus(); true`)
				tb.do(chromedp.KeyEvent("\r"))
				tb.until("the first device's details are open", `document.querySelector("details").open`)
				tb.says("Holder")
				debug(t, name+"-open.png", tb.picture())
			}
			tb.do(chromedp.EmulateViewport(360, 780, chromedp.EmulateMobile))
			tb.fits(360)
			debug(t, name+"-narrow.png", tb.picture())
			tb.clean(address)
		})
	}
}

// Without its script the page is all there, and reloads.
func TestWithoutScript(t *testing.T) {
	address := serve(t, aNode(t))
	tb := open(t, 1280, 900)
	call(tb, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	tb.do(chromedp.Navigate("http://" + address + "/"))
	html := get(tb, chromedp.OuterHTML(chromedp.CSS("html")))
	for _, want := range []string{"This page reloads", "training-0", "12m4"} {
		if !strings.Contains(html, want) {
			t.Errorf("%q is not there", want)
		}
	}
	if strings.Contains(html, ">Live<") {
		t.Error("the script has run")
	}
	tb.do(chromedp.Click(chromedp.CSS("summary"))) // details need none
	tb.do(chromedp.WaitVisible(chromedp.CSS("details[open] dl")))
	tb.wait("it has reloaded itself", func() bool { return tb.loads() > 1 })
	tb.clean(address)
}

// A browser that gets no stream asks from time to time, and does not say that anything is lost.
func TestWithoutStream(t *testing.T) {
	source := aNode(t)
	inside := http.NewServeMux()
	mount(inside, source)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/events" {
			http.Error(w, "too many", http.StatusServiceUnavailable)
			return
		}
		inside.ServeHTTP(w, r)
	}))
	defer server.Close()
	tb := open(t, 1280, 900)
	tb.do(chromedp.Navigate(server.URL))
	cordon(t, source, "GPU-0")
	tb.until("the cordon is seen", `document.body.innerText.includes("assigned, cordoned")`)
	if at := value[string](tb, `document.querySelector("#live").innerText`); at != "Live" {
		t.Errorf("it says %q", at)
	}
}

// A page in the background has no stream; when it is looked at again it is up to date at once.
func TestBackground(t *testing.T) {
	source := aNode(t)
	inside := http.NewServeMux()
	mount(inside, source)
	var streams atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/events" {
			streams.Add(1)
			defer streams.Add(-1)
		}
		inside.ServeHTTP(w, r)
	}))
	defer server.Close()
	defer server.CloseClientConnections()
	tb := open(t, 1280, 900)
	tb.do(chromedp.Navigate(server.URL))
	tb.wait("there is a stream", func() bool { return streams.Load() == 1 })
	hide := func(hidden bool) {
		value[bool](tb, fmt.Sprintf(`Object.defineProperty(document, "hidden", {value: %v, configurable: true}); document.dispatchEvent(new Event("visibilitychange"))`, hidden))
	}
	hide(true)
	tb.wait("there is none", func() bool { return streams.Load() == 0 })
	cordon(t, source, "GPU-0")
	hide(false)
	tb.until("the cordon is seen", `document.body.innerText.includes("assigned, cordoned")`)
	tb.wait("there is a stream again", func() bool { return streams.Load() == 1 })
}

// A devmgrd of another build has another script: its page is loaded again, once.
func TestAnotherBuild(t *testing.T) {
	source := aNode(t)
	inside := http.NewServeMux()
	mount(inside, source)
	var another atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/events" || !another.Load() {
			inside.ServeHTTP(w, r)
			return
		}
		kept := httptest.NewRecorder()
		inside.ServeHTTP(kept, r)
		fmt.Fprint(w, strings.Replace(kept.Body.String(), `data-build="`, `data-build="another-`, 1))
	}))
	defer server.Close()
	defer server.CloseClientConnections()
	tb := open(t, 1280, 900)
	tb.do(chromedp.Navigate(server.URL))
	another.Store(true)
	for i, id := range []string{"GPU-0", "GPU-1"} {
		cordon(t, source, id)
		tb.until("the cordon is seen", fmt.Sprintf(`(document.body?.innerText ?? "").split("assigned, cordoned").length >= %d`, i+2))
	}
	if n := tb.loads(); n != 2 {
		t.Errorf("the document was loaded %d times", n)
	}
}

// debug keeps a picture for work on the page.
func debug(t *testing.T, name string, picture []byte) {
	t.Helper()
	if dir := os.Getenv("PAGE_PICTURES"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, name), picture, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// many has so many devices, and names that no one would choose.
type many struct {
	aged
	n int
}

func (m many) GetStatus(context.Context, *adminv1.GetStatusRequest) (*adminv1.GetStatusResponse, error) {
	s := &adminv1.GetStatusResponse{Node: "a-node-with-a-name-that-does-not-end." + strings.Repeat("example.", 12), Version: "v1", Started: ago(0)}
	s.Components = []*adminv1.Component{{Name: "nri", Problem: "not connected: " + strings.Repeat("/a/path/without/spaces", 20)}}
	if m.n > 0 {
		s.Resources = []*adminv1.Resource{{Name: resourceOfMany, Plugin: "serving", NodeCapacity: int32(m.n), Free: int32(m.n)}}
	}
	return s, nil
}

const resourceOfMany = "a-vendor-with-a-very-long-name.example.com/and-a-device-whose-name-is-not-short-either"

func (m many) ListPlugins(context.Context, *adminv1.ListPluginsRequest) (*adminv1.ListPluginsResponse, error) {
	l := &adminv1.ListPluginsResponse{}
	if m.n > 0 {
		l.Plugins = []*adminv1.Plugin{{ResourceName: resourceOfMany, State: "serving", Endpoint: strings.Repeat("/a/path/without/spaces", 20), Devices: int32(m.n)}}
	}
	return l, nil
}

func (m many) EachDevice(string) iter.Seq[*adminv1.Device] { return slices.Values(m.devices()) }

func (m many) devices() (all []*adminv1.Device) {
	states := []string{"assigned", "free", "unhealthy", "stale", "cordoned", "suspended", "refused", "withheld", "quarantined"}
	for i := range m.n {
		d := &adminv1.Device{ResourceName: resourceOfMany, Id: fmt.Sprintf("<b>%05d-%s", i, strings.Repeat("no-end-", 10)), State: "free", Listed: true, Healthy: true, NumaNodes: []int32{int32(i % 4)}}
		if i%16 == 0 || m.n < 1000 {
			d.State = states[i%len(states)]
		}
		if d.State == "assigned" {
			d.Holder = &adminv1.Holder{Namespace: "namespace", Name: strings.Repeat("pod-", 20), Containers: []string{"main"}}
		}
		all = append(all, d)
	}
	return all
}

func (m many) ListAssignments(context.Context, *adminv1.ListAssignmentsRequest) (*adminv1.ListAssignmentsResponse, error) {
	all := &adminv1.ListAssignmentsResponse{}
	if m.n == 0 {
		return all, nil
	}
	one := &adminv1.Assignment{Namespace: "namespace", Pod: strings.Repeat("pod-", 20), Container: "main", ResourceName: resourceOfMany}
	for _, d := range m.devices()[:100] {
		one.DeviceIds = append(one.DeviceIds, d.Id)
	}
	all.Assignments = append(all.Assignments, one)
	return all, nil
}

func (m many) ListHistory(context.Context, *adminv1.ListHistoryRequest) (*adminv1.ListHistoryResponse, error) {
	return &adminv1.ListHistoryResponse{}, nil
}

func (m many) Updated() <-chan struct{} { return nil }
