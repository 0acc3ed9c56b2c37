package nri

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/net/multiplex"
	"github.com/containerd/ttrpc"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// A script is one runtime's side of one connection.
type script struct {
	*testing.T
	*net.UnixConn
	giveUp func() // ends devmgrd's context
}

// registered reads devmgrd's RegisterPlugin.
func (s script) registered() {
	s.Helper()
	if err := copyFrame(io.Discard, s); err != nil {
		s.Error(err)
	}
}

// answer sends the answer to RegisterPlugin: a frame of NRI with a message of ttrpc, which is a response (2) on the stream 1.
func (s script) answer(response ...byte) {
	s.Helper()
	frame := binary.BigEndian.AppendUint32(nil, uint32(multiplex.RuntimeServiceConn))
	frame = binary.BigEndian.AppendUint32(frame, uint32(10+len(response)))
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(response)))
	frame = append(frame, 0, 0, 0, 1, 2, 0)
	if _, err := s.Write(append(frame, response...)); err != nil && !errors.Is(err, syscall.EPIPE) { // devmgrd may give up before
		s.Error(err)
	}
}

// refused is an answer with the status 7 and the text "no".
var refused = []byte{0x0a, 6, 0x08, 7, 0x12, 2, 'n', 'o'}

// accept answers RegisterPlugin.
func (s script) accept() {
	s.Helper()
	s.registered()
	s.answer()
}

// plugin returns devmgrd as the runtime calls it. close closes the connection.
func (s script) plugin() (_ api.PluginService, close func()) {
	s.Helper()
	mux := multiplex.Multiplex(s.UnixConn)
	conn, err := mux.Open(multiplex.PluginServiceConn)
	if err != nil {
		s.Error(err)
	}
	client := ttrpc.NewClient(conn)
	return api.NewPluginClient(client), func() {
		mux.Close()
		client.Close()
		if err := client.UserOnCloseWait(context.Background()); err != nil {
			s.Error(err)
		}
	}
}

// configure is the request of containerd.
var configure = &api.ConfigureRequest{RuntimeName: "containerd", RuntimeVersion: "v2.4.2", RequestTimeout: time.Hour.Milliseconds()}

// configured accepts the registration, and configures devmgrd.
func (s script) configured() (_ api.PluginService, close func()) {
	s.Helper()
	s.accept()
	plugin, end := s.plugin()
	plugin.Configure(context.Background(), configure) // Probe refuses
	return plugin, end
}

// wait waits until devmgrd has closed the connection.
func (s script) wait() {
	s.Helper()
	if err := s.SetReadDeadline(time.Now().Add(patience)); err != nil {
		s.Error(err)
	}
	if _, err := io.Copy(io.Discard, s); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		s.Errorf("devmgrd has not closed the connection: %v", err)
	}
}

// stopped passes the connection to a process that is stopped. kill kills it.
func (s script) stopped() (kill func()) {
	s.Helper()
	file, err := s.File()
	if err != nil {
		s.Error(err)
		return func() {}
	}
	process := exec.Command("sleep", "3600")
	process.ExtraFiles = []*os.File{file}
	if err := errors.Join(process.Start(), file.Close(), s.Close()); err != nil {
		s.Error(err)
		return func() {}
	}
	var status syscall.WaitStatus
	err = process.Process.Signal(syscall.SIGSTOP)
	if err == nil {
		_, err = syscall.Wait4(process.Process.Pid, &status, syscall.WUNTRACED, nil)
	}
	if err != nil || !status.Stopped() {
		s.Errorf("the runtime is not stopped: %v, %v", status, err)
	}
	return func() {
		if err := process.Process.Kill(); err != nil {
			s.Error(err)
		}
		process.Wait() // killed
	}
}

// play listens as a runtime does, and plays the script on the first connection.
func play(t *testing.T, socket string, giveUp func(), of func(script)) (ended <-chan struct{}) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.Accept()
		l.Close()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		of(script{t, conn.(*net.UnixConn), giveUp})
	}()
	return done
}

// labelled returns the stacks of the goroutines with a label, which goroutines pass on to those that they start.
func labelled(t *testing.T, key string) string {
	t.Helper()
	var all bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&all, 1); err != nil {
		t.Fatal(err)
	}
	var with []string
	for one := range strings.SplitSeq(all.String(), "\n\n") {
		if strings.Contains(one, `"`+key+`":`) {
			with = append(with, one)
		}
	}
	return strings.Join(with, "\n\n")
}

