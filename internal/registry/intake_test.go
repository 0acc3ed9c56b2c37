package registry_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/devmgrd/devmgrd/internal/registry"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// Each session has a part of its message in memory that costs nothing; more is read of two clients at once, and of each for a limited time.
func TestIntake_MessagesNeverEnd_OthersHaveTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = time.Minute
		intakes := registry.NewIntakes(limit)
		type session struct {
			read  atomic.Int64
			ended atomic.Value // the error's text
			whole func()
		}
		// stream has frames of 4 KiB; a reader's buffer has as much.
		const payload = 4<<10 - 9
		stream := func(kind byte, count int) []byte {
			return bytes.Repeat(append([]byte{payload >> 16, payload >> 8, payload & 0xff, kind, 0, 0, 0, 0, 1}, make([]byte, payload)...), count)
		}
		open := func(client string, kind byte, count int) *session {
			here, there := net.Pipe()
			in, whole := intakes.Of(client, here)
			s := &session{whole: whole}
			go func() { // the plugin stops within a message
				if _, err := there.Write(stream(kind, count)); err == nil {
					<-t.Context().Done()
				}
			}()
			go func() {
				for buffer := make([]byte, 4<<10); ; {
					n, err := in.Read(buffer)
					s.read.Add(int64(n))
					if err != nil {
						s.ended.Store(err.Error())
						in.Close()
						return
					}
				}
			}()
			t.Cleanup(func() { in.Close(); there.Close() })
			synctest.Wait()
			return s
		}
		const data, other, long = 0, 6, 300          // DATA, PING; of DATA, far more than without a turn
		const free = registry.FreeIntake/payload + 1 // then a turn is needed
		short := open("a", data, registry.FreeIntake/payload)
		pings := open("a", other, long)
		first := open("a", data, long)
		second := open("a", data, long) // of the same client
		another := open("b", data, long)
		third := open("c", data, long) // both turns are taken
		for name, s := range map[string]struct{ read, want int64 }{
			"a short message": {short.read.Load(), registry.FreeIntake / payload}, "no message": {pings.read.Load(), long},
			"the first": {first.read.Load(), long}, "the client's second": {second.read.Load(), free},
			"another client's": {another.read.Load(), long}, "a third client's": {third.read.Load(), free},
		} {
			if s.read != s.want<<12 {
				t.Errorf("%s: %d bytes are read, want %d", name, s.read, s.want<<12)
			}
		}
		another.whole() // in time
		synctest.Wait()
		if n := third.read.Load(); n != long<<12 {
			t.Errorf("the third client has no turn when another's message is whole: %d bytes", n)
		}
		time.Sleep(limit + time.Second)
		synctest.Wait()
		if end := first.ended.Load(); end != "a message of the plugin is not whole after 1m0s" || second.read.Load() != long<<12 {
			t.Errorf("the first ends with %v, and the client's second has %d bytes", end, second.read.Load())
		}
		if short.ended.Load() != nil || pings.ended.Load() != nil || another.ended.Load() != nil {
			t.Errorf("sessions without a turn have ended: %v, %v", short.ended.Load(), another.ended.Load())
		}
	})
}

// A stalling connection stops after so many bytes.
type stalling struct {
	net.Listener
	left int
}

func (s *stalling) Accept() (net.Conn, error) {
	c, err := s.Listener.Accept()
	closed := make(chan struct{})
	return &stalled{c, s.left, closed, sync.OnceFunc(func() { close(closed) })}, err
}

type stalled struct {
	net.Conn
	left   int
	closed chan struct{}
	end    func()
}

func (s *stalled) Write(p []byte) (int, error) {
	s.left -= len(p)
	if s.left < 0 {
		<-s.closed
		return 0, net.ErrClosed
	}
	return s.Conn.Write(p)
}

func (s *stalled) Close() error {
	s.end()
	return s.Conn.Close()
}

// A plugin begins a long list and does not end it. A process's other plugin has a long list too.
func TestList_NeverEnds_PluginIsDisconnected(t *testing.T) {
	t.Parallel()
	f := prepare(t)
	f.SetIntakeTime(200 * time.Millisecond)
	f.run()
	l, err := net.Listen("unix", filepath.Join(f.dir, "endless.sock"))
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(s, endless{})
	go s.Serve(&stalling{l, 1 << 20})
	defer s.Stop()
	p := plugintest.New(t, f.dir, "endless.example/x")
	p.Endpoint = "endless.sock"
	if err := p.Register(); err != nil {
		t.Fatal(err)
	}
	f.eventually("it is disconnected", func() bool { return f.logs.count("is not whole after 200ms") > 0 })
	many := plugintest.Devices(5000)
	for i, d := range many {
		d.ID = fmt.Sprintf("%040d", i)
	}
	plugintest.Start(t, f.dir, gpu, many...)
	f.eventually("another with a long list serves", f.servesNumber(len(many)))
}

type endless struct {
	pluginapi.UnimplementedDevicePluginServer
}

func (endless) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (endless) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	return stream.Send(&pluginapi.ListAndWatchResponse{Devices: []*pluginapi.Device{{ID: strings.Repeat("x", 30<<20)}}})
}
