package takeover

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/loops/dirwatch"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// A server sends its name on each connection, and echoes all that it reads until it ends.
type server struct {
	name string
	l    net.Listener
	work sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
}

func serve(name string, l net.Listener) *server {
	s := &server{name: name, l: l}
	s.work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns = append(s.conns, conn)
			s.mu.Unlock()
			s.work.Go(func() {
				fmt.Fprintln(conn, name)
				for in := bufio.NewScanner(conn); in.Scan(); {
					fmt.Fprintln(conn, in.Text())
				}
				conn.Close()
			})
		}
	})
	return s
}

// end ends it as a process ends: its connections break, its files stay.
func (s *server) end() {
	s.l.Close()
	s.mu.Lock()
	for _, c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.work.Wait()
}

// A stage is a directory like the kubelet's, what happens in it, and a witness who looks all the time whether the
// kubelet can be reached.
type stage struct {
	*testing.T
	path, aside string
	log         *journal
	starts      int
	kubelet     atomic.Pointer[server] // while it runs
	blind       bool                   // nothing can be watched
	bare        bool                   // the file system has no exchange
	end         func()
}

func newStage(t *testing.T) *stage {
	t.Helper()
	root, err := os.MkdirTemp("", "podres") // short, as a socket's path has to be
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{T: t, log: &journal{}}
	s.path = filepath.Join(root, "pod-resources", "kubelet.sock")
	s.aside = filepath.Join(root, "pod-resources", "kubelet-own.sock")
	ctx, cancel := context.WithCancel(context.Background())
	var witness sync.WaitGroup
	witness.Go(func() { s.witness(ctx) })
	s.end = sync.OnceFunc(func() {
		cancel()
		witness.Wait()
		s.stopKubelet()
		os.RemoveAll(root)
		if t.Failed() {
			t.Log("log:\n" + s.log.String())
		}
	})
	t.Cleanup(s.end)
	return s
}

// witness looks at the path and aside, and some times again, since the kubelet's socket may move from one to the other and
// back between two looks. What may happen between two steps of ours is what before is for.
func (s *stage) witness(ctx context.Context) {
	for tick := time.NewTicker(200 * time.Microsecond); ctx.Err() == nil; <-tick.C {
		k := s.kubelet.Load()
		if k == nil {
			continue
		}
		var seen []string
		for _, path := range slices.Repeat([]string{s.path, s.aside}, 10) {
			who, err := s.ask(path)
			if seen = append(seen, fmt.Sprintf("%q (%v)", who, err)); who == k.name {
				seen = nil
				break
			}
		}
		if seen != nil && s.kubelet.Load() == k {
			s.Errorf("%s can be reached nowhere: at the path, aside, and so on there were %s", k.name, seen)
			return
		}
	}
}

// ask tells who answers at a path.
func (s *stage) ask(path string) (string, error) {
	conn, err := net.DialTimeout("unix", path, 10*time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	line, err := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(line), err
}

func (s *stage) answers(path, want string) bool {
	got, _ := s.ask(path)
	return got == want
}

func (s *stage) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *stage) eventually(what string, condition func() bool) {
	s.Helper()
	plugintest.Eventually(s, what, condition)
}

// startKubelet does what a kubelet does when it starts, step by step.
func (s *stage) startKubelet() *server {
	s.Helper()
	s.starts++
	if err := os.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.Fatal(err)
	}
	s.must(os.MkdirAll(filepath.Dir(s.path), 0o750))
	file, err := os.CreateTemp(filepath.Dir(s.path), "")
	s.must(err)
	s.must(os.Remove(file.Name()))
	file.Close()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: file.Name(), Net: "unix"})
	s.must(err)
	l.SetUnlinkOnClose(false)
	s.must(os.Rename(file.Name(), s.path))
	k := serve(fmt.Sprint("kubelet ", s.starts), l)
	s.kubelet.Store(k)
	return k
}

// stopKubelet leaves its socket behind.
func (s *stage) stopKubelet() {
	if k := s.kubelet.Swap(nil); k != nil {
		k.end()
	}
}

func (s *stage) make() *Takeover {
	t := New(s.path, slog.New(slog.NewTextHandler(s.log, nil)))
	if s.blind {
		t.watcher = func() (*dirwatch.Watcher, error) { return nil, errors.New("no watch to be had") }
	}
	if s.bare {
		t.files.exchange = func(string, string) error { return unix.EINVAL }
	}
	return t
}