// descriptors returns the number of open files of this process.
func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// The runtime ends, hangs or closes the connection at any step of devmgrd's start. devmgrd sees it at once, and keeps nothing of the attempt. The test counts
// descriptors, so it runs alone.
func TestConnection_RuntimeEndsWhileItStarts_AttemptLeavesNothing(t *testing.T) {
	const notConfigured = "the runtime closed the connection before it had configured devmgrd"
	for _, test := range []struct {
		name   string
		script func(script)
		says   string // of the Connection
		check  string // of Probe; none: it succeeds
	}{
		{"it accepts the connection", func(script) {}, notConfigured, notConfigured},
		{"it does not answer", func(s script) { s.registered() }, notConfigured, notConfigured},
		{"it refuses", func(s script) {
			s.registered()
			s.answer(refused...)
			s.wait()
		}, "PermissionDenied desc = no", "PermissionDenied desc = no"},
		{"it answers", func(s script) { s.accept() }, notConfigured, notConfigured},
		{"it answers, and sends nothing more", func(s script) {
			s.accept()
			if err := s.CloseWrite(); err != nil {
				s.Error(err)
			}
			s.wait()
		}, notConfigured, notConfigured},
		{"it answers with a malformed frame", func(s script) {
			s.accept()
			if _, err := s.Write(bytes.Repeat([]byte{0xff}, 8)); err != nil {
				s.Error(err)
			}
			s.wait()
		}, "failed to register", "failed to register"}, // by starting or by multiplex, which read it
		{"it sends a part of Configure", func(s script) {
			s.accept()
			if _, err := s.Write([]byte{0, 0, 0, byte(multiplex.PluginServiceConn), 0, 0, 0, 100, 1}); err != nil {
				s.Error(err)
			}
		}, notConfigured, notConfigured},
		{"it is stopped before its answer, and killed", func(s script) {
			s.registered()
			s.stopped()()
		}, notConfigured, notConfigured},
		{"it is stopped after its answer, and killed", func(s script) {
			s.accept()
			s.stopped()()
		}, notConfigured, notConfigured},
		{"it hangs before its answer", func(s script) {
			s.registered()
			s.giveUp()
			s.wait()
		}, "the runtime has not configured devmgrd within 10ms", "it accepts the connection and does not answer"},
		{"it hangs after its answer", func(s script) {
			s.accept()
			s.giveUp()
			s.wait()
		}, "the runtime has not configured devmgrd within 10ms", "it accepts the connection and does not answer"},
		{"it configures before its answer", func(s script) {
			s.registered()
			plugin, end := s.plugin()
			defer end()
			plugin.Configure(context.Background(), configure) // Probe refuses
		}, "before it had listed its containers, after 0 pods and 0 containers", ""},
		{"it configures", func(s script) {
			_, end := s.configured()
			end()
		}, "before it had listed its containers, after 0 pods and 0 containers", ""},
		{"it lists a part", func(s script) {
			plugin, end := s.configured()
			defer end()
			plugin.Synchronize(context.Background(), &api.SynchronizeRequest{Pods: []*api.PodSandbox{sandbox()}, More: true})
		}, "before it had listed its containers, after 1 pods and 0 containers", ""},
		{"it lists all", func(s script) {
			plugin, end := s.configured()
			defer end()
			plugin.Synchronize(context.Background(), &api.SynchronizeRequest{Pods: []*api.PodSandbox{sandbox()}})
		}, errLost.Error(), ""},
	} {
		for of, says := range map[string]string{"Connection": test.says, "Probe": test.check} {
			t.Run(test.name+"/"+of, func(t *testing.T) {
				before := descriptors(t)
				ctx, cancel := context.WithCancel(t.Context())
				n := attempting(filepath.Join(t.TempDir(), "nri.sock"))
				attempt, giveUp := n.runOnce, func() {}
				if of == "Probe" {
					attempt = func(ctx context.Context) (bool, error) {
						_, err := Probe(ctx, n.Socket)
						return false, err
					}
					giveUp = cancel
				} else if strings.Contains(says, "10ms") {
					n.limit = 10 * time.Millisecond
				}
				ended := play(t, n.Socket, giveUp, test.script)
				result := make(chan error, 1)
				pprof.Do(ctx, pprof.Labels(t.Name(), ""), func(ctx context.Context) {
					go func() {
						_, err := attempt(ctx)
						result <- err
					}()
				})
				select {
				case err := <-result:
					if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
						t.Errorf("the attempt ends with %v, want %q", err, says)
					}
				case <-time.After(patience):
					t.Error("the attempt does not end")
				}
				<-ended
				plugintest.Eventually(t, "the attempt's goroutines and descriptors are closed", func() bool {
					return labelled(t, t.Name()) == "" && descriptors(t) <= before
				})
				cancel()
			})
		}
	}
}

// attempting returns a Connection that waits for the runtime for an hour.
func attempting(socket string) *Connection {
	l := &listener{lists: make(chan []device.Running, 1)}
	n := New(Config{Socket: socket, Index: "05", MaxWait: time.Second, Allocator: l, Runtime: l, Pods: l, Notifier: l, Dirs: &harness{}, Presence: &Presence{},
		Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
	n.limit = time.Hour
	return n
}

// devmgrd ends while it waits for the runtime.
func TestConnection_ContextEndsWhileItStarts_AttemptLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(script){
		"before the answer": script.registered,
		"after the answer": func(s script) {
			s.accept()
			plugin, _ := s.plugin()
			if _, err := plugin.Shutdown(context.Background(), &api.Empty{}); err != nil { // devmgrd has the answer, which came before
				s.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			n := attempting(filepath.Join(t.TempDir(), "nri.sock"))
			ended := play(t, n.Socket, cancel, func(s script) {
				begin(s)
				s.giveUp()
			})
			var work sync.WaitGroup
			pprof.Do(ctx, pprof.Labels(t.Name(), ""), func(ctx context.Context) {
				work.Go(func() {
					if err := n.Run(ctx); err != nil {
						t.Error(err)
					}
				})
			})
			work.Wait()
			<-ended
			plugintest.Eventually(t, "the attempt's goroutines have ended", func() bool { return labelled(t, t.Name()) == "" })
		})
	}
}
