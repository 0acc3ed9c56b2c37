package registry_test

import (
	"errors"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/test/plugintest"
)

// exchanges is how many drafts of kubelet.sock the attacker exchanges for a link. A chmod that follows links loses within 20.
const exchanges = 100

// A plugin without capabilities removes kubelet.sock, and puts a link in the place of the draft of the next one, as fast as it
// can. The mode of what the link leads to does not change.
func TestAttackDraft_Link_IsNotFollowed(t *testing.T) {
	f := prepare(t)
	f.SetRestores() // as fast as the attacker
	f.run()
	victims := map[string]fs.FileMode{}
	outside := socketDir(t)
	for name, mode := range map[string]fs.FileMode{"key": 0o600, "dir": 0o755} {
		victim := filepath.Join(outside, name)
		made := func() error { return os.WriteFile(victim, []byte("secret"), mode) }
		if name == "dir" {
			made = func() error { return os.Mkdir(victim, mode) }
		}
		if err := errors.Join(made(), os.Chmod(victim, mode)); err != nil {
			t.Fatal(err)
		}
		info, err := os.Lstat(victim)
		if err != nil {
			t.Fatal(err)
		}
		victims[victim] = info.Mode()
	}
	attack := plugintest.StartAttack(t, "TestAttackDraft", exchanges, "ATTACK_DIR="+f.dir, "ATTACK_VICTIMS="+outside)
	began := time.Now()
	for look := time.NewTicker(10 * time.Millisecond); ; <-look.C {
		for victim, mode := range victims {
			if info, err := os.Lstat(victim); err != nil || info.Mode() != mode {
				t.Fatalf("won after %s: %s was %v, is %v (%v)", time.Since(began), victim, mode, info.Mode(), err)
			}
		}
		select {
		default:
			continue
		case <-attack.Done():
		}
		break
	}
	if attack.Wait() == 0 {
		t.Error("the attacker has exchanged no draft: nothing was attacked")
	}
	f.eventually("registration is served", func() bool { return f.Check() == nil })
	plugintest.Start(t, f.dir, gpu, plugintest.Devices(1)...)
	f.eventually("a plugin serves", f.servesNumber(1))
	if info, err := os.Lstat(filepath.Join(f.dir, "kubelet.sock")); err != nil || info.Mode() != fs.ModeSocket|0o660 {
		t.Errorf("kubelet.sock has mode %v (%v)", info.Mode(), err)
	}
}

// TestAttackDraft is no test, but the process that TestAttackDraft_Link_IsNotFollowed starts.
func TestAttackDraft(t *testing.T) {
	attacker := plugintest.Attacking(t)
	dir, victims := os.Getenv("ATTACK_DIR"), os.Getenv("ATTACK_VICTIMS")
	socket, link := filepath.Join(dir, "kubelet.sock"), filepath.Join(dir, "x")
	made := plugintest.Watch(t, dir, unix.IN_CREATE)
	for n := 0; attacker.More(); n++ {
		os.Remove(link)
		os.Symlink(filepath.Join(victims, []string{"key", "dir"}[n%2]), link)
		made.Next()
		os.Remove(socket) // devmgrd binds the next one
		var draft string
		for end := time.Now().Add(20 * time.Millisecond); draft == "" && time.Now().Before(end); {
			for _, name := range made.Next() {
				if strings.HasPrefix(name, ".kubelet.") {
					draft = filepath.Join(dir, name)
				}
			}
		}
		if draft != "" {
			for end := time.Now().Add(time.Duration(rand.IntN(200)) * time.Microsecond); n%3 != 0 && time.Now().Before(end); {
			}
			if _, err := os.Lstat(draft); err == nil && os.Rename(link, draft) == nil {
				attacker.Attempted()
			}
		}
		time.Sleep(2 * time.Millisecond) // devmgrd needs a core, too
		os.Remove(draft)
	}
}

// starts is how often devmgrd starts during the attack. If it gave up when its draft is exchanged once, it would fail within 200.
const starts = 300

// A plugin without capabilities puts whatever it can at devmgrd's names, as fast as it can. devmgrd starts all the same, writes a
// bounded log, and serves when the attack is over.
func TestAttackNames_AnyFile_DoesNotKeepFromStarting(t *testing.T) {
	dir, outside := socketDir(t), socketDir(t)
	precious := filepath.Join(outside, "precious")
	if err := os.WriteFile(precious, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	attack := plugintest.StartAttack(t, "TestAttackNames", math.MaxInt, "ATTACK_DIR="+dir, "ATTACK_VICTIMS="+outside)
	left := plugintest.Watch(t, dir, unix.IN_CREATE)
	for n := range starts {
		f := prepare(t, at(dir))
		if err := f.Listen(); err != nil {
			t.Fatalf("start %d: %v", n, err)
		}
		f.serve()
		began, atLeast := time.Now(), time.Duration(0)
		if n == starts-1 {
			atLeast = time.Second
		}
		for over, files := false, 0; !over && (files < 10 || time.Since(began) < atLeast); {
			files += len(left.Next())
			select {
			case <-attack.Done():
				over = true
			case <-time.After(time.Millisecond): // the attacker needs a core, too
			}
		}
		f.stop()
		if lines := strings.Count(f.logs.String(), "level=WARN") + strings.Count(f.logs.String(), "level=ERROR"); lines > 30+int(time.Since(began)/time.Second) {
			t.Errorf("start %d has written %d lines", n, lines)
		}
	}
	attack.End()
	if attack.Wait() == 0 {
		t.Error("the attacker has left nothing: nothing was attacked")
	}
	f := start(t, at(dir))
	f.eventually("registration is served", func() bool { return f.Check() == nil })
	plugintest.Start(t, f.dir, gpu, plugintest.Devices(1)...)
	f.eventually("a plugin serves", f.servesNumber(1))
	if text, err := os.ReadFile(precious); string(text) != "precious" {
		t.Errorf("a link was followed: %v", err)
	}
}

// TestAttackNames is no test, but the process that TestAttackNames_AnyFile_DoesNotKeepFromStarting starts.
func TestAttackNames(t *testing.T) {
	attacker := plugintest.Attacking(t)
	dir, outside := os.Getenv("ATTACK_DIR"), os.Getenv("ATTACK_VICTIMS")
	socket := filepath.Join(dir, "kubelet.sock")
	made := plugintest.Watch(t, dir, unix.IN_CREATE)
	leave := []func(path string) error{
		func(path string) error { return syscall.Mknod(path, syscall.S_IFREG|0o600, 0) }, // to open one may wait, if it is a FIFO by then
		func(path string) error { return os.Symlink(filepath.Join(outside, "precious"), path) },
		func(path string) error { return syscall.Mkfifo(path, 0o600) },
		func(path string) error { return os.MkdirAll(filepath.Join(path, "a"), 0o700) },
	}
	for n := 0; attacker.More(); n++ {
		for _, name := range append(made.Next(), "kubelet.sock") {
			path := filepath.Join(dir, name)
			if name != "kubelet.sock" && !strings.HasPrefix(name, ".kubelet.") {
				continue
			}
			if n%2 == 0 {
				os.Remove(path)
			}
			if leave[n%len(leave)](path) == nil {
				attacker.Attempted()
			}
		}
		if n%50 == 0 { // mostly there is a full directory
			os.RemoveAll(socket)
			time.Sleep(time.Millisecond) // devmgrd needs a core, too
		}
	}
}
