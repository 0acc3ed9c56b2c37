package cdi_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/devmgrd/devmgrd/internal/cdi"
	"github.com/devmgrd/devmgrd/internal/cri"
)

// A runtime says whether it reads the files. Each that connects is asked, until it has answered once; no preparation goes on while none is connected.
func TestReadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		type answer struct {
			got   cri.CDI
			found bool
			err   error
		}
		off, on, elsewhere := answer{cri.CDI{Off: true}, true, nil}, answer{cri.CDI{Dirs: []string{"/etc/cdi", n.dir + "/"}}, true, nil}, answer{cri.CDI{Dirs: []string{"/etc/cdi"}}, true, nil}
		answers, asked := off, 0
		var meanwhile func() // the runtime answers
		f := cdi.New(cdi.Config{Dir: n.dir, Boot: "boot-1", Allocator: n, Grants: n, Log: slog.New(slog.DiscardHandler), Runtime: func(_ context.Context, pid int32) (cri.CDI, bool, error) {
			if asked++; pid != 7 {
				t.Errorf("process %d is asked", pid)
			}
			now := answers
			if meanwhile != nil {
				meanwhile()
			}
			return now.got, now.found, now.err
		}})
		wants := func(what, want string, asks int) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			before := asked
			if err := f.Readable(ctx); (err == nil) != (want == "") || !strings.Contains(fmt.Sprint(err), want) && want != "" {
				t.Errorf("%s: %v, want %q", what, err, want)
			}
			if asked-before != asks {
				t.Errorf("%s: the runtime was asked %d times, want %d", what, asked-before, asks)
			}
		}
		wants("none is connected", "not connected", 0)
		f.SetHook(cdi.Visible, 7)
		wants("CDI is off", "enable_cdi = true", 1)
		wants("CDI is off, again", "enable_cdi = true", 0)
		if err := f.Check(); err == nil || !strings.Contains(err.Error(), "ClaimMismatch: CDI is off") {
			t.Errorf("Check: %v", err)
		}
		f.SetHook(cdi.Away, 0)
		wants("the connection is lost", "not connected", 0)
		if err := f.Check(); err != nil {
			t.Errorf("the next runtime may read them: %v", err)
		}

		answers = elsewhere
		time.AfterFunc(20*time.Second, func() { f.SetHook(cdi.Visible, 7) })
		wants("it comes back with other directories", "dra.cdiDir", 1)

		f.SetHook(cdi.Visible, 7)
		answers = answer{err: errors.New("server is not initialized yet"), found: true}
		wants("it is not ready", "not initialized yet", 1)
		answers = on
		wants("it is ready", "", 1)
		wants("it reads them", "", 0)

		answers = answer{}
		f.SetHook(cdi.Hidden, 7)
		wants("it cannot be asked", "", 1)
		f.SetHook(cdi.Hidden, 0)
		wants("its process is not known", "", 0)

		answers, meanwhile = on, func() {
			answers, meanwhile = off, nil
			f.SetHook(cdi.Away, 0)
			f.SetHook(cdi.Visible, 7)
		}
		f.SetHook(cdi.Visible, 7)
		wants("another process with the same PID connects meanwhile", "enable_cdi = true", 2)
	})
}
