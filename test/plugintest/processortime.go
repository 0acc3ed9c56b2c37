package plugintest

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ProcessorTime returns the processor time of a call, without that of goroutines that it starts, however busy the machine is.
func ProcessorTime(t testing.TB, call func()) time.Duration {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	now := func() time.Duration {
		var at unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &at); err != nil {
			t.Fatal(err)
		}
		return time.Duration(at.Nano())
	}
	began := now()
	call()
	return now() - began
}
