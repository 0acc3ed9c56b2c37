package openers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/test/plugintest"
)

// A fakeProc is a directory with the files that a scan reads. Process 1 is there from the beginning, and process 7 is the scan's own.
type fakeProc struct {
	t   testing.TB
	dir string
}

func newFakeProc(t testing.TB) fakeProc {
	t.Helper()
	p := fakeProc{t, t.TempDir()}
	p.link("7", "self")
	p.link(firstPIDNamespace, "7/ns/pid")
	p.process(1, "")
	return p
}

func (p fakeProc) file(text string, path ...string) string {
	p.t.Helper()
	name := filepath.Join(append([]string{p.dir}, path...)...)
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte(text), 0o600)); err != nil {
		p.t.Fatal(err)
	}
	return name
}

func (p fakeProc) link(to string, path ...string) {
	p.t.Helper()
	name := filepath.Join(append([]string{p.dir}, path...)...)
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.Symlink(to, name)); err != nil {
		p.t.Fatal(err)
	}
}

// process adds a process with one thread.
func (p fakeProc) process(pid int, maps string) {
	p.t.Helper()
	name, fields := strconv.Itoa(pid), strings.Repeat(" 0", 50)
	for _, dir := range []string{"fd", "map_files"} {
		if err := os.MkdirAll(filepath.Join(p.dir, name, dir), 0o700); err != nil {
			p.t.Fatal(err)
		}
	}
	state := "S"
	if maps == "" {
		state = "Z"
	}
	p.file(fmt.Sprintf("%d (a) b) %s%s", pid, state, fields), name, "stat")
	p.file(fmt.Sprintf("%d (a) b) %s%s", pid, state, fields), name, "task", name, "stat")
	p.file("0::/system.slice/a.service\n", name, "cgroup")
	p.file(maps, name, "maps")
	p.link("/bin/b", name, "exe")
}

