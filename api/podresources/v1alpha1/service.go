package v1alpha1

import (
	"context"

	"google.golang.org/grpc"
	kubelet "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"
)

// This file is what protoc-gen-go-grpc would make of
//
//	service PodResources {
//	  rpc List(ListPodResourcesRequest) returns (ListPodResourcesResponse);
//	  rpc ListDevices(ListDevicesRequest) returns (ListDevicesResponse);
//	}
//
// if there were no message v1alpha1.PodResources. gRPC itself only sends the name, and does not mind.

// The methods as clients call them.
const (
	ServiceName           = "v1alpha1.PodResources"
	ListFullMethod        = "/" + ServiceName + "/List"
	ListDevicesFullMethod = "/" + ServiceName + "/ListDevices"
)

// A PodResourcesServer answers for a node. It is called from many goroutines.
type PodResourcesServer interface {
	// List returns what each pod has.
	List(context.Context, *kubelet.ListPodResourcesRequest) (*kubelet.ListPodResourcesResponse, error)
	// ListDevices returns what there is.
	ListDevices(context.Context, *ListDevicesRequest) (*ListDevicesResponse, error)
}

// RegisterPodResourcesServer has to come before the server serves.
func RegisterPodResourcesServer(at grpc.ServiceRegistrar, server PodResourcesServer) {
	at.RegisterService(&grpc.ServiceDesc{
		ServiceName: ServiceName,
		HandlerType: (*PodResourcesServer)(nil),
		Methods: []grpc.MethodDesc{
			{MethodName: "List", Handler: handler(ListFullMethod, PodResourcesServer.List)},
			{MethodName: "ListDevices", Handler: handler(ListDevicesFullMethod, PodResourcesServer.ListDevices)},
		},
		Metadata: File_podresources_v1alpha1_podresources_proto.Path(),
	}, server)
}

func handler[Q, A any](method string, call func(PodResourcesServer, context.Context, *Q) (*A, error)) grpc.MethodHandler {
	return func(server any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		request := new(Q)
		if err := decode(request); err != nil {
			return nil, err
		}
		if interceptor == nil {
			return call(server.(PodResourcesServer), ctx, request)
		}
		info := &grpc.UnaryServerInfo{Server: server, FullMethod: method}
		return interceptor(ctx, request, info, func(ctx context.Context, request any) (any, error) {
			return call(server.(PodResourcesServer), ctx, request.(*Q))
		})
	}
}

// A PodResourcesClient asks the service. It may be used from many goroutines.
type PodResourcesClient struct{ conn grpc.ClientConnInterface }

// NewPodResourcesClient leaves the connection to the caller, who closes it.
func NewPodResourcesClient(conn grpc.ClientConnInterface) *PodResourcesClient {
	return &PodResourcesClient{conn}
}

// List returns what each pod has.
func (c *PodResourcesClient) List(ctx context.Context, request *kubelet.ListPodResourcesRequest, options ...grpc.CallOption) (*kubelet.ListPodResourcesResponse, error) {
	answer := new(kubelet.ListPodResourcesResponse)
	if err := c.conn.Invoke(ctx, ListFullMethod, request, answer, options...); err != nil {
		return nil, err
	}
	return answer, nil
}

// ListDevices returns what there is.
func (c *PodResourcesClient) ListDevices(ctx context.Context, request *ListDevicesRequest, options ...grpc.CallOption) (*ListDevicesResponse, error) {
	answer := new(ListDevicesResponse)
	if err := c.conn.Invoke(ctx, ListDevicesFullMethod, request, answer, options...); err != nil {
		return nil, err
	}
	return answer, nil
}
