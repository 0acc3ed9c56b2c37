package registry_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops/hostchecks/hostcheckstest"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// Plugins name sockets in a file system that does not answer. Others register, sockets that go are noticed, and the stop does not wait.
func TestWatcher_EndpointsInAHungFileSystem_CostOthersNothing(t *testing.T) {
	t.Parallel()
	hung := hostcheckstest.HungMount(t)
	f := prepare(t, watches(socketDir(t)), known(device.PluginRecord{Resource: "known.example/x", Endpoint: hung + "/known.sock"}))
	f.SetCallPause(10 * time.Millisecond)
	f.SetRegisterTimeout(time.Second)
	f.run()
	for i := range 40 {
		bad := plugintest.New(t, f.watched, fmt.Sprint(gpu, i))
		bad.Endpoint, bad.Info = fmt.Sprintf("bad%d.sock", i), &plugintest.Info{Type: "DevicePlugin", Name: fmt.Sprint(gpu, i),
			Endpoint: fmt.Sprintf("%s/%d/plugin.sock", hung, i), SupportedVersions: []string{"v1beta1"}}
		bad.Serve()
		if i == 0 {
			f.eventually("the first one has the reason", wasNotified(bad, false, "host's file system does not answer", hung))
		}
		if i%2 == 0 {
			bad.Stop()
		}
	}
	p, _ := announced(f, plugintest.Devices(2)...)
	f.eventually("another plugin registers", wasNotified(p, true))
	f.eventually("it serves", f.servesNumber(2))
	f.eventually("one of the state file is dialled", func() bool { return strings.Contains(f.logs.String(), "does not answer about the socket "+hung) })
	f.stop()
}

// A plugin exchanges a directory for a link to a file system that does not answer, again and again. No scan follows the link: another plugin registers, and
// the stop does not wait.
func TestWatcher_DirectoryExchangedForALink_IsNotFollowed(t *testing.T) {
	t.Parallel()
	f := prepare(t, watches(socketDir(t)))
	hung := hostcheckstest.HungMount(t)
	f.run()
	sub, link := filepath.Join(f.watched, "sub"), filepath.Join(f.watched, ".link")
	if err := errors.Join(os.Mkdir(sub, 0o755), os.Symlink(hung+"/x", link)); err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); time.Since(began) < 3*time.Second; {
		if err := unix.Renameat2(unix.AT_FDCWD, sub, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE); err != nil {
			t.Fatal(err)
		}
	}
	p, _ := announced(f, plugintest.Devices(2)...)
	f.eventually("another plugin registers", wasNotified(p, true))
	f.stop()
}

// Directories that plugins move out of the registry directory, with others in them, are not watched for long: the kernel bounds the watches of all root's
// processes together.
func TestWatcher_DirectoriesMovedOut_LeaveNoWatch(t *testing.T) {
	f := prepare(t, watches(socketDir(t)))
	f.run()
	const below = 20
	away, sub := socketDir(t), filepath.Join(f.watched, "sub")
	watchesAre := func(n int) func() bool { return func() bool { return inotifyWatches(t) == n } }
	f.eventually("three directories are watched", watchesAre(3)) // with the one above
	for i := range 3 {
		dir := filepath.Join(away, fmt.Sprint(i))
		for n := range below {
			if err := os.MkdirAll(filepath.Join(dir, fmt.Sprint(n)), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Rename(dir, sub); err != nil {
			t.Fatal(err)
		}
		f.eventually("they are watched", watchesAre(3+1+below))
		if err := os.Rename(sub, dir); err != nil {
			t.Fatal(err)
		}
		f.eventually("they are not watched", watchesAre(3))
	}
}

// inotifyWatches returns how many directories the process watches.
func inotifyWatches(t *testing.T) (n int) {
	files, err := os.ReadDir("/proc/self/fdinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, _ := os.ReadFile(filepath.Join("/proc/self/fdinfo", file.Name())) // it may have been closed
		n += strings.Count(string(text), "inotify wd:")
	}
	return n
}
