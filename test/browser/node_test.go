package browser

import (
	"context"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/admin"
	"github.com/devmgrd/devmgrd/internal/allocator/allocatortest"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/statuspage"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

const (
	gpu  device.ResourceName = "vendor.example/gpu"
	nic  device.ResourceName = "vendor.example/nic"
	fpga device.ResourceName = "vendor.example/fpga"
)

// others stand for the rooms that the page needs nothing of.
type others struct{}

func (others) Seen() []device.PluginGrants { return nil }
func (others) Registrations() map[device.ResourceName]device.Registration {
	in := func(name string) device.PluginPod {
		return device.PluginPod{Pod: device.Pod{UID: device.PodUID(name), Namespace: "kube-system", Name: name}}
	}
	return map[device.ResourceName]device.Registration{
		gpu: {Endpoint: "gpu.sock", Pod: in("gpu-plugin-7wzqx")}, nic: {Endpoint: "nic.sock", Pod: in("nic-plugin-l9m4c")}, fpga: {Endpoint: "fpga.sock"},
	}
}
func (others) Spans(time.Time) ([]device.Span, error)     { return nil, nil }
func (others) SaveActions(...device.Action) error         { return nil }
func (others) Actions(time.Time) ([]device.Action, error) { return nil, nil }
func (others) WriteTo(io.Writer) (int64, error)           { return 0, nil }

// aged has the answers be those of a node that has been up for some time.
type aged struct {
	*admin.Server
	ledger *allocatortest.Allocator
}

var ages = map[string]time.Duration{
	"ml/training-0": 3*time.Hour + 12*time.Minute, "ml/notebook-anna": 27 * time.Minute, "search/embed-7d9c8-x2kqp": 74 * time.Hour,
	"ml/training-1": 12*time.Minute + 40*time.Second, "video/transcode-0": 95 * time.Second,
}

func ago(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(time.Now().Add(-d)) }

func (a aged) GetStatus(ctx context.Context, r *adminv1.GetStatusRequest) (*adminv1.GetStatusResponse, error) {
	s, err := a.Server.GetStatus(ctx, r)
	if err == nil {
		s.Started = ago(26 * time.Hour)
	}
	return s, err
}

func (a aged) EachDevice(resource string) iter.Seq[*adminv1.Device] {
	return func(yield func(*adminv1.Device) bool) {
		for d := range a.Server.EachDevice(resource) {
			if d.Cordon != nil {
				d.Cordon.Since = ago(50 * time.Hour)
			}
			if !yield(d) {
				return
			}
		}
	}
}

func (a aged) ListPlugins(ctx context.Context, r *adminv1.ListPluginsRequest) (*adminv1.ListPluginsResponse, error) {
	l, err := a.Server.ListPlugins(ctx, r)
	for _, p := range l.GetPlugins() {
		p.Since = ago(26 * time.Hour)
		if p.State != device.Serving.String() {
			p.Since = ago(ages["video/transcode-0"])
		}
	}
	return l, err
}

func (a aged) ListHistory(ctx context.Context, _ *adminv1.ListHistoryRequest) (*adminv1.ListHistoryResponse, error) {
	l, err := a.ListAssignments(ctx, &adminv1.ListAssignmentsRequest{})
	all := &adminv1.ListHistoryResponse{}
	for _, as := range l.GetAssignments() {
		all.Spans = append(all.Spans, &adminv1.Span{Uid: as.Uid, Container: as.Container, ResourceName: as.ResourceName, From: ago(ages[as.Namespace+"/"+as.Pod])})
	}
	return all, err
}

func (a aged) Explain(ctx context.Context, r *adminv1.ExplainRequest) (*adminv1.ExplainResponse, error) {
	e, err := a.Server.Explain(ctx, r)
	if err == nil {
		e.Since = ago(ages[r.Namespace+"/"+r.Name])
	}
	return e, err
}

// pod is one whose container asks for devices.
func pod(name, container string, wants map[device.ResourceName]int) device.PodDemand {
	namespace, short, _ := strings.Cut(name, "/")
	id := device.Pod{UID: device.PodUID("uid-" + short), Namespace: namespace, Name: short}
	return device.PodDemand{Pod: id, Created: time.Now(), Containers: []string{container}, Demands: []device.Demand{
		{Container: device.Container{Pod: id.UID, Name: container}, Kind: device.App, Wants: wants}}}
}

// aNode is one with eight GPUs, four NICs and FPGAs whose plugin is away.
func aNode(t *testing.T) aged {
	t.Helper()
	ledger := allocatortest.Start(t, filepath.Join(t.TempDir(), "state"))
	dev := func(id string, healthy bool, numa int) device.Device {
		return device.Device{ID: device.ID(id), Healthy: healthy, NUMA: []int{numa}}
	}
	ledger.Plugins.Offer(gpu, device.Serving, dev("GPU-0", true, 0), dev("GPU-1", true, 0), dev("GPU-2", true, 0), dev("GPU-3", true, 0),
		dev("GPU-4", true, 1), dev("GPU-5", true, 1), dev("GPU-6", true, 1), dev("GPU-7", false, 1))
	ledger.Plugins.Offer(nic, device.Serving, dev("0000:3b:00.0", true, 0), dev("0000:3b:00.1", true, 0), dev("0000:af:00.0", true, 1), dev("0000:af:00.1", true, 1))
	ledger.Plugins.Offer(fpga, device.Stale, dev("fpga-0", true, 0), dev("fpga-1", true, 1))
	plugintest.Eventually(t, "three resources are offered", func() bool { return len(ledger.Resources().Offers()) == 3 })
	if _, err := ledger.Cordon([]device.Cordon{{Resource: gpu, ID: "GPU-6", Reason: "fan noise, ticket 4711", Since: time.Now()}}); err != nil {
		t.Fatal(err)
	}
	ledger.Settle(t, pod("ml/training-0", "trainer", map[device.ResourceName]int{gpu: 4, nic: 2}))
	ledger.Settle(t, pod("ml/notebook-anna", "notebook", map[device.ResourceName]int{gpu: 1}))
	ledger.Settle(t, pod("search/embed-7d9c8-x2kqp", "embed", map[device.ResourceName]int{gpu: 1, nic: 1}))
	ledger.Bind(pod("ml/training-1", "trainer", map[device.ResourceName]int{gpu: 2, nic: 1}))
	ledger.Bind(pod("video/transcode-0", "ffmpeg", map[device.ResourceName]int{fpga: 1}))
	plugintest.Eventually(t, "two pods wait", func() bool {
		all := ledger.Snapshot().Waiting()
		return len(all) == 2 && all[0].Wait.Reason != device.Allocating && all[1].Wait.Reason != device.Allocating
	})
	var components []device.Component
	for _, name := range []string{"registration", "store", "pods", "node", "nri", "podresources", "admin"} {
		components = append(components, device.Component{Name: name})
	}
	desk := admin.New(admin.Config{
		Socket: filepath.Join(t.TempDir(), "unused"), Version: "v1.0.0", Node: "worker-7", View: ledger, Allocator: ledger, Plugins: others{}, Rules: others{}, History: others{}, Actions: others{},
		StateFile: others{}, HistoryFile: others{}, Components: func() []device.Component { return components }, Log: slog.New(slog.DiscardHandler),
		OnNode: func(r device.ResourceName) (int, bool) { n, shown := ledger.Resources().Capacity()[r]; return n, shown },
	})
	return aged{desk, ledger}
}

func mount(on *http.ServeMux, from statuspage.Source) {
	statuspage.New(statuspage.Config{Source: from, Log: slog.New(slog.DiscardHandler)}).Mount(on)
}

// serve serves a page until the test ends.
func serve(t *testing.T, from statuspage.Source) (address string) {
	t.Helper()
	mux := http.NewServeMux()
	mount(mux, from)
	server := httptest.NewUnstartedServer(mux)
	ctx, cancel := context.WithCancel(context.Background())
	server.Config.BaseContext = func(net.Listener) context.Context { return ctx }
	server.Start()
	t.Cleanup(func() { cancel(); server.Close() })
	return server.Listener.Addr().String()
}

// cordon takes a GPU out of service.
func cordon(t *testing.T, a aged, id string) {
	t.Helper()
	if _, err := a.ledger.Cordon([]device.Cordon{{Resource: gpu, ID: device.ID(id), Since: time.Now()}}); err != nil {
		t.Fatal(err)
	}
}
