package plugintest

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	watcherapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// A server is one socket that is served.
type server struct {
	grpc *grpc.Server
	done chan struct{} // closed when it has ended
}

// listen serves at path, in place of a file that is there, and returns when it does.
func (p *Plugin) listen(path string, devices, registers bool) *server {
	p.t.Helper()
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		p.t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		p.t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	s := &server{grpc: grpc.NewServer(grpc.MaxRecvMsgSize(1 << 30)), done: make(chan struct{})}
	if devices {
		pluginapi.RegisterDevicePluginServer(s.grpc, &service{plugin: p})
	}
	if registers {
		watcherapi.RegisterRegistrationServer(s.grpc, &registration{plugin: p})
	}
	go func() {
		defer close(s.done)
		_ = s.grpc.Serve(&door{Listener: l, open: &p.conns, gate: p.Gate, closed: make(chan struct{})}) // ends with end
	}()
	return s
}

func (s *server) end() {
	s.grpc.Stop()
	<-s.done
}

// A door is a listener that counts the connections that are open, and takes none before its gate is open.
type door struct {
	net.Listener
	open   *atomic.Int32
	gate   <-chan struct{} // nil: there is none
	closed chan struct{}
	once   sync.Once
}

func (d *door) Accept() (net.Conn, error) {
	if d.gate != nil {
		select {
		case <-d.gate:
		case <-d.closed:
		}
	}
	conn, err := d.Listener.Accept()
	if err != nil {
		return nil, err
	}
	d.open.Add(1)
	return &counted{Conn: conn, gone: sync.OnceFunc(func() { d.open.Add(-1) })}, nil
}

func (d *door) Close() error {
	d.once.Do(func() { close(d.closed) })
	return d.Listener.Close()
}

type counted struct {
	net.Conn
	gone func()
}

func (c *counted) Close() error {
	c.gone()
	return c.Conn.Close()
}
