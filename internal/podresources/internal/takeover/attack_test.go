package takeover

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/test/plugintest"
)

// takeovers is how often devmgrd takes the path during the attack. A chmod that follows links loses within 100.
const takeovers = 300

// An agent without capabilities puts sockets with modes of its choice at the kubelet's path, and a link in the place of devmgrd's
// own socket, as fast as it can. The mode of what the link leads to does not change, and devmgrd's socket is never wide open.
func TestAttack_Link_IsNotFollowed(t *testing.T) {
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
	attack := plugintest.StartAttack(t, "TestAttack", takeovers, "ATTACK_DIR="+dir, "ATTACK_VICTIM="+victim)
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
		case <-attack.Done():
			over = true
		case <-time.After(100 * time.Microsecond): // the attacker needs a core, too
		}
	}
	t.Logf("%d looks", looks)
	if attack.Wait() == 0 {
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
	attacker := plugintest.Attacking(t)
	syscall.Umask(0)
	dir, victim := os.Getenv("ATTACK_DIR"), os.Getenv("ATTACK_VICTIM")
	bound, link, hidden := filepath.Join(dir, "m.sock"), filepath.Join(dir, "z"), filepath.Join(dir, ".devmgrd.sock")
	path := filepath.Join(dir, "kubelet.sock")
	for n := 0; attacker.More(); n++ {
		os.Remove(bound)
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: bound, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		os.Chmod(bound, []os.FileMode{0o777, 0o706}[n%2]) // devmgrd's socket gets another mode each time
		os.Remove(link)
		os.Symlink(victim, link)
		theirs, err := os.Lstat(bound)
		if err != nil {
			t.Fatal(err)
		}
		os.Rename(bound, path)
		for end := time.Now().Add(3 * time.Millisecond); time.Now().Before(end); {
			for range 2 { // and back
				_ = unix.Renameat2(unix.AT_FDCWD, hidden, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
			}
		}
		if now, err := os.Lstat(path); err == nil && !os.SameFile(now, theirs) {
			attacker.Attempted()
		}
		l.Close()
		time.Sleep(time.Millisecond) // devmgrd needs a core, too
	}
}