// A process that blocks a thread of the scan is unknown. The scan goes on, and the next one does not wait for the process again.
func TestFind_ProcessBlocks_IsUnknown(t *testing.T) {
	p := newFakeProc(t)
	p.process(2, "00400000-00452000 r-xp 00000000 fe:01 12    /x\n")
	maps := p.file("", "2", "maps")
	if err := errors.Join(os.Remove(maps), unix.Mkfifo(maps, 0o600)); err != nil { // to be opened, it needs a writer
		t.Fatal(err)
	}
	p.process(3, "00400000-00452000 r-xp 00000000 fe:01 12    /x\n")
	p.link(fullNode, "3", "map_files", "400000-452000")
	f := newFinder(p.dir)
	f.patience = 200 * time.Millisecond
	scan := func() (second, third bool, reason string) {
		t.Helper()
		scan, err := f.find(t.Context(), []Device{full})
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range scan.Unknown {
			if u.PID == 2 {
				second, reason = true, u.Reason
				if u.Command != "a) b" || u.Cgroup != "/system.slice/a.service" {
					t.Errorf("unknown is %+v", u)
				}
			}
		}
		return second, by(discard{t}, scan, full, 3) == Mapped, reason
	}
	for { // where the machine is busy, process 3 may seem to block too
		second, third, _ := scan()
		if !second {
			t.Fatal("the process that blocks is not unknown")
		}
		if third {
			break
		}
	}
	if second, _, reason := scan(); !second || reason != "has blocked an earlier scan, which still waits" {
		t.Errorf("in the next scan, unknown is %v: %q", second, reason)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.find(ctx, []Device{full}); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the context: %v", err)
	}
	w, err := os.OpenFile(maps, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	plugintest.Eventually(t, "the thread has noticed", func() bool { return !f.isBlocked(2) })
}

// discard takes no notice of errors.
type discard struct{ testing.TB }

func (discard) Errorf(string, ...any) {}

// endsWhenBlocked is a context that ends once process 1 blocks a thread of f.
type endsWhenBlocked struct {
	context.Context
	end context.CancelFunc
	f   *finder
}

func (c endsWhenBlocked) Err() error {
	if c.f.isBlocked(1) {
		c.end()
	}
	return c.Context.Err()
}

func TestFind_ContextEndsWhileBlocked(t *testing.T) {
	p := newFakeProc(t)
	maps := p.file("", "1", "maps")
	if err := errors.Join(os.Remove(maps), unix.Mkfifo(maps, 0o600)); err != nil {
		t.Fatal(err)
	}
	f := newFinder(p.dir)
	f.patience = 50 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := f.find(endsWhenBlocked{ctx, cancel, f}, []Device{full})
	for err != nil && !f.isBlocked(1) { // where the machine is busy, the list of processes may seem to block first
		_, err = f.find(endsWhenBlocked{ctx, cancel, f}, []Device{full})
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the context: %v", err)
	}
	w, err := os.OpenFile(maps, os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err == nil {
		w.Close() // the thread ends
	}
}

func TestFind_Mappings(t *testing.T) {
	const line = "00400000-00452000 r-xp 00000000 fe:01 12    /x\n"
	for name, test := range map[string]struct {
		maps  string
		files []string
		want  string
	}{
		"with leading zeros":   {line, []string{"400000-452000"}, "mapped"},
		"from the first page":  {"00000000-00001000 r-xp 00000000 fe:01 12    /x\n", []string{"0-1000"}, "mapped"},
		"no file":              {"00400000-00452000 r-xp 00000000 00:00 0 \n00500000-00600000 r-xp 00000000 00:00 0    [heap]\n", nil, ""},
		"an inode 0":           {"00400000-00452000 r-xp 00000000 00:50 0    /x\n", []string{"400000-452000"}, "mapped"},
		"the second part":      {"00300000-00400000 r-xp 00000000 fe:01 12    /x\n" + line, []string{"400000-452000"}, "mapped"},
		"the same inode twice": {"00300000-00400000 r-xp 00000000 fe:01 12    /y\n" + line, []string{"400000-452000"}, "keeps changing its memory"},
		"moving":               {line, nil, "keeps changing its memory"},
		"after a long path": {"00300000-00400000 r-xp 00000000 00:00 0    " + strings.Repeat("/x", 100_000) + " 12\n00310000-00320000 r-xp 00000000 00:00 0 \n" + line,
			[]string{"300000-400000", "400000-452000"}, "mapped"},
		"at a long path": {"00400000-00452000 r-xp 00000000 fe:01 12    " + strings.Repeat("/x", 100_000) + "\n", []string{"400000-452000"}, "mapped"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newFakeProc(t)
			p.process(2, test.maps)
			for _, file := range test.files {
				to := "/dev/null"
				if file == test.files[len(test.files)-1] {
					to = fullNode
				}
				p.link(to, "2", "map_files", file)
			}
			scan, err := Find(t.Context(), p.dir, []Device{full})
			if err != nil {
				t.Fatal(err)
			}
			got := string(by(discard{t}, scan, full, 2))
			for _, u := range scan.Unknown {
				got = u.Reason
			}
			if got != test.want {
				t.Errorf("it is %q, want %q (%+v)", got, test.want, scan)
			}
		})
	}
}

// What is not proc, or hides the first process, is no proof of anything.
func TestFind_NoProc(t *testing.T) {
	for name, change := range map[string]func(dir string) error{
		"no such directory": os.RemoveAll,
		"without itself":    func(dir string) error { return os.Remove(filepath.Join(dir, "self")) },
		"without process 1": func(dir string) error { return os.RemoveAll(filepath.Join(dir, "1")) },
	} {
		p := newFakeProc(t)
		if err := change(p.dir); err != nil {
			t.Fatal(err)
		}
		if scan, err := Find(t.Context(), p.dir, []Device{full}); err == nil || !strings.Contains(err.Error(), p.dir) {
			t.Errorf("%s: %+v, %v", name, scan, err)
		}
	}
}

func TestFind_Nested(t *testing.T) {
	p := newFakeProc(t)
	if scan, err := Find(t.Context(), p.dir, []Device{full}); err != nil || scan.Namespace != "" {
		t.Errorf("in the first namespace: %+v, %v", scan, err)
	}
	if err := os.Remove(filepath.Join(p.dir, "7/ns/pid")); err != nil {
		t.Fatal(err)
	}
	p.link("pid:[4026532000]", "7/ns/pid")
	if scan, err := Find(t.Context(), p.dir, []Device{full}); err != nil || scan.Namespace == "" {
		t.Errorf("in another namespace: %+v, %v", scan, err)
	}
}

func TestFind_TooManyUnknown(t *testing.T) {
	p := newFakeProc(t)
	for pid := range maxUnknown + 1 {
		p.process(100+pid, "00400000-00452000 r-xp 00000000 fe:01 12    /x\n") // which map_files lacks
	}
	if scan, err := Find(t.Context(), p.dir, []Device{full}); err == nil || !strings.Contains(err.Error(), "more than 64 processes") || scan.CPU <= 0 {
		t.Errorf("%+v, %v", scan, err)
	}
}

// inPod puts a process into a pod.
func (p fakeProc) inPod(pid int, pod string) {
	p.t.Helper()
	p.file("0::/kubepods/burstable/pod"+pod+"/0\n", strconv.Itoa(pid), "cgroup")
}

// holds has a process hold the device, by its memory.
func (p fakeProc) holds(pid int) {
	p.t.Helper()
	p.process(pid, "00400000-00452000 r-xp 00000000 fe:01 12    /x\n")
	p.link(fullNode, strconv.Itoa(pid), "map_files", "400000-452000")
}

// One process stands for its pod, however many there are.
func TestFind_ManyUnknownOfAPod_CountOnce(t *testing.T) {
	p := newFakeProc(t)
	for pid := range 2 * maxUnknown {
		p.process(100+pid, "00400000-00452000 r-xp 00000000 fe:01 12    /x\n") // which map_files lacks
		p.inPod(100+pid, "a")
	}
	p.holds(90)
	p.holds(500)
	scan, err := Find(t.Context(), p.dir, []Device{full})
	if err != nil || len(scan.Unknown) != 1 || len(scan.Openers) != 2 {
		t.Errorf("%+v, %v", scan, err)
	}
}

// A pod's files are looked at up to its share, in whatever number of processes.
func TestFind_VeryManyFilesOfAPod_OthersAreSeen(t *testing.T) {
	p := newFakeProc(t)
	p.holds(200)
	p.inPod(200, "b")
	for pid := 100; pid < 110; pid++ {
		p.process(pid, "00300000-00400000 r-xp 00000000 00:00 0 \n")
		p.inPod(pid, "a")
		for fd := range 40 {
			p.link("/dev/null", strconv.Itoa(pid), "fd", strconv.Itoa(fd))
		}
	}
	p.holds(90)
	f := newFinder(p.dir)
	f.maxFiles = 100
	scan, err := f.find(t.Context(), []Device{full})
	if err != nil || len(scan.Unknown) != 1 || by(discard{t}, scan, full, 90) != Mapped || by(discard{t}, scan, full, 200) != Mapped {
		t.Fatalf("%+v, %v", scan, err)
	}
	if want := "has more than 100 files open or mapped, with its pod's other processes"; scan.Unknown[0].Reason != want || scan.Unknown[0].Cgroup != "/kubepods/burstable/poda/0" {
		t.Errorf("unknown is %+v, want %q", scan.Unknown[0], want)
	}
	if scan.Files > 120 || scan.Over != 101 {
		t.Errorf("looked at %d files, %d of them for a pod over its share", scan.Files, scan.Over)
	}
	p.process(300, "")
	for fd := range 101 {
		p.link("/dev/null", "300", "fd", strconv.Itoa(fd))
	}
	scan, err = f.find(t.Context(), []Device{full})
	if err != nil || len(scan.Unknown) != 2 || by(discard{t}, scan, full, 90) != Mapped || scan.Over != 202 {
		t.Errorf("with such a process outside of pods: %+v, %v", scan, err)
	}
}

// A process moves very many mappings to and fro. Each pass over them counts.
func TestFind_VeryManyMappings_CountAgainstTheShare(t *testing.T) {
	p := newFakeProc(t)
	var maps strings.Builder
	for i := range 65_530 {
		fmt.Fprintf(&maps, "%08x-%08x r-xp 00000000 fe:01 12    /x\n", i<<12, (i+1)<<12)
	}
	p.process(2, maps.String()) // none of which is in map_files
	scan, err := Find(t.Context(), p.dir, []Device{full})
	if err != nil || len(scan.Unknown) != 1 || scan.Unknown[0].Reason != "has more than 20000 files open or mapped" || scan.Files > 20_010 {
		t.Errorf("%d files, %+v, %v", scan.Files, scan.Unknown, err)
	}
}

// The scan waits for an exiting process on the process, which is then no opener.
func TestFind_ExitingProcessEnds_IsNotUnknown(t *testing.T) {
	exits := exec.Command("cat")
	stay, err := exits.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := exits.Start(); err != nil {
		t.Fatal(err)
	}
	p, pid := newFakeProc(t), strconv.Itoa(exits.Process.Pid)
	if err := os.Remove(filepath.Join(p.dir, "self")); err != nil {
		t.Fatal(err)
	}
	self := strconv.Itoa(os.Getpid())
	p.link(self, "self")
	p.link(firstPIDNamespace, self, "ns", "pid")
	p.process(exits.Process.Pid, "")
	status := func(state string) string { return "2 (x) " + state + " 0 0 0 0 0 4" + strings.Repeat(" 0", 40) }
	stat, running, zombie := p.file("", pid, "task", pid, "stat"), p.file(status("R"), "running"), p.file(status("Z"), "zombie")
	if err := errors.Join(os.Remove(stat), unix.Mkfifo(stat, 0o600)); err != nil {
		t.Fatal(err)
	}
	go func() {
		w, err := os.OpenFile(stat, os.O_WRONLY, 0) // the first look is at it
		if err != nil {
			return // the test has ended
		}
		_ = os.Rename(running, stat) // a look that comes too early does not wait, and the first one may have the FIFO open for a while yet
		fmt.Fprint(w, status("R"))
		w.Close()
		_ = exec.Command("true").Run() // takes long enough for such a look
		_ = os.Rename(zombie, stat)
		stay.Close()
		_ = exits.Wait()
	}()
	f := newFinder(p.dir)
	f.patience, f.exitLimit = time.Hour, time.Hour
	scan, err := f.find(t.Context(), []Device{full})
	if err != nil || len(scan.Unknown) > 0 {
		t.Errorf("%+v, %v", scan, err)
	}
}

// A process of a pod blocks the scan. The scan goes on with the processes after it, and leaves out those of the pod.
func TestFind_PodBlocks_LaterProcessesAreSeen(t *testing.T) {
	p := newFakeProc(t)
	p.holds(5)
	p.process(4, "00400000-00452000 r-xp 00000000 fe:01 12    /x\n")
	p.process(3, "00400000-00452000 r-xp 00000000 fe:01 12    /x\n")
	for _, pid := range []int{4, 3} { // a directory in memory lists the newest file first
		p.inPod(pid, "a")
		maps := p.file("", strconv.Itoa(pid), "maps")
		if err := errors.Join(os.Remove(maps), unix.Mkfifo(maps, 0o600)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if w, err := os.OpenFile(maps, os.O_WRONLY|unix.O_NONBLOCK, 0); err == nil {
				w.Close() // the thread ends
			}
		})
	}
	f := newFinder(p.dir)
	for range 3 {
		scan, err := f.find(t.Context(), []Device{full})
		if err != nil || len(scan.Unknown) != 1 || by(discard{t}, scan, full, 5) != Mapped {
			t.Errorf("%+v, %v", scan, err)
		}
		f.mu.Lock()
		if len(f.blocked) != 1 {
			t.Errorf("%v block a thread", f.blocked)
		}
		f.mu.Unlock()
	}
}

