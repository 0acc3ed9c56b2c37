package plugintest

import (
	"flag"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// AtOnce has n parallel tests run at once, unless -parallel says otherwise: tests that wait for sockets and pauses leave the
// processors idle. It is for TestMain.
func AtOnce(n int) {
	flag.Parse()
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "test.parallel" })
	if !said {
		_ = flag.Set("test.parallel", strconv.Itoa(n)) // the testing package has defined it
	}
}

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
