package admin

import (
	"context"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
)

// A Reader offers the read-only calls within this process, without the socket.
type Reader struct{ s service }

// Reader returns a Reader of the server.
func (s *Server) Reader() Reader { return Reader{service{Server: s}} }

// Updated is View.Updated.
func (r Reader) Updated() <-chan struct{} { return r.s.cfg.View.Updated() }

// GetStatus is the call of that name, as are the methods below.
func (r Reader) GetStatus(ctx context.Context, request *adminv1.GetStatusRequest) (*adminv1.GetStatusResponse, error) {
	return r.s.GetStatus(ctx, request)
}

func (r Reader) ListPlugins(ctx context.Context, request *adminv1.ListPluginsRequest) (*adminv1.ListPluginsResponse, error) {
	return r.s.ListPlugins(ctx, request)
}

func (r Reader) ListDevices(ctx context.Context, request *adminv1.ListDevicesRequest) (*adminv1.ListDevicesResponse, error) {
	return r.s.ListDevices(ctx, request)
}

func (r Reader) ListAssignments(ctx context.Context, request *adminv1.ListAssignmentsRequest) (*adminv1.ListAssignmentsResponse, error) {
	return r.s.ListAssignments(ctx, request)
}

func (r Reader) ListHistory(ctx context.Context, request *adminv1.ListHistoryRequest) (*adminv1.ListHistoryResponse, error) {
	return r.s.ListHistory(ctx, request)
}

func (r Reader) Explain(ctx context.Context, request *adminv1.ExplainRequest) (*adminv1.ExplainResponse, error) {
	return r.s.Explain(ctx, request)
}
