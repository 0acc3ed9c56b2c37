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

// listen stands for systemd with a watchdog. The returned function reads the next message, or "" if none arrives in time.
func listen(t *testing.T) (next func(limit time.Duration) string) {
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

// devmgrd reports ready to systemd once it is synchronized with the runtime, and then beats for as long as the allocator answers.
func TestSystemd_ReadyBeatsStopping(t *testing.T) {
	next := listen(t)
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
	if got := next(100 * time.Millisecond); got != "" {
		t.Errorf("systemd got %q before devmgrd was synchronized with the runtime", got)
	}
	close(met)
	for _, want := range []string{"READY=1", "WATCHDOG=1", "WATCHDOG=1"} {
		if got := next(10 * time.Second); got != want {
			t.Errorf("systemd got %q, want %q", got, want)
		}
	}
	if got := next(200 * time.Millisecond); got != "" {
		t.Errorf("systemd got %q while the allocator hangs", got)
	}
	stop()
	close(hang)
	for {
		if got := next(10 * time.Second); got == "STOPPING=1" {
			break
		} else if got != "WATCHDOG=1" {
			t.Fatalf("systemd got %q at the end, want STOPPING=1", got)
		}
	}
	<-ended
}

// While a hook hangs devmgrd sends no beat, so that systemd restarts it.
func TestSystemd_HungHook_StopsTheBeat(t *testing.T) {
	next := listen(t)
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
	if got := next(10 * time.Second); got != "READY=1" {
		t.Errorf("systemd got %q, want READY=1", got)
	}
	if got := next(200 * time.Millisecond); got != "" {
		t.Errorf("systemd got %q while a hook hangs", got)
	}
	hangs.Store(false)
	if got := next(10 * time.Second); got != "WATCHDOG=1" {
		t.Errorf("systemd got %q after the hook had ended, want WATCHDOG=1", got)
	}
	stop()
	<-ended
	if n := strings.Count(log.String(), "err=\"handling CreateContainer\""); n != 1 {
		t.Errorf("the log tells of it %d times, want once:\n%s", n, log)
	}
}
