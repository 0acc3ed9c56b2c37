package cli

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/devmgrd/devmgrd/internal/admin"
	"github.com/devmgrd/devmgrd/internal/allocator/allocatortest"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// status --wait ends as soon as all components are ready, and fails with the names of those that are not.
func TestStatus_Wait(t *testing.T) {
	dir := t.TempDir()
	ledger := allocatortest.Start(t, filepath.Join(dir, "state"))
	at := filepath.Join(dir, "admin.sock")
	var looks, readyFrom atomic.Int32
	server := admin.New(admin.Config{
		Socket: at, View: ledger, Allocator: ledger, Plugins: nowhere{}, Rules: nowhere{}, StateFile: nowhere{}, HistoryFile: nowhere{}, History: nowhere{}, Actions: nowhere{}, Log: slog.New(slog.DiscardHandler),
		Components: func() []device.Component {
			var err error
			if looks.Add(1) < readyFrom.Load() {
				err = errors.New("not connected")
			}
			return []device.Component{{Name: "plugins"}, {Name: "runtime", Err: err}}
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	ask := func(args ...string) (string, error) {
		cmd := Root()
		var out strings.Builder
		cmd.SetOut(&out)
		cmd.SetArgs(append([]string{"status", "--socket", at}, args...))
		err := cmd.ExecuteContext(ctx)
		return out.String(), err
	}
	plugintest.Eventually(t, "the daemon answers", func() bool { _, err := ask(); return err == nil })

	looks.Store(0)
	readyFrom.Store(2)
	if out, err := ask("--wait", "1m"); err != nil || looks.Load() != 2 || strings.Contains(out, "not connected") {
		t.Errorf("%d looks, %v\n%s", looks.Load(), err, out)
	}
	looks.Store(0)
	readyFrom.Store(1000)
	if out, err := ask("--wait", "1ms"); err == nil || err.Error() != "not ready after 1ms: runtime" || !strings.Contains(out, "not connected") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := ask(); err != nil {
		t.Errorf("without --wait: %v", err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