// The memory of a process in each of many pods is locked for longer than a scan waits, and then free for a moment, again and again: together they do not
// use up the time of a search.
func TestFind_ManyPodsBlockInTurn_SearchEnds(t *testing.T) {
	const pods, scale = 40, 10 // times faster than in reality
	p := newFakeProc(t)
	p.holds(5)
	ctx, stop := context.WithCancel(t.Context())
	var work sync.WaitGroup
	defer work.Wait()
	defer stop()
	for i := range pods {
		pid := 100 + i
		p.process(pid, "00400000-00452000 r-xp 00000000 fe:01 12    /x\n")
		p.inPod(pid, fmt.Sprint("a", i))
		maps := p.file("", strconv.Itoa(pid), "maps")
		if err := errors.Join(os.Remove(maps), unix.Mkfifo(maps, 0o600)); err != nil {
			t.Fatal(err)
		}
		work.Go(func() {
			free := time.NewTicker((patience + time.Second) / scale)
			defer free.Stop()
			for {
				w, err := os.OpenFile(maps, os.O_WRONLY|unix.O_NONBLOCK, 0) // a reader waits, and goes on
				if err == nil {
					fmt.Fprint(w, "00400000-00452000 r-xp 00000000 fe:01 12    /x\n")
					w.Close()
				}
				select {
				case <-ctx.Done():
					return
				case <-free.C:
				}
			}
		})
	}
	f := newFinder(p.dir)
	f.patience = patience / scale
	for range 2 {
		ctx, cancel := context.WithTimeout(ctx, scanLimit/scale)
		scan, err := f.find(ctx, []Device{full})
		cancel()
		if err != nil || len(scan.Unknown) < pods/2 || by(discard{t}, scan, full, 5) != Mapped {
			t.Errorf("%d unknown, %v", len(scan.Unknown), err)
		}
	}
}

