package plugintest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The environment of an attacker.
const (
	attackerStage = "DEVMGRD_TEST_ATTACKER" // "1": with all rights still; "2": with a container's
	attackerEnd   = "DEVMGRD_TEST_END"      // when it ends, in RFC 3339
)

// Attack runs another test of the test's binary as a process with the rights of a container that drops all capabilities: uid 0, no
// capability, no way to get one. It lasts that long, or until the test ends; done is closed then. The other test calls Attacking
// first. What it has printed is returned by output, when it is done.
func Attack(t testing.TB, test string, lasts time.Duration, env ...string) (done <-chan struct{}, output func() string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, as devmgrd does")
	}
	process := exec.Command(os.Args[0], "-test.run=^"+test+"$", "-test.v")
	process.Env = append(os.Environ(), append(env, attackerStage+"=1", attackerEnd+"="+time.Now().Add(lasts).Format(time.RFC3339Nano))...)
	var out bytes.Buffer
	process.Stdout, process.Stderr = &out, &out
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	var failed error
	late := time.AfterFunc(lasts+time.Minute, func() { process.Process.Kill() }) // it waits for something
	go func() {
		failed = process.Wait()
		late.Stop()
		close(ended)
	}()
	t.Cleanup(func() {
		process.Process.Kill() // it has ended already, unless the test has failed
		<-ended
	})
	return ended, func() string {
		t.Helper()
		<-ended
		if failed != nil {
			t.Errorf("the attacker has failed: %v\n%s", failed, out.String())
		}
		return out.String()
	}
}

// Attacking returns up what a container does not have, and returns until when to attack. It skips a test that is run as a test.
func Attacking(t testing.TB) (end time.Time) {
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
	end, err := time.Parse(time.RFC3339Nano, os.Getenv(attackerEnd))
	if err != nil {
		t.Fatal(err)
	}
	return end
}

// DropRights returns up the capabilities of this thread, permanently, and for what it executes.
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
