package plugintest

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The environment of an attacker.
const (
	attackerStage    = "DEVMGRD_TEST_ATTACKER" // "1": with all rights still; "2": with a container's
	attackerAttempts = "DEVMGRD_TEST_ATTEMPTS"
)

// attackLimit bounds an attack on a machine that is too busy for all attempts.
const attackLimit = 20 * time.Second

// An Attack is a process with the rights of a container that drops all capabilities: uid 0, no capability, no way to get one.
type Attack struct {
	t      testing.TB
	stdin  io.Closer
	ended  chan struct{}
	out    bytes.Buffer // complete when ended is closed
	failed error        // as well
}

// StartAttack runs another test of the test's binary as an Attack, which calls Attacking first. The attack ends after that many
// attempts, at a call of End, after 20 s, or when the test ends.
func StartAttack(t testing.TB, test string, attempts int, env ...string) *Attack {
	t.Helper()
	NeedRoot(t)
	a := &Attack{t: t, ended: make(chan struct{})}
	process := exec.Command(os.Args[0], "-test.run=^"+test+"$", "-test.v")
	process.Env = append(os.Environ(), append(env, attackerStage+"=1", attackerAttempts+"="+fmt.Sprint(attempts), QuickExit)...)
	process.Stdout, process.Stderr = &a.out, &a.out
	stdin, err := process.StdinPipe()
	if err == nil {
		err = process.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	a.stdin = stdin
	late := time.AfterFunc(attackLimit+time.Minute, func() { process.Process.Kill() }) // it waits for something
	go func() {
		a.failed = process.Wait()
		late.Stop()
		close(a.ended)
	}()
	t.Cleanup(func() {
		process.Process.Kill() // it has ended already, unless the test has failed
		<-a.ended
	})
	return a
}

// Done returns a channel that is closed when the attack has ended.
func (a *Attack) Done() <-chan struct{} { return a.ended }

// End ends the attack after the attempt that runs. It does not wait.
func (a *Attack) End() { a.stdin.Close() }

// Wait waits for the attack's end, and returns the number of attempts. The test fails if the attacker has failed.
func (a *Attack) Wait() (attempts int) {
	a.t.Helper()
	<-a.ended
	if a.failed != nil {
		a.t.Errorf("the attacker has failed: %v\n%s", a.failed, a.out.String())
	}
	if report := regexp.MustCompile(`attack: .*`).FindString(a.out.String()); report != "" {
		a.t.Log(report)
		if _, err := fmt.Sscanf(report, "attack: %d attempts", &attempts); err != nil {
			a.t.Errorf("%q: %v", report, err)
		}
	}
	return attempts
}

// QuickExit is for the environment of a process of a test's binary: without it, a process of a binary with the race detector
// sleeps for a second before it exits.
const QuickExit = "GORACE=atexit_sleep_ms=0"

// An Attacker is the process of an Attack.
type Attacker struct {
	wanted, made int
	limit        time.Time
	ended        atomic.Bool
}

// Attacking drops the rights that a container does not have. It skips a test that is run as a test.
func Attacking(t testing.TB) *Attacker {
	t.Helper()
	switch os.Getenv(attackerStage) {
	default:
		t.Skip("only as a process of another test")
	case "1":
		if err := DropRights(); err != nil {
			t.Fatal(err)
		}
		os.Setenv(attackerStage, "2")
		t.Fatal(syscall.Exec("/proc/self/exe", os.Args, os.Environ())) // all threads have the rights of this one now
	case "2":
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"} {
			if !bytes.Contains(status, []byte(want+"\n")) {
				t.Fatalf("the attacker has rights that it should not have: want %q in\n%s", want, status)
			}
		}
	}
	wanted, err := strconv.Atoi(os.Getenv(attackerAttempts))
	if err != nil {
		t.Fatal(err)
	}
	a := &Attacker{wanted: wanted, limit: time.Now().Add(attackLimit)}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until End closes it
		a.ended.Store(true)
	}()
	t.Cleanup(func() { fmt.Printf("attack: %d attempts\n", a.made) })
	return a
}

// Attempted counts an attempt. It is for attempts that devmgrd has noticed, as far as the attacker can see that.
func (a *Attacker) Attempted() { a.made++ }

// More reports whether the attack goes on.
func (a *Attacker) More() bool {
	return a.made < a.wanted && !a.ended.Load() && time.Now().Before(a.limit)
}

// DropRights drops the capabilities of this thread, permanently, and for what it executes.
func DropRights() error {
	runtime.LockOSThread()
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && err != unix.EINVAL { // an older kernel has fewer
			return fmt.Errorf("dropping capability %d: %w", c, err)
		}
	}
	for more := uintptr(unix.CAP_LAST_CAP + 1); unix.Prctl(unix.PR_CAPBSET_DROP, more, 0, 0, 0) == nil; more++ { // a newer one more
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clearing ambient capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		return fmt.Errorf("giving up capabilities: %w", err)
	}
	return nil
}

// A Watched directory tells which files are made in it, at once: an attacker looks all the time.
type Watched struct {
	fd  int
	buf [4096]byte
}

// Watch watches the files that are made in dir, and those that are renamed there.
func Watch(t testing.TB, path string, mask uint32) *Watched {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err == nil {
		_, err = unix.InotifyAddWatch(fd, path, mask)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return &Watched{fd: fd}
}

// Next returns the names of the next events, or none if there are none now. Of an event of the watched file itself the name is
// empty.
func (w *Watched) Next() (names []string) {
	n, err := unix.Read(w.fd, w.buf[:])
	if err != nil {
		return nil
	}
	for at := 0; at+unix.SizeofInotifyEvent <= n; {
		event := (*unix.InotifyEvent)(unsafe.Pointer(&w.buf[at]))
		name := w.buf[at+unix.SizeofInotifyEvent : at+unix.SizeofInotifyEvent+int(event.Len)]
		names = append(names, string(bytes.TrimRight(name, "\x00")))
		at += unix.SizeofInotifyEvent + int(event.Len)
	}
	return names
}
