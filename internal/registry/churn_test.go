package registry_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/test/plugintest"
)

// churn makes directories with files below dir, and then changes dir again and again until stop.
func churn(t *testing.T, dir string, directories, files int) (stop func()) {
	t.Helper()
	for i := range directories {
		below := filepath.Join(dir, fmt.Sprint("d", i))
		if err := os.Mkdir(below, 0o755); err != nil {
			t.Fatal(err)
		}
		for j := range files {
			if err := os.WriteFile(filepath.Join(below, fmt.Sprint(j)), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticks := time.NewTicker(10 * time.Millisecond)
		defer ticks.Stop()
		for {
			select {
			case <-over:
				return
			case <-ticks.C:
				name := filepath.Join(dir, "changes")
				_ = os.WriteFile(name, nil, 0o600)
				_ = os.Remove(name)
			}
		}
	}()
	return func() { close(over); <-ended }
}

// opened returns a function that returns how often a directory has been opened since.
func opened(t *testing.T, dir string) func() int {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_OPEN|unix.IN_CLOSE_NOWRITE); err != nil { // the kernel merges equal events that follow each other
		t.Fatal(err)
	}
	return func() (n int) {
		events := make([]byte, 1<<20)
		size, err := unix.Read(fd, events)
		if err != nil && err != unix.EAGAIN {
			t.Fatal(err)
		}
		for at := 0; at+unix.SizeofInotifyEvent <= size; at += unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[at+12:])) {
			if binary.NativeEndian.Uint32(events[at+4:])&unix.IN_OPEN != 0 {
				n++
			}
		}
		return n
	}
}

// What a scan costs depends on the machine, so it is measured here as well. Scans may take a twentieth of the time that has passed, and the test allows a
// tenth.
func TestWatcher_ManyFilesThatChange_CostAFewPercent(t *testing.T) {
	t.Parallel()
	f := start(t, watches(socketDir(t)))
	defer churn(t, f.watched, 4, 1000)()
	scan := time.Hour
	for range 3 { // the least disturbed one counts
		scan = min(scan, plugintest.ProcessorTime(t, func() {
			for i := range 4 {
				all, err := os.ReadDir(filepath.Join(f.watched, fmt.Sprint("d", i)))
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range all {
					if _, err := e.Info(); err != nil {
						t.Fatal(err)
					}
				}
			}
		}))
	}
	scans, n := opened(t, filepath.Join(f.watched, "d0")), 0
	var began time.Time
	f.eventually("four scans", func() bool {
		if n == 0 {
			began = time.Now() // of the first one
		}
		n += scans()
		return n >= 4
	})
	passed := time.Since(began)
	t.Logf("%d scans of %v in %v", n, scan, passed)
	if time.Duration(n-1)*scan > passed/10 {
		t.Error("scans take more than a tenth of a processor")
	}
}

func TestWatcher_ManyFiles_AreCountedOverAllDirectories(t *testing.T) {
	t.Parallel()
	f := prepare(t, watches(socketDir(t)))
	churn(t, f.watched, 2, 8500)() // 17 000
	f.run()
	f.eventually("the limit is logged", func() bool { return f.logs.count("plugin registry too large") == 1 })
}

// A plugin pod whose own directory is large and changes all the time delays no plugin of another pod.
func TestDirectory_ManyFilesThatChange_OtherPodsPluginRegistersSoon(t *testing.T) {
	t.Parallel()
	f := start(t, ownDirs(socketDir(t)), watches(socketDir(t)))
	a, b := f.directory("a"), f.directory("b")
	defer churn(t, a.Registry, 4, 1000)()
	p := plugintest.New(t, b.Registry, gpu, plugintest.Devices(2)...)
	p.Info = &plugintest.Info{Type: "DevicePlugin", Name: gpu, SupportedVersions: []string{"v1beta1"}}
	began := time.Now()
	p.Serve()
	f.eventually("it serves", f.servesNumber(2))
	t.Logf("after %v", time.Since(began))
}

// A plugin keeps 1000 dead sockets, and replaces all of them, or one, as fast as it can. Calls to them are paid from the time that scans have, and few
// are logged for the operator. An honest plugin in the same directory is called.
func TestWatcher_DeadSocketsAreReplaced_CallsAndLinesAreFew(t *testing.T) {
	const sockets, while, calls, lines = 1000, 6 * time.Second, 10_000, 40
	for name, replaced := range map[string]int{"all": sockets, "one": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := prepare(t, watches(socketDir(t)))
			replace := func(i int) {
				path := filepath.Join(f.watched, fmt.Sprint(i))
				_ = os.Remove(path)
				deadSocket(t, path, 0)
			}
			for i := range sockets {
				replace(i)
			}
			f.run()
			rounds, over := 0, time.After(while)
			for more := true; more; rounds++ {
				for i := range replaced {
					replace(i)
				}
				select {
				case <-over:
					more = false
				default:
				}
			}
			log := f.logs.String()
			called, warned := strings.Count(log, "cannot register waiting plugin"), strings.Count(log, "level=WARN")
			t.Logf("%d times %d sockets replaced: %d failed calls, %d warnings", rounds, replaced, called, warned)
			if called > calls || warned > lines {
				t.Errorf("%d failed calls with %d warnings in %v; want at most %d and %d", called, warned, while, calls, lines)
			}
			announced(f, plugintest.Devices(1)...)
			f.eventually("the honest plugin serves", f.servesNumber(1))
		})
	}
}
