package cdi_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/devmgrd/devmgrd/internal/cdi"
	"github.com/devmgrd/devmgrd/internal/cri"
)

// Each runtime that connects is asked until it has answered once; a preparation waits for the answer.
func TestReadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		type answer struct {
			got   cri.CDI
			found bool
			err   error
		}
		off, on, elsewhere := answer{cri.CDI{Off: true}, true, nil}, answer{cri.CDI{Dirs: []string{"/etc/cdi", n.dir + "/"}}, true, nil}, answer{cri.CDI{Dirs: []string{"/etc/cdi"}}, true, nil}
		starting := answer{err: errors.New("server is not initialized yet"), found: true}
		var mu sync.Mutex // guards what follows
		answers, asked := off, 0
		var meanwhile func() // while the runtime answers
		now := func(a answer) {
			mu.Lock()
			defer mu.Unlock()
			answers, asked = a, 0
		}
		times := func() int {
			mu.Lock()
			defer mu.Unlock()
			return asked
		}
		f := cdi.New(cdi.Config{Dir: n.dir, Boot: "boot-1", Allocator: n, Grants: n, Log: slog.New(slog.DiscardHandler), Runtime: func(ctx context.Context, pid int32) (cri.CDI, bool, error) {
			if _, limited := ctx.Deadline(); pid != 7 || !limited {
				t.Errorf("process %d is asked, with a limit: %v", pid, limited)
			}
			mu.Lock()
			asked++
			a, also := answers, meanwhile
			meanwhile = nil
			mu.Unlock()
			if also != nil {
				also()
			}
			return a.got, a.found, a.err
		}})
		go f.AskRuntime(t.Context())
		wants := func(what, want string, after time.Duration) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			began := time.Now()
			if err := f.Readable(ctx); (err == nil) != (want == "") || !strings.Contains(fmt.Sprint(err), want) && want != "" {
				t.Errorf("%s: %v, want %q", what, err, want)
			}
			if took := time.Since(began); took < after || took > 3*after {
				t.Errorf("%s: known after %v, want %v", what, took, after)
			}
		}
		connect := func(hook cdi.Hook, pid int32, a answer) {
			now(a)
			f.SetHook(hook, pid)
		}
		wants("none is connected", "not connected", 30*time.Second)

		connect(cdi.Visible, 7, off)
		wants("CDI is off", "enable_cdi = true", 0)
		wants("CDI is off, again", "enable_cdi = true", 0)
		if err := f.Check(); err == nil || !strings.Contains(err.Error(), "ClaimMismatch: CDI is off") || times() != 1 {
			t.Errorf("Check: %v; asked %d times", err, times())
		}
		f.SetHook(cdi.Away, 0)
		wants("the connection is lost", "not connected", 30*time.Second)
		if err := f.Check(); err != nil {
			t.Errorf("the next runtime may read them: %v", err)
		}
		time.AfterFunc(20*time.Second, func() { connect(cdi.Visible, 7, elsewhere) })
		wants("it comes back with other directories", "dra.cdiDir", 20*time.Second)

		connect(cdi.Visible, 7, starting)
		wants("it does not become ready", "not known yet whether the runtime reads the CDI files of claims: server is not initialized yet", 30*time.Second)
		if n := times(); n < 3 || n > 15 {
			t.Errorf("asked %d times in 30 s", n)
		}
		connect(cdi.Visible, 7, starting)
		time.AfterFunc(time.Second, func() { now(on) })
		wants("it is ready after a second", "", time.Second)
		wants("it reads them", "", 0)

		connect(cdi.Visible, 7, answer{})
		time.AfterFunc(time.Second, func() { now(off) })
		wants("it listens after a second", "enable_cdi = true", time.Second)
		connect(cdi.Hidden, 7, answer{})
		wants("it listens at another socket", "", 5*time.Second)
		connect(cdi.Hidden, 0, answer{})
		wants("its process is not known", "", 0)
		if n := times(); n > 0 {
			t.Errorf("asked %d times", n)
		}

		mu.Lock()
		meanwhile = func() {
			f.SetHook(cdi.Away, 0)
			connect(cdi.Visible, 7, off)
		}
		mu.Unlock()
		connect(cdi.Visible, 7, on)
		wants("another process with the same PID connects meanwhile", "enable_cdi = true", 0)
	})
}
