package cli

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/admin"
	"github.com/devmgrd/devmgrd/internal/allocator/allocatortest"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

type nowhere struct{}

func (nowhere) Registrations() map[device.ResourceName]device.Registration { return nil }
func (nowhere) Seen() []device.PluginGrants                                { return nil }
func (nowhere) Spans(time.Time) ([]device.Span, error)                     { return nil, nil }
func (nowhere) SaveActions(...device.Action) error                         { return nil }
func (nowhere) Actions(time.Time) ([]device.Action, error)                 { return nil, nil }
func (nowhere) WriteTo(io.Writer) (int64, error)                           { return 0, nil }

// watch prints what there is, and again what there is after each change, until it is ended.
func TestWatch(t *testing.T) {
	dir := t.TempDir()
	ledger := allocatortest.Start(t, filepath.Join(dir, "state"))
	at := filepath.Join(dir, "admin.sock")
	server := admin.New(admin.Config{
		Socket: at, View: ledger, Allocator: ledger, Plugins: nowhere{}, Rules: nowhere{}, StateFile: nowhere{}, HistoryFile: nowhere{}, History: nowhere{}, Actions: nowhere{}, Log: slog.New(slog.DiscardHandler),
		Components: func() []device.Component { return nil },
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- server.Run(ctx) }()
	ledger.Plugins.Stock("vendor.com/gpu", 1)
	plugintest.Eventually(t, "the daemon serves a device", func() bool {
		cmd := Root()
		var out strings.Builder
		cmd.SetOut(&out)
		cmd.SetArgs([]string{"devices", "--socket", at})
		return cmd.ExecuteContext(ctx) == nil && strings.Contains(out.String(), "d000")
	})

	r, w := io.Pipe()
	cmd := Root()
	cmd.SetOut(w)
	cmd.SetArgs([]string{"watch", "--socket", at, "-o", "json"})
	own, stop := context.WithCancel(ctx)
	go func() { ended <- cmd.ExecuteContext(own) }()
	lines := bufio.NewScanner(r)
	for _, want := range []string{`"state":"free"`, `"state":"assigned"`} {
		for lines.Scan() && !strings.Contains(lines.Text(), want) {
		}
		if !strings.Contains(lines.Text(), want) {
			t.Fatalf("watch has not said %s", want)
		}
		ledger.Settle(t, allocatortest.Pod("p", "vendor.com/gpu", 1))
	}
	stop()
	go io.Copy(io.Discard, r) // it may be about to say more
	if err := <-ended; err == nil {
		t.Error("watch ended before it was cancelled")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
