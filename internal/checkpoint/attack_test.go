package checkpoint_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/internal/plugintest"
)

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
	done, output := plugintest.Attack(t, "TestAttackMirror", 20*time.Second, "ATTACK_DIR="+dir, "ATTACK_VICTIM="+big)
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
		case <-done:
			over = true
		case <-time.After(10 * time.Millisecond):
		}
	}
	close(stop)
	select {
	case n := <-looks:
		text := output()
		t.Logf("%d looks; %s", n, text[max(0, strings.Index(text, "attack:")):])
		if n == 0 || !strings.Contains(text, "attack: exchanged") {
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
	end := plugintest.Attacking(t)
	dir, big := os.Getenv("ATTACK_DIR"), os.Getenv("ATTACK_VICTIM")
	file, other := filepath.Join(dir, checkpoint.Name), filepath.Join(dir, "y")
	exchanged := 0
	for n := 0; time.Now().Before(end); n++ {
		os.Remove(other)
		if n%8 != 0 {
			os.Symlink(big, other)
		} else {
			syscall.Mkfifo(other, 0o600)
		}
		for range 500 {
			if unix.Renameat2(unix.AT_FDCWD, file, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE) == nil {
				exchanged++
			}
		}
		if info, err := os.Lstat(file); err == nil && !info.Mode().IsRegular() {
			os.Remove(file) // the mirror writes it again
		}
		time.Sleep(time.Millisecond)
	}
	fmt.Printf("attack: exchanged %d\n", exchanged)
}
