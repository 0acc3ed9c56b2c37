package takeover

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/plugintest"
)

// An agent without capabilities puts sockets with modes of its choice at the kubelet's path, and a link in the place of devmgrd's
// own socket, as fast as it can. The mode of what the link leads to does not change, and devmgrd's socket is never wide open.
func TestAttack_Link_IsNotFollowed(t *testing.T) {
	t.Parallel()
	root, err := os.MkdirTemp("", "attack")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	dir, victim := filepath.Join(root, "pod-resources"), filepath.Join(root, "key")
	if err := errors.Join(os.Mkdir(dir, 0o750), os.WriteFile(victim, []byte("secret"), 0o600)); err != nil {
		t.Fatal(err)
	}
	log := &journal{}
	u := New(filepath.Join(dir, "kubelet.sock"), slog.New(slog.NewTextHandler(log, nil)))
	l, err := u.Listen()
	if err != nil {
		t.Fatal(err)
	}
	server := serve("devmgrd", l)
	defer server.end()
	done, output := plugintest.Attack(t, "TestAttack", 20*time.Second, "ATTACK_DIR="+dir, "ATTACK_VICTIM="+victim)
	began, looks := time.Now(), 0
	for over := false; !over; looks++ {
		_ = u.look() // not after the pauses that Run makes
		if info, err := os.Lstat(victim); err != nil || info.Mode() != 0o600 {
			t.Fatalf("won after %s and %d looks: the mode is %v (%v)", time.Since(began), looks, info.Mode(), err)
		}
		if u.mode&^0o770 != 0 {
			t.Fatalf("devmgrd's socket has mode %v", u.mode)
		}
		select {
		case <-done:
			over = true
		case <-time.After(100 * time.Microsecond):
		}
	}
	text := output()
	t.Logf("%d looks; %s", looks, text[max(0, strings.Index(text, "attack:")):])
	if !strings.Contains(text, "attack: exchanged") || strings.Contains(text, "exchanged 0\n") {
		t.Error("nothing was attacked")
	}
	if n := strings.Count(log.String(), "\n"); n > 60 {
		t.Errorf("the log has %d lines", n)
	}
	if err := u.takePath(); err != nil {
		t.Errorf("after the attack the path cannot be taken: %v", err)
	}
	conn, err := net.Dial("unix", u.path)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

// TestAttack is no test, but the process that TestAttack_Link_IsNotFollowed starts.
func TestAttack(t *testing.T) {
	end := plugintest.Attacking(t)
	syscall.Umask(0)
	dir, victim := os.Getenv("ATTACK_DIR"), os.Getenv("ATTACK_VICTIM")
	bound, link, hidden := filepath.Join(dir, "m.sock"), filepath.Join(dir, "z"), filepath.Join(dir, ".devmgrd.sock")
	exchanged := 0
	for n := 0; time.Now().Before(end); n++ {
		os.Remove(bound)
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: bound, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		os.Chmod(bound, []os.FileMode{0o777, 0o776}[n%2])
		os.Remove(link)
		os.Symlink(victim, link)
		os.Rename(bound, filepath.Join(dir, "kubelet.sock"))
		for end := time.Now().Add(3 * time.Millisecond); time.Now().Before(end); {
			for range 2 { // and back
				if unix.Renameat2(unix.AT_FDCWD, hidden, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE) == nil {
					exchanged++
				}
			}
		}
		l.Close()
		time.Sleep(time.Millisecond)
	}
	fmt.Printf("attack: exchanged %d\n", exchanged)
}
