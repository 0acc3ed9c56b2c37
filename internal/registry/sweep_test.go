package registry_test

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/registry"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// deadSocket makes a socket of that age on which no process listens.
func deadSocket(t *testing.T, path string, age time.Duration) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	made := time.Now().Add(-age)
	if err := os.Chtimes(path, made, made); err != nil {
		t.Fatal(err)
	}
}

func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Sockets that refuse a connection and belong to no resource are removed at the start, and when another is made.
func TestDeadSocketsAreRemoved(t *testing.T) {
	t.Parallel()
	dir := socketDir(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	const old = time.Hour
	deadSocket(t, at("dead.sock"), old)
	deadSocket(t, at("dead-2.sock"), old)
	deadSocket(t, at("young.sock"), time.Minute)
	deadSocket(t, at("future.sock"), -old)
	deadSocket(t, at("remembered.sock"), old)
	deadSocket(t, at("target.sock"), old)
	deadSocket(t, filepath.Join(socketDir(t), "elsewhere.sock"), old)
	outside := filepath.Join(socketDir(t), "outside.sock")
	deadSocket(t, outside, old)
	for name, target := range map[string]string{"link.sock": "target.sock", "outside.sock": outside} {
		if err := os.Symlink(target, at(name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(at("file.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	alive, err := net.Listen("unix", at("alive.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer alive.Close()
	long := time.Now().Add(-old)
	for _, name := range []string{"file.sock", "alive.sock"} {
		if err := os.Chtimes(at(name), long, long); err != nil {
			t.Fatal(err)
		}
	}

	f := prepare(t, func(c *registry.Config) { c.SocketDir = dir }, known(
		device.PluginRecord{Resource: "vendor.example/one", Endpoint: "remembered.sock", Reported: true},
		device.PluginRecord{Resource: "vendor.example/two", Endpoint: "link.sock", Reported: true},
	))
	f.SetSweepPause(0)
	f.run()
	f.eventually("dead sockets are removed", func() bool { return f.logs.count("dead sockets removed") == 1 })
	want := []string{"alive.sock", "file.sock", "future.sock", "kubelet.sock", "link.sock", "outside.sock", "remembered.sock", "target.sock", "young.sock"}
	if got := files(t, dir); !slices.Equal(got, want) {
		t.Errorf("there are %v, want %v", got, want)
	}
	if _, err := os.Lstat(outside); err != nil {
		t.Errorf("a link was followed: %v", err)
	}

	deadSocket(t, at("young.sock.new"), old)
	p := plugintest.Start(t, dir, gpu, plugintest.Devices(1)...) // which makes a socket
	f.eventually("the next dead socket is removed", func() bool { return !slices.Contains(files(t, dir), "young.sock.new") })
	f.eventually("the plugin serves", f.servesNumber(1))
	if !slices.Contains(files(t, dir), p.Endpoint) {
		t.Error("the socket of a plugin was removed")
	}
}

// Sockets that are made do not start a sweep each.
func TestSweepIsSeldom(t *testing.T) {
	t.Parallel()
	dir := socketDir(t)
	deadSocket(t, filepath.Join(dir, "first.sock"), time.Hour)
	f := start(t, func(c *registry.Config) { c.SocketDir = dir })
	f.eventually("the first sweep is over", func() bool { return f.logs.count("dead sockets removed") == 1 })
	p := plugintest.Start(t, f.dir, gpu, plugintest.Devices(1)...)
	f.eventually("the plugin serves", f.servesNumber(1))
	deadSocket(t, filepath.Join(f.dir, "dead.sock"), time.Hour)
	other := plugintest.Start(t, f.dir, "vendor.example/other", plugintest.Devices(1)...)
	f.eventually("another plugin serves", func() bool { return f.Offers()["vendor.example/other"].Reported })
	if got := files(t, f.dir); !slices.Contains(got, "dead.sock") || !slices.Contains(got, p.Endpoint) || !slices.Contains(got, other.Endpoint) {
		t.Errorf("there are %v", got)
	}
}