// begin listens and serves, without Run.
func (s *stage) begin() (*Takeover, *server) {
	s.Helper()
	t := s.make()
	l, err := t.Listen()
	s.must(err)
	return t, serve("devmgrd", l)
}

// before calls happens before each change of a name, and leaves the change out if happens returns an error. After each change
// the kubelet must be reachable. before counts the changes.
func (s *stage) before(t *Takeover, happens func(n int, to string) error) (n *int) {
	n = new(int)
	real := t.files
	do := func(to string, change func() error) error {
		*n++
		if err := happens(*n, to); err != nil {
			return err
		}
		err := change()
		if k := s.kubelet.Load(); k != nil && !s.answers(s.path, k.name) && !s.answers(s.aside, k.name) {
			s.Errorf("after change %d, of %s, the kubelet can be reached nowhere", *n, to)
		}
		return err
	}
	t.files = files{
		link:     func(from, to string) error { return do(to, func() error { return real.link(from, to) }) },
		rename:   func(from, to string) error { return do(to, func() error { return real.rename(from, to) }) },
		exchange: real.exchange,
		remove:   func(name string) error { return do(name, func() error { return real.remove(name) }) },
	}
	if !s.bare { // else it changes nothing
		t.files.exchange = func(from, to string) error { return do(to, func() error { return real.exchange(from, to) }) }
	}
	return n
}

// scenes are what a start or a stop of ours may find.
var scenes = map[string]func(s *stage){
	"nothing":               func(*stage) {},
	"a dead socket":         func(s *stage) { s.dead(s.path) },
	"a dead one aside":      func(s *stage) { s.dead(s.aside) },
	"a kubelet":             func(s *stage) { s.startKubelet() },
	"a kubelet under both":  func(s *stage) { s.startKubelet(); s.must(os.Link(s.path, s.aside)) },
	"a kubelet, a dead one": func(s *stage) { s.startKubelet(); s.dead(s.aside) },
	"a dead one, a kubelet": func(s *stage) { s.startKubelet(); s.must(os.Rename(s.path, s.aside)); s.dead(s.path) },
	"only a kubelet":        func(s *stage) { s.startKubelet(); s.must(os.Rename(s.path, s.aside)) },
}

// eachScene runs test for all of them, with and without an exchange of names, while we take the path and while we leave it.
func eachScene(t *testing.T, test func(fresh func() *stage, leaving bool)) {
	for name, scene := range scenes {
		for _, bare := range []bool{false, true} {
			for _, leaving := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, bare %v, leaving %v", name, bare, leaving), func(t *testing.T) {
					fresh := func() *stage {
						s := newStage(t)
						s.bare = bare
						scene(s)
						return s
					}
					test(fresh, leaving)
				})
			}
		}
	}
}

// start starts a takeover and serves what it listens on. The function stops it as a clean stop does.
func (s *stage) start() (stop func()) {
	s.Helper()
	t := s.make()
	l, err := t.Listen()
	s.must(err)
	server := serve("devmgrd", l)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- t.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				s.Errorf("Run: %v", err)
			}
		case <-time.After(time.Minute):
			s.Error("Run does not return")
		}
		server.end()
	})
	s.Cleanup(stop)
	return stop
}

