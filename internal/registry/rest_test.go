package registry

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/devmgrd/devmgrd/internal/socket/shareddir"
)

// The machine, or devmgrd alone, stands still for an hour in the middle of a scan.
func TestWatcher_ScanIsHeldUp_NextOneComesSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDirectory(&Registry{log: slog.New(slog.DiscardHandler)}, location{registry: t.TempDir()})
		w := newPluginWatcher(d)
		err := w.look(t.Context(), func(*shareddir.Dir) error {
			time.Sleep(time.Hour) // in the bubble
			return nil
		})
		if rest := time.Until(w.rested); err != nil || rest > 5*time.Second {
			t.Errorf("the next scan comes after %v (%v)", rest, err)
		}
		w.work.Wait()
	})
}
