package daemon

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/test/plugintest"
)

// handedDir is where the process of TestHandedChild looks for its socket.
const handedDir = "TEST_HANDED_DIR"

// TestHandedChild is no test but a process as systemd starts it: it prints the sockets that it inherited, and serves the
// connections that were queued before it began.
func TestHandedChild(t *testing.T) {
	dir := os.Getenv(handedDir)
	if dir == "" {
		return // TestSocketFromSystemd runs it
	}
	l := socketFromSystemd(dir, slog.New(slog.NewTextHandler(os.Stdout, nil)))
	if l == nil {
		fmt.Println("no socket")
		return
	}
	defer l.Close()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("served\n")); err != nil {
		t.Fatal(err)
	}
}

// systemd makes the socket and keeps it over restarts. The next devmgrd serves the connections that were made meanwhile.
func TestSocketFromSystemd(t *testing.T) {
	for name, test := range map[string]struct {
		file, says string
	}{
		"ours":          {"kubelet.sock", ""},
		"another place": {"other.sock", "ignoring unexpected socket"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, test.file)
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			file, err := l.File()
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			conn, err := net.Dial("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			// The number of the process has to be in the environment, and only a shell knows it beforehand.
			us := exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" -test.run '^TestHandedChild$'`, os.Args[0])
			us.Env = append(os.Environ(), handedDir+"="+dir, plugintest.QuickExit)
			us.ExtraFiles = []*os.File{file}
			out, err := us.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if test.says != "" {
				if !strings.Contains(string(out), test.says) || !strings.Contains(string(out), "no socket") {
					t.Errorf("it said %q, want %q", out, test.says)
				}
				return
			}
			answer := make([]byte, 7)
			if _, err := conn.Read(answer); err != nil || string(answer) != "served\n" {
				t.Errorf("the caller got %q, %v", answer, err)
			}
			if _, err := os.Stat(path); err != nil {
				t.Errorf("the socket is gone with the process: %v", err)
			}
		})
	}
	if l := socketFromSystemd(t.TempDir(), slog.New(slog.DiscardHandler)); l != nil {
		t.Errorf("without systemd there is a socket: %v", l.Addr())
	}
}