// files returns what is in the directory.
func (s *stage) files() []string {
	s.Helper()
	entries, err := os.ReadDir(filepath.Dir(s.path))
	s.must(err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// has fails unless just these files are in the directory.
func (s *stage) has(want ...string) {
	s.Helper()
	if got := s.files(); !slices.Equal(got, want) {
		s.Errorf("there are %q, want %q", got, want)
	}
}

// dead leaves a socket at path on which no process listens.
func (s *stage) dead(path string) {
	s.Helper()
	s.must(os.MkdirAll(filepath.Dir(path), 0o750))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	s.must(err)
	l.SetUnlinkOnClose(false)
	l.Close()
}

// A journal is what was logged.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *journal) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *journal) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Whenever the kubelet starts, clients reach us again at once, and old connections do not break.
func TestKubeletRestarts(t *testing.T) {
	for name, bare := range map[string]bool{"with an exchange": false, "without": true} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.bare = bare
			s.startKubelet()
			stop := s.start()
			s.eventually("devmgrd answers", func() bool { return s.answers(s.path, "devmgrd") })
			old, err := net.Dial("unix", s.path)
			s.must(err)
			defer old.Close()

			// A client that dials again all the time.
			var ours, kubelets, missing atomic.Int64
			dialling, end := context.WithCancel(context.Background())
			defer end()
			var client sync.WaitGroup
			client.Go(func() {
				for dialling.Err() == nil {
					switch who, err := s.ask(s.path); {
					case errors.Is(err, fs.ErrNotExist):
						missing.Add(1)
					case who == "devmgrd":
						ours.Add(1)
					case strings.HasPrefix(who, "kubelet"):
						kubelets.Add(1)
					case errors.Is(err, syscall.ECONNREFUSED):
						t.Errorf("a dead socket is at the path: %v", err)
					}
				}
			})
			var longest time.Duration
			for range 50 {
				s.stopKubelet()
				k := s.startKubelet()
				began := time.Now()
				s.eventually("devmgrd answers again", func() bool { return s.answers(s.path, "devmgrd") })
				longest = max(longest, time.Since(began))
				if who, err := s.ask(s.aside); who != k.name {
					t.Errorf("aside is %q, want %q (%v)", who, k.name, err)
				}
			}
			end()
			client.Wait()
			t.Logf("50 starts of the kubelet: of a client's dials %d reached devmgrd, %d the kubelet, %d found nothing; %s until devmgrd answered at most",
				ours.Load(), kubelets.Load(), missing.Load(), longest)
			fmt.Fprintln(old, "still there")
			for in := bufio.NewReader(old); ; {
				line, err := in.ReadString('\n')
				if err != nil {
					t.Fatalf("the old connection has broken: %v", err)
				}
				if line == "still there\n" {
					break
				}
			}
			stop()
			s.has("kubelet.sock")
			if !s.answers(s.path, "kubelet 51") {
				t.Error("the kubelet does not have its path back")
			}
		})
	}
}

// A clean stop returns the path to a running kubelet, and to no other process.
func TestCleanStop(t *testing.T) {
	for name, bare := range map[string]bool{"with an exchange": false, "without": true} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.bare = bare
			stop := s.start()
			s.eventually("devmgrd answers without a kubelet", func() bool { return s.answers(s.path, "devmgrd") })
			stop()
			s.has()

			s.startKubelet()
			for range 2 {
				stop = s.start()
				s.eventually("devmgrd answers", func() bool { return s.answers(s.path, "devmgrd") })
				s.has(".devmgrd.sock", "kubelet-own.sock", "kubelet.sock")
				stop()
				s.has("kubelet.sock")
				if !s.answers(s.path, s.kubelet.Load().name) {
					t.Error("the kubelet does not have its path back")
				}
			}
			// It ends while its path is ours.
			stop = s.start()
			s.eventually("devmgrd answers", func() bool { return s.answers(s.path, "devmgrd") })
			s.stopKubelet()
			stop()
			s.has()

			// Its name was removed from under us and it.
			s.startKubelet()
			u, server := s.begin()
			defer server.end()
			s.must(u.takePath())
			s.must(os.Remove(s.path))
			s.must(u.leave())
			s.has("kubelet.sock")
		})
	}
}

// A kubelet may start between any two steps of ours, and can be reached all the same.
func TestKubeletStartsAtAnyStep(t *testing.T) {
	eachScene(t, func(fresh func() *stage, leaving bool) {
		for at, last := 1, 1; at <= last; at++ {
			s := fresh()
			u, server := s.begin()
			if leaving {
				s.must(u.takePath())
			}
			changes := s.before(u, func(n int, to string) error {
				if n == at && filepath.Base(to) != ".devmgrd.swap" { // see swap
					s.stopKubelet()
					s.startKubelet()
				}
				return nil
			})
			if leaving {
				s.must(u.leave())
			} else {
				s.must(u.takePath())
			}
			last = *changes
			kubelet := s.kubelet.Load()
			switch {
			case !leaving && !s.answers(s.path, "devmgrd"):
				s.Errorf("change %d of %d: the path is not ours, there are %q", at, last, s.files())
			case !leaving && kubelet != nil && !s.answers(s.aside, kubelet.name):
				s.Errorf("change %d of %d: the kubelet is not aside, there are %q", at, last, s.files())
			case leaving && kubelet != nil:
				s.has("kubelet.sock")
			case leaving:
				s.has()
			}
			server.end()
			s.end()
		}
	})
}