// A process whose memory has gone, and which is no zombie yet, is closing files that proc does not show.
func TestFind_Exiting(t *testing.T) {
	for status, want := range map[string]int{
		"2 (x) D 0 0 0 0 0 4": 1, "2 (x) R 0 0 0 0 0 4": 1, "2 (x) Z 0 0 0 0 0 4": 0, "2 (x) X 0 0 0 0 0 4": 0, "2 (kworker/0) D 0 0 0 0 0 2097216": 0,
	} {
		p := newFakeProc(t)
		p.process(2, "")
		p.file(status+strings.Repeat(" 0", 40), "2", "task", "2", "stat")
		scan, err := Find(t.Context(), p.dir, []Device{full})
		if err != nil || len(scan.Unknown) != want || want == 1 && scan.Unknown[0].Reason != "is exiting" {
			t.Errorf("%q: %+v, %v", status, scan, err)
		}
	}
}

// The last holder of a device may fork, and end before the scan comes to it. The new process may have a lower PID.
func TestFind_ProcessStartsMeanwhile(t *testing.T) {
	p := newFakeProc(t)
	p.process(5, "00400000-00452000 r-xp 00000000 fe:01 12    /x\n")
	p.link("/dev/null", "5", "map_files", "400000-452000")
	maps := p.file("", "5", "maps")
	if err := errors.Join(os.Remove(maps), unix.Mkfifo(maps, 0o600)); err != nil {
		t.Fatal(err)
	}
	forked := make(chan struct{})
	go func() {
		defer close(forked)
		w, err := os.OpenFile(maps, os.O_WRONLY, 0) // the scan is at process 5 now
		if err != nil {
			t.Error(err)
			return
		}
		defer w.Close()
		p.process(3, "00400000-00452000 r-xp 00000000 fe:01 12    /x\n")
		p.link(fullNode, "3", "map_files", "400000-452000")
	}()
	scan, err := Find(t.Context(), p.dir, []Device{full})
	<-forked
	if err != nil || by(discard{t}, scan, full, 3) != Mapped {
		t.Errorf("%+v, %v", scan, err)
	}
}

