// Package client calls the devmgrd of this node through its admin socket (admin.socket), which is root's alone by default.
//
//	c, err := client.New(client.DefaultSocket)
//	if err != nil {
//		return err
//	}
//	defer c.Close()
//	answer, err := c.ListDevices(ctx, &adminv1.ListDevicesRequest{})
//	if err != nil {
//		return c.Diagnose(err)
//	}
//
// Calls return gRPC status errors, whose codes api/devmgrd/admin/v1 documents.
package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
)

// DefaultSocket is the default of admin.socket.
const DefaultSocket = "/run/devmgrd/admin.sock"

// redial is how soon a client dials again whose calls have failed: the socket is on this machine.
var redial = grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}, MinConnectTimeout: 5 * time.Second}

// maxAnswerBytes bounds an answer. It has space for a million devices.
const maxAnswerBytes = 256 << 20

// A Client calls one devmgrd.
type Client struct {
	adminv1.AdminServiceClient
	socket string
	conn   *grpc.ClientConn
}

// A Method is a method of the API as an expression, such as adminv1.AdminServiceClient.GetStatus.
type Method[Q, A proto.Message] = func(adminv1.AdminServiceClient, context.Context, Q, ...grpc.CallOption) (A, error)

// New returns a client for the devmgrd that listens at a unix socket. It connects at the first call.
func New(socket string) (*Client, error) {
	conn, err := grpc.NewClient("passthrough:///devmgrd", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}), grpc.WithConnectParams(redial), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes)))
	if err != nil {
		return nil, err
	}
	return &Client{adminv1.NewAdminServiceClient(conn), socket, conn}, nil
}

// Close ends the connection, and calls that have not returned.
func (c *Client) Close() error { return c.conn.Close() }

// Diagnose turns the error of a call into one for people: why there is no answer and what to do, or devmgrd's own message.
func (c *Client) Diagnose(err error) error {
	switch status.Code(err) {
	case codes.OK:
		return nil
	case codes.DeadlineExceeded:
		return fmt.Errorf("devmgrd at %s did not finish in time; any requested change stays in force", c.socket)
	case codes.Unavailable:
	default:
		return errors.New(status.Convert(err).Message())
	}
	// gRPC reports the cause of a failed dial as text only.
	conn, cause := net.DialTimeout("unix", c.socket, time.Second)
	switch {
	case cause == nil:
		conn.Close()
		return fmt.Errorf("devmgrd at %s: %s", c.socket, status.Convert(err).Message())
	case errors.Is(cause, fs.ErrPermission):
		return fmt.Errorf("only root may use %s: run the command as root", c.socket)
	case errors.Is(cause, fs.ErrNotExist), errors.Is(cause, syscall.ECONNREFUSED):
		return fmt.Errorf("devmgrd does not answer at %s: it is not running (systemctl status devmgrd), or its admin.socket has another path (--socket)", c.socket)
	}
	return fmt.Errorf("connecting to devmgrd: %w", cause)
}
