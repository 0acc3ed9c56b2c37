package main

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// What systemd is told, and when: ready once the runtime has been met, then beats for as long as the books answer.
func TestWhatSystemdIsTold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", strconv.Itoa(int((60 * time.Millisecond).Microseconds())))
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	said := func(limit time.Duration) string {
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
		}, slog.New(slog.DiscardHandler))
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
		t.Errorf("%q was said while the books hang", got)
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
