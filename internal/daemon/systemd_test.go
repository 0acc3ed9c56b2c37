package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// listen stands for systemd with a watchdog. The function that it gives reads what is said next, "" if nothing is in time.
func listen(t *testing.T) (said func(limit time.Duration) string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", strconv.Itoa(int((60 * time.Millisecond).Microseconds())))
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	return func(limit time.Duration) string {
		if err := socket.SetReadDeadline(time.Now().Add(limit)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 100)
		n, err := socket.Read(b)
		if err != nil {
			return ""
		}
		return string(b[:n])
	}
}

// What systemd is told, and when: ready once the runtime has been met, then beats for as long as the allocator answers.
func TestWhatSystemdIsTold(t *testing.T) {
	said := listen(t)
	ctx, stop := context.WithCancel(t.Context())
	met, ended := make(chan struct{}), make(chan struct{})
	var asked atomic.Int64
	hang := make(chan struct{})
	go func() {
		defer close(ended)
		_ = tellSystemd(ctx, met, func() map[device.ResourceName]int {
			if asked.Add(1) > 2 {
				<-hang
			}
			return nil
		}, func() error { return nil }, slog.New(slog.DiscardHandler))
	}()
	if got := said(100 * time.Millisecond); got != "" {
		t.Errorf("%q was said before the runtime was met", got)
	}
	close(met)
	for _, want := range []string{"READY=1", "WATCHDOG=1", "WATCHDOG=1"} {
		if got := said(10 * time.Second); got != want {
			t.Errorf("%q was said, want %q", got, want)
		}
	}
	if got := said(200 * time.Millisecond); got != "" {
		t.Errorf("%q was said while the allocator hangs", got)
	}
	stop()
	close(hang)
	for {
		if got := said(10 * time.Second); got == "STOPPING=1" {
			break
		} else if got != "WATCHDOG=1" {
			t.Fatalf("%q was said at the end, want STOPPING=1", got)
		}
	}
	<-ended
}

// While a hook hangs systemd is told nothing, so that it starts the daemon again.
func TestTheWatchdogIsNotFedWhileAHookHangs(t *testing.T) {
	said := listen(t)
	ctx, stop := context.WithCancel(t.Context())
	met, ended := make(chan struct{}), make(chan struct{})
	close(met)
	var hangs atomic.Bool
	hangs.Store(true)
	log := &strings.Builder{}
	go func() {
		defer close(ended)
		_ = tellSystemd(ctx, met, func() map[device.ResourceName]int { return nil }, func() error {
			if hangs.Load() {
				return errors.New("handling CreateContainer")
			}
			return nil
		}, slog.New(slog.NewTextHandler(log, nil)))
	}()
	if got := said(10 * time.Second); got != "READY=1" {
		t.Errorf("%q was said, want READY=1", got)
	}
	if got := said(200 * time.Millisecond); got != "" {
		t.Errorf("%q was said while a hook hangs", got)
	}
	hangs.Store(false)
	if got := said(10 * time.Second); got != "WATCHDOG=1" {
		t.Errorf("%q was said after it had ended, want WATCHDOG=1", got)
	}
	stop()
	<-ended
	if n := strings.Count(log.String(), "err=\"handling CreateContainer\""); n != 1 {
		t.Errorf("the log tells of it %d times, want once:\n%s", n, log)
	}
}