// We may be killed between any two steps. The next start makes it good.
func TestKilledAtAnyStep(t *testing.T) {
	killed := errors.New("killed")
	eachScene(t, func(fresh func() *stage, leaving bool) {
		for at, more := 1, true; more; at++ {
			s := fresh()
			u, server := s.begin()
			if leaving {
				s.must(u.takePath())
			}
			s.before(u, func(n int, _ string) error {
				if n >= at {
					return killed
				}
				return nil
			})
			end := u.takePath
			if leaving {
				end = u.leave
			}
			more = errors.Is(end(), killed)
			server.end()

			u, server = s.begin()
			s.before(u, func(int, string) error { return nil })
			s.must(u.takePath())
			kubelet := s.kubelet.Load()
			if !s.answers(s.path, "devmgrd") || kubelet != nil && !s.answers(s.aside, kubelet.name) {
				s.Errorf("killed at change %d, the path is not ours or the kubelet not aside: there are %q", at, s.files())
			}
			s.must(u.leave())
			if kubelet != nil {
				s.has("kubelet.sock")
			} else {
				s.has()
			}
			server.end()
			s.end()
		}
	})
}

// This is no test, but the process that TestKilled kills.
func TestProcess(t *testing.T) {
	path := os.Getenv("TAKEOVER_PATH")
	if path == "" {
		t.Skip("only as a process of another test")
	}
	u := New(path, slog.New(slog.DiscardHandler))
	l, err := u.Listen()
	if err != nil {
		t.Fatal(err)
	}
	serve("devmgrd of before", l)
	t.Fatal(u.Run(context.Background()))
}

// killed runs a devmgrd of before, next to a kubelet, and kills it.
func (s *stage) killed() {
	s.Helper()
	s.startKubelet()
	process := exec.Command(os.Args[0], "-test.run=^TestProcess$")
	process.Env = append(os.Environ(), "TAKEOVER_PATH="+s.path, plugintest.QuickExit)
	s.must(process.Start())
	defer process.Wait()
	defer process.Process.Kill()
	s.eventually("the first devmgrd answers", func() bool { return s.answers(s.path, "devmgrd of before") })
}

// After SIGKILL our dead socket is at the path and the kubelet's aside. The next start makes it good, and so does a kubelet's.
func TestKilled(t *testing.T) {
	for name, test := range map[string]struct {
		between func(*stage)
		kubelet bool // there is one aside afterwards
	}{
		"the kubelet runs on":   {func(*stage) {}, true},
		"the kubelet restarts":  {func(s *stage) { s.stopKubelet(); s.startKubelet() }, true},
		"the kubelet ends":      {func(s *stage) { s.stopKubelet() }, false},
		"the names are removed": {func(s *stage) { s.must(os.Remove(s.path)); s.must(os.Remove(hiddenName(s))) }, true},
		"the hidden one is":     {func(s *stage) { s.must(os.Remove(hiddenName(s))) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.killed()
			if _, err := s.ask(s.path); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("at the path: %v", err)
			}
			test.between(s)
			stop := s.start()
			s.eventually("devmgrd answers", func() bool { return s.answers(s.path, "devmgrd") })
			if k := s.kubelet.Load(); test.kubelet != (k != nil) || k != nil && !s.answers(s.aside, k.name) {
				t.Errorf("aside is not the kubelet")
			}
			stop()
			if test.kubelet {
				s.has("kubelet.sock")
			} else {
				s.has()
			}
		})
	}
}

func hiddenName(s *stage) string { return s.make().hidden }

// It does not matter who starts first, nor whether both do so at once.
func TestBothStart(t *testing.T) {
	for range 20 {
		s := newStage(t)
		var both sync.WaitGroup
		both.Go(func() { s.startKubelet() })
		stop := s.start()
		both.Wait()
		s.eventually("devmgrd answers", func() bool { return s.answers(s.path, "devmgrd") && s.answers(s.aside, "kubelet 1") })
		both.Go(func() { s.stopKubelet(); s.startKubelet() })
		stop()
		both.Wait()
		if !s.answers(s.path, "kubelet 2") {
			t.Errorf("the kubelet does not have its path: there are %q", s.files())
		}
	}
}

// A second kubelet that ends at once, since its port is taken, leaves a dead socket: the first one stays aside.
func TestLiveKubeletStaysAside(t *testing.T) {
	s := newStage(t)
	first := s.startKubelet()
	stop := s.start()
	s.eventually("devmgrd answers", func() bool { return s.answers(s.path, "devmgrd") })
	s.dead(s.path + ".1")
	s.must(os.Rename(s.path+".1", s.path))
	s.eventually("devmgrd answers again", func() bool { return s.answers(s.path, "devmgrd") })
	if !s.answers(s.aside, first.name) {
		t.Error("the running kubelet's socket is no longer aside")
	}
	stop()
	if !s.answers(s.path, first.name) {
		t.Error("the kubelet that lives does not have its path back")
	}
}

