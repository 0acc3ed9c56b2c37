package client_test

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/client"
)

// A server answers GetStatus, refuses Explain, and never finishes a ListDevices.
type server struct {
	adminv1.UnimplementedAdminServiceServer
}

func (server) GetStatus(context.Context, *adminv1.GetStatusRequest) (*adminv1.GetStatusResponse, error) {
	return &adminv1.GetStatusResponse{Node: "worker-1"}, nil
}

func (server) Explain(context.Context, *adminv1.ExplainRequest) (*adminv1.ExplainResponse, error) {
	return nil, status.Error(codes.NotFound, "pod ns/p is not known on this node")
}

func (server) ListDevices(ctx context.Context, _ *adminv1.ListDevicesRequest) (*adminv1.ListDevicesResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestClient_Diagnose_NamesCauseAndRemedy(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "admin.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	adminv1.RegisterAdminServiceServer(s, server{})
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()

	c, err := client.New(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	answer, err := c.GetStatus(t.Context(), &adminv1.GetStatusRequest{})
	if err != nil || answer.Node != "worker-1" || c.Diagnose(err) != nil {
		t.Errorf("GetStatus: %v, %v", answer, err)
	}
	explains := func(err error, want string) {
		t.Helper()
		if got := c.Diagnose(err); got == nil || !strings.Contains(got.Error(), want) {
			t.Errorf("%v becomes %v, want %q", err, got, want)
		}
	}
	_, err = c.Explain(t.Context(), &adminv1.ExplainRequest{})
	explains(err, "pod ns/p is not known on this node")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = c.ListDevices(ctx, &adminv1.ListDevicesRequest{})
	explains(err, "did not finish in time")

	s.Stop()
	<-ended
	_, err = c.GetStatus(t.Context(), &adminv1.GetStatusRequest{})
	explains(err, "it is not running (systemctl status devmgrd)")
}
