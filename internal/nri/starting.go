package nri

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"

	"github.com/containerd/nri/pkg/stub"
	"github.com/containerd/ttrpc"
)

var (
	errNotConfigured = errors.New("the runtime closed the connection before it had configured devmgrd")
	errMalformed     = errors.New("the runtime sent a malformed message before it had configured devmgrd")
)

// A starting is the connection of a stub that starts. The stub registers, and then waits for the runtime's call of Configure: without a limit, also after the
// connection has ended, and with its lock held, so that none of its goroutines ends. But if the registration fails, the stub closes all that it has opened.
// So the starting extends the registration until Configure has returned, and fails it if the connection or the context ends before.
type starting struct {
	net.Conn
	ended      signal // with its reason
	configured signal // Configure has returned
}

// A signal is set once.
type signal struct {
	once sync.Once
	done chan struct{}
	err  error
}

func (s *signal) set(err error) {
	s.once.Do(func() {
		s.err = err
		close(s.done)
	})
}

func (s *signal) isSet() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

func newStarting(conn net.Conn) *starting {
	return &starting{Conn: conn, ended: signal{done: make(chan struct{})}, configured: signal{done: make(chan struct{})}}
}

// options are those of the stub. ctx bounds its start.
func (s *starting) options(ctx context.Context) []stub.Option {
	return []stub.Option{
		stub.WithConnection(s),
		stub.WithTTRPCOptions(
			[]ttrpc.ClientOpts{ttrpc.WithUnaryClientInterceptor(s.register(ctx))},
			[]ttrpc.ServerOpt{ttrpc.WithChainUnaryServerInterceptor(s.configure)}),
	}
}

// Read is called until the connection ends.
func (s *starting) Read(to []byte) (int, error) {
	n, err := s.Conn.Read(to)
	if err != nil {
		s.ended.set(errNotConfigured)
	}
	return n, err
}

// Close is called while the stub starts if a message is malformed, and when the stub has ended.
func (s *starting) Close() error {
	s.ended.set(errMalformed)
	return s.Conn.Close()
}

// register intercepts the stub's only call, RegisterPlugin.
func (s *starting) register(ctx context.Context) ttrpc.UnaryClientInterceptor {
	return func(call context.Context, req *ttrpc.Request, resp *ttrpc.Response, _ *ttrpc.UnaryClientInfo, invoke ttrpc.Invoker) error {
		call, cancel := context.WithCancel(call)
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		err := invoke(call, req, resp)
		switch {
		case err == nil && resp.GetStatus().GetCode() != 0:
			return nil // the caller returns the status
		case err != nil && ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && !errors.Is(err, ttrpc.ErrClosed) && !s.ended.isSet():
			return err
		}
		// Either the runtime has accepted, or the connection ends, for which ttrpc has several errors, also in place of an answer that it has.
		select {
		case <-s.configured.done:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.ended.done:
			if s.configured.isSet() {
				return nil // the connection ended afterwards, which the stub sees
			}
			return s.ended.err
		}
	}
}

// configure intercepts the runtime's calls. The stub's start ends with the handler of Configure, also if the handler returns an error.
func (s *starting) configure(ctx context.Context, unmarshal ttrpc.Unmarshaler, info *ttrpc.UnaryServerInfo, method ttrpc.Method) (any, error) {
	if !strings.HasSuffix(info.FullMethod, "/Configure") {
		return method(ctx, unmarshal)
	}
	called := false // a malformed request does not reach the handler
	defer func() {
		if called {
			s.configured.set(nil)
		}
	}()
	return method(ctx, func(to any) error {
		err := unmarshal(to)
		called = err == nil
		return err
	})
}