// A path that is missing is put back at once, and the directory with it.
func TestPathIsPutBack(t *testing.T) {
	for name, blind := range map[string]bool{"watched": false, "not watched": true} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.blind = blind
			s.start()
			back := func(what string) {
				t.Helper()
				s.eventually(what, func() bool { return s.answers(s.path, "devmgrd") })
			}
			back("devmgrd answers")
			if info, err := os.Stat(filepath.Dir(s.path)); err != nil || info.Mode().Perm() != dirMode {
				t.Errorf("the directory has mode %v (%v)", info.Mode(), err)
			}
			s.must(os.Remove(s.path))
			back("the path is back")
			s.must(os.Remove(hiddenName(s)))
			s.must(os.Remove(s.path))
			back("the socket is back")
			old, err := net.Dial("unix", s.path) // while it is open the kernel does not tell that its directory is gone
			s.must(err)
			defer old.Close()
			for range 3 {
				if err := os.RemoveAll(filepath.Dir(s.path)); err != nil && !errors.Is(err, unix.ENOTEMPTY) {
					t.Fatal(err)
				}
				back("the directory is back")
			}
			s.must(os.Rename(filepath.Dir(s.path), filepath.Dir(s.path)+".old"))
			back("the directory that was moved is back")
			k := s.startKubelet()
			s.eventually("the kubelet is aside", func() bool { return s.answers(s.aside, k.name) && s.answers(s.path, "devmgrd") })
			if n := strings.Count(s.log.String(), "cannot watch kubelet's PodResources directory"); blind && n != 1 || !blind && n != 0 {
				t.Errorf("the missing watch is logged %d times", n)
			}
		})
	}
}

// An agent that writes in the directory may set a socket's times. The socket stays devmgrd's.
func TestSocketTimesAreSet(t *testing.T) {
	s := newStage(t)
	s.startKubelet()
	stop := s.start()
	s.eventually("devmgrd answers", func() bool { return s.answers(s.path, "devmgrd") })
	long := time.Now().Add(-24 * time.Hour)
	s.must(os.Chtimes(s.path, long, long))
	s.startKubelet() // it replaces the socket
	kubelet := s.kubelet.Load()
	s.eventually("devmgrd answers again", func() bool { return s.answers(s.path, "devmgrd") })
	s.eventually("the kubelet is aside", func() bool { return s.answers(s.aside, kubelet.name) })
	stop()
	s.eventually("the kubelet answers", func() bool { return s.answers(s.path, kubelet.name) })
}

// Files that are no sockets stop nothing, wherever another process leaves them. devmgrd logs them.
func TestTakeover_ForeignFiles_AreReplaced(t *testing.T) {
	outside := t.TempDir()
	precious := filepath.Join(outside, "precious")
	if err := os.WriteFile(precious, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for kind, leave := range map[string]func(path string) error{
		"file":          func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"symbolic link": func(path string) error { return os.Symlink(precious, path) },
		"FIFO":          func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"directory": func(path string) error {
			return errors.Join(os.MkdirAll(filepath.Join(path, "a"), 0o700), os.Symlink(outside, filepath.Join(path, "link")))
		},
	} {
		for _, bare := range []bool{false, true} {
			for _, running := range []bool{false, true} {
				for _, aside := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s, bare %v, a kubelet %v, aside %v", kind, bare, running, aside), func(t *testing.T) {
						s := newStage(t)
						s.bare = bare
						if running {
							s.startKubelet()
						}
						s.must(os.MkdirAll(filepath.Dir(s.path), 0o750))
						others := []string{hiddenName(s), hiddenName(s) + ".1"}
						if aside { // a kubelet stays where it can be found
							if running {
								s.must(os.Rename(s.path, s.aside))
							}
							others = append(others, s.path)
						} else {
							others = append(others, s.aside)
						}
						for _, path := range others {
							s.must(leave(path))
						}
						stop := s.start()
						kubelet := s.kubelet.Load()
						s.eventually("devmgrd answers", func() bool { return s.answers(s.path, "devmgrd") })
						s.eventually("the kubelet is aside", func() bool { return kubelet == nil || s.answers(s.aside, kubelet.name) })
						if !strings.Contains(s.log.String(), "replacing file") || !strings.Contains(s.log.String(), kind) {
							t.Error("what was at the names is not told")
						}
						// While it runs, too.
						for _, path := range []string{hiddenName(s), s.path} {
							s.must(leave(path + ".stray"))
							s.eventually("it is at the name", func() bool {
								if os.Rename(path+".stray", path) == nil {
									return true
								}
								_ = os.Remove(path) // which a directory cannot replace
								return false
							})
							// Until then the kubelet's own socket may be at the path for a moment, and would be lost.
							s.eventually("both names are of devmgrd's socket", func() bool {
								ours, err := os.Lstat(hiddenName(s))
								at, missing := os.Lstat(s.path)
								return err == nil && missing == nil && os.SameFile(ours, at) && s.answers(s.path, "devmgrd")
							})
						}
						s.must(os.Remove(s.path))
						stop()
						if kubelet != nil {
							s.eventually("the kubelet has its path back", func() bool { return s.answers(s.path, kubelet.name) })
						}
						if text, err := os.ReadFile(precious); string(text) != "precious" {
							t.Errorf("a link was followed: %v", err)
						}
					})
				}
			}
		}
	}
}