func TestParseCgroup(t *testing.T) {
	for text, want := range map[string]string{
		"0::/kubepods.slice/pod1/x\n": "/kubepods.slice/pod1/x",
		"9:name=systemd:/kubepods/a\n8:cpu,pids:/kubepods/b\n0::/system.slice/containerd\n": "/kubepods/b",
		"9:name=systemd:/\n0::/kubepods/a\n":                                                "/kubepods/a",
		"4:memory:/m\n5:devices:/d:1\n8:pids:/\n":                                           "/d:1",
		"0::/\n": "/",
		"":       "/",
	} {
		if got := parseCgroup(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestParseStatus(t *testing.T) {
	s, err := parseStatus([]byte("12 (a) R (b) S 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2"))
	if want := (status{command: "a) R (b", started: 987654}); err != nil || s != want {
		t.Errorf("%+v, %v, want %+v", s, err, want)
	}
	for _, text := range []string{"", "12 (a", "12 )a(", "12 (a) S 1", "12 (a) S 1 1 1 0 -1 x 1 2 3 4 5 6 7 8 20 0 1 0 987654"} {
		if _, err := parseStatus([]byte(text)); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

func TestSet(t *testing.T) {
	var s set
	var was []bool
	for _, pid := range []int{1, 64, 63, 64, 1 << 22, 1, 1 << 22} {
		was = append(was, s.add(pid))
	}
	if !slices.Equal(was, []bool{false, false, false, true, false, true, true}) {
		t.Errorf("members: %v", was)
	}
}
