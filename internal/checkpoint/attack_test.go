package checkpoint_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// replacings is how often the mirror writes its file again during the attack. A read by path loses within 50.
const replacings = 300

// A plugin without capabilities exchanges the mirror's file for a link and for a FIFO, as fast as it can. What the link leads to is
// not opened, which the kernel tells, and the mirror waits for no writer.
func TestAttackMirror_LinkOrFIFO_IsNotOpened(t *testing.T) {
	t.Parallel()
	dir, big := t.TempDir(), filepath.Join(t.TempDir(), "big")
	file, err := os.Create(big)
	if err == nil {
		err = file.Truncate(64 << 20) // to read it would not end the test
		file.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	opened := plugintest.Watch(t, big, unix.IN_OPEN|unix.IN_ACCESS)
	attack := plugintest.StartAttack(t, "TestAttackMirror", replacings, "ATTACK_DIR="+dir, "ATTACK_VICTIM="+big)
	looks := make(chan int)
	stop := make(chan struct{})
	log := &lines{}
	m := checkpoint.NewMirror(filepath.Join(dir, checkpoint.Name), newView(), slog.New(slog.NewTextHandler(log, nil)))
	go func() {
		n := 0
		defer func() { looks <- n }()
		for pause := time.NewTicker(100 * time.Microsecond); ; <-pause.C { // not once a second
			select {
			case <-stop:
				return
			default:
				_ = m.Update() // it may find that the attacker has removed its draft
				n++
			}
		}
	}()
	began := time.Now()
	won := func() {
		t.Helper()
		if events := opened.Next(); len(events) > 0 {
			t.Fatalf("won after %s: the link was followed, and read", time.Since(began))
		}
	}
	for over := false; !over; {
		won()
		select {
		case <-attack.Done():
			over = true
		case <-time.After(10 * time.Millisecond): // the attacker needs a core, too
		}
	}
	close(stop)
	select {
	case n := <-looks:
		t.Logf("%d looks", n)
		if n == 0 || attack.Wait() == 0 {
			t.Error("nothing was attacked")
		}
	case <-time.After(time.Minute):
		t.Fatal("won: the mirror waits for a writer")
	}
	won()
	if n := log.count("\n"); n > 30 {
		t.Errorf("the log has %d lines", n)
	}
	if err := m.Update(); err != nil {
		t.Error(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, checkpoint.Name))
	if err == nil {
		_, err = checkpoint.Decode(data)
	}
	if err != nil {
		t.Errorf("after the attack the file is wrong: %v", err)
	}
}

// TestAttackMirror is no test, but the process that TestAttackMirror_LinkOrFIFO_IsNotOpened starts.
func TestAttackMirror(t *testing.T) {
	attacker := plugintest.Attacking(t)
	dir, big := os.Getenv("ATTACK_DIR"), os.Getenv("ATTACK_VICTIM")
	file, other := filepath.Join(dir, checkpoint.Name), filepath.Join(dir, "y")
	var last os.FileInfo
	for n := 0; attacker.More(); n++ {
		os.Remove(other)
		if n%8 != 0 {
			os.Symlink(big, other)
		} else {
			syscall.Mkfifo(other, 0o600)
		}
		for range 500 {
			_ = unix.Renameat2(unix.AT_FDCWD, file, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE)
		}
		for _, name := range []string{file, other} {
			info, err := os.Lstat(name)
			if err != nil || !info.Mode().IsRegular() {
				continue
			}
			if !os.SameFile(info, last) {
				attacker.Attempted()
			}
			last = info
		}
		if info, err := os.Lstat(file); err == nil && !info.Mode().IsRegular() {
			os.Remove(file) // the mirror writes it again
		}
	}
}