// Two of us do not fight.
func TestSecondTakeover(t *testing.T) {
	s := newStage(t)
	s.start()
	s.eventually("devmgrd answers", func() bool { return s.answers(s.path, "devmgrd") })
	second := s.make()
	if _, err := second.Listen(); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("(pid %d) listens on %s already; stop it or set podResources.takeover to false", os.Getpid(), second.hidden)) {
		t.Errorf("a second one listens: %v", err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	s.must(second.Run(ended))
	if !s.answers(s.path, "devmgrd") {
		t.Error("the second one has removed what is the first one's")
	}
	long := New(filepath.Join("/tmp", strings.Repeat("long", 23), "kubelet.sock"), slog.New(slog.DiscardHandler))
	if _, err := long.Listen(); err == nil || !strings.Contains(err.Error(), "107 bytes") {
		t.Errorf("a path that is too long: %v", err)
	}
}

// The users that may dial the kubelet may dial devmgrd, and no others.
func TestMode(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	s := newStage(t)
	mode := func(want fs.FileMode) {
		t.Helper()
		s.eventually("devmgrd answers", func() bool { return s.answers(s.path, "devmgrd") })
		if info, err := os.Stat(s.path); err != nil || info.Mode().Perm() != want {
			t.Errorf("the mode is %v, want %v (%v)", info.Mode().Perm(), want, err)
		}
	}
	s.start()
	mode(socketMode)
	s.startKubelet()
	s.eventually("the kubelet is aside", func() bool { return s.answers(s.aside, "kubelet 1") })
	mode(0o700)
	// One that any process may dial is no example.
	s.stopKubelet()
	syscall.Umask(0)
	s.startKubelet()
	s.eventually("the kubelet is aside", func() bool { return s.answers(s.aside, "kubelet 2") })
	mode(0o770)
}

// The pace does not delay a kubelet's starts, and bounds the work for a process that takes the path again and again.
func TestPace(t *testing.T) {
	var p pace
	now := time.Now()
	for range 3 * burst {
		now = now.Add(interval)
		p.took(now)
	}
	for range burst - 1 {
		p.took(now)
	}
	if p.due.After(now) {
		t.Errorf("a burst waits for %v", p.due.Sub(now))
	}
	for n := range 10 {
		p.took(now)
		if want := time.Duration(n+1) * interval; p.due.Sub(now) != want {
			t.Errorf("taking %d more has to wait for %v, want %v", n+1, p.due.Sub(now), want)
		}
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	p.due = time.Now().Add(time.Hour)
	p.wait(ended)
}

// A step that never finds the names as they should be ends with the reason.
func TestSettle_NeverDone_Fails(t *testing.T) {
	u := New("/run/kubelet.sock", slog.New(slog.DiscardHandler))
	steps := 0
	step := func(err error) func() (bool, error) {
		return func() (bool, error) { steps++; return false, err }
	}
	if err := u.settle(step(nil)); err == nil || !strings.Contains(err.Error(), "another process keeps taking /run/kubelet.sock") {
		t.Errorf("settle: %v", err)
	}
	if err := u.settle(step(fs.ErrExist)); !errors.Is(err, fs.ErrExist) || steps != 20 {
		t.Errorf("settle: %v, after %d steps", err, steps)
	}
}
