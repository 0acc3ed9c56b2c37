// Package api_test asks for the services by the names that clients know, whatever the Go code here calls them.
package api_test

import (
	"context"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/timestamppb"
	kubelet "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	watch "github.com/devmgrd/devmgrd/api/devmgrd/podresources/v1"
	proposal "github.com/devmgrd/devmgrd/api/podresources/v1alpha1"
)

var (
	devices = []*kubelet.ContainerDevices{{ResourceName: "vendor.example/gpu", DeviceIds: []string{"gpu-0", "gpu-1"}}}
	pods    = []*kubelet.PodResources{{Name: "train", Namespace: "ml", Containers: []*kubelet.ContainerResources{{Name: "main", Devices: devices}}}}
	change  = &watch.WatchResponse{Resume: "7", Content: &watch.WatchResponse_Change{Change: &watch.Change{
		Time: timestamppb.New(time.Unix(7, 8)),
		What: &watch.Change_Assigned{Assigned: &watch.Pod{Namespace: "ml", Name: "train", Uid: "u"}},
	}}}
)

// node serves all three services, as one daemon does on one socket.
type node struct {
	kubelet.UnimplementedPodResourcesListerServer
	watch.UnimplementedPodResourcesServiceServer
}

func (node) List(context.Context, *kubelet.ListPodResourcesRequest) (*kubelet.ListPodResourcesResponse, error) {
	return &kubelet.ListPodResourcesResponse{PodResources: pods}, nil
}

func (node) ListDevices(context.Context, *proposal.ListDevicesRequest) (*proposal.ListDevicesResponse, error) {
	return &proposal.ListDevicesResponse{Devices: devices}, nil
}

func (node) Watch(_ *watch.WatchRequest, stream grpc.ServerStreamingServer[watch.WatchResponse]) error {
	return stream.Send(change)
}

func serve(t *testing.T, options ...grpc.ServerOption) *grpc.ClientConn {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(options...)
	kubelet.RegisterPodResourcesListerServer(server, node{})
	proposal.RegisterPodResourcesServer(server, node{})
	watch.RegisterPodResourcesServiceServer(server, node{})
	ended := make(chan error)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient("unix://"+listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Each of devmgrd's services has its name on the wire, next to that of Kubernetes, and in the argument of an interceptor.
func TestUnary(t *testing.T) {
	var seen []string
	for name, options := range map[string][]grpc.ServerOption{
		"plain": nil,
		"intercepted": {grpc.UnaryInterceptor(func(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			seen = append(seen, info.FullMethod)
			return next(ctx, request)
		})},
	} {
		t.Run(name, func(t *testing.T) {
			conn := serve(t, options...)
			list, all := &kubelet.ListPodResourcesResponse{PodResources: pods}, &proposal.ListDevicesResponse{Devices: devices}
			for _, call := range []struct {
				method         string
				request        proto.Message
				want, received proto.Message
			}{
				{"/v1alpha1.PodResourcesLister/List", &kubelet.ListPodResourcesRequest{}, list, &kubelet.ListPodResourcesResponse{}},
				{"/v1alpha1.PodResources/List", &kubelet.ListPodResourcesRequest{}, list, &kubelet.ListPodResourcesResponse{}},
				{"/v1alpha1.PodResources/ListDevices", &proposal.ListDevicesRequest{}, all, &proposal.ListDevicesResponse{}},
			} {
				if err := conn.Invoke(t.Context(), call.method, call.request, call.received); err != nil || !proto.Equal(call.received, call.want) {
					t.Errorf("%s: %v, %v; want %v", call.method, call.received, err, call.want)
				}
			}
			client := proposal.NewPodResourcesClient(conn)
			if got, err := client.List(t.Context(), &kubelet.ListPodResourcesRequest{}); err != nil || !proto.Equal(got, list) {
				t.Errorf("List: %v, %v; want %v", got, err, list)
			}
			if got, err := client.ListDevices(t.Context(), &proposal.ListDevicesRequest{}); err != nil || !proto.Equal(got, all) {
				t.Errorf("ListDevices: %v, %v; want %v", got, err, all)
			}
		})
	}
	want := []string{
		"/v1alpha1.PodResourcesLister/List",
		"/v1alpha1.PodResources/List", "/v1alpha1.PodResources/ListDevices",
		"/v1alpha1.PodResources/List", "/v1alpha1.PodResources/ListDevices",
	}
	if !slices.Equal(seen, want) {
		t.Errorf("the interceptor saw %q, want %q", seen, want)
	}
}

// The first response comes on a stream of that name.
func TestWatch(t *testing.T) {
	const method = "/devmgrd.podresources.v1.PodResourcesService/Watch"
	stream, err := serve(t).NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(&watch.WatchRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	got := &watch.WatchResponse{}
	if err := stream.RecvMsg(got); err != nil || !proto.Equal(got, change) {
		t.Errorf("%s: %v, %v; want %v", method, got, err, change)
	}
}

// Our files are in one binary with Kubernetes' own, and what they import is the file that is linked, not only its name.
func TestDescriptors(t *testing.T) {
	for file, dependency := range map[protoreflect.FileDescriptor]protoreflect.FileDescriptor{
		proposal.File_podresources_v1alpha1_podresources_proto: (&kubelet.PodResources{}).ProtoReflect().Descriptor().ParentFile(),
		watch.File_devmgrd_podresources_v1_podresources_proto:  timestamppb.File_google_protobuf_timestamp_proto,
	} {
		if got := file.Imports(); got.Len() != 1 || got.Get(0).IsPlaceholder() || got.Get(0).Path() != dependency.Path() {
			t.Errorf("%s does not import %s, but %v", file.Path(), dependency.Path(), got)
		}
		if _, err := protodesc.NewFile(protodesc.ToFileDescriptorProto(file), protoregistry.GlobalFiles); err != nil {
			t.Errorf("%s, as a client that asks for it reads it: %v", file.Path(), err)
		}
	}
	field := (&proposal.ListDevicesResponse{}).ProtoReflect().Descriptor().Fields().ByNumber(1)
	if want := (&kubelet.ContainerDevices{}).ProtoReflect().Descriptor(); field == nil || field.Message() != want || !field.IsList() {
		t.Errorf("field 1 of ListDevicesResponse is %v, want a list of %v", field, want)
	}
	if named, err := protoregistry.GlobalFiles.FindDescriptorByName(proposal.ServiceName); err != nil || named != (&kubelet.PodResources{}).ProtoReflect().Descriptor() {
		t.Errorf("%s is %v, %v: if Kubernetes no longer has such a message, the service can move into the .proto file", proposal.ServiceName, named, err)
	}
}
