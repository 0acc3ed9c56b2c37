package registry_test

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/devmgrd/devmgrd/test/plugintest"
)

// plain sends bytes as they are.
type plain struct{ encoding.CodecV2 }

func (plain) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}
func (plain) Unmarshal(mem.BufferSlice, any) error { return nil }
func (plain) Name() string                         { return "proto" }

// A plugin answers GetDevicePluginOptions with a long field that the API does not have.
func TestRegister_OptionsAreLong_Fails(t *testing.T) {
	t.Parallel()
	f := start(t)
	l, err := net.Listen("unix", filepath.Join(f.dir, "long.sock"))
	if err != nil {
		t.Fatal(err)
	}
	answer := protowire.AppendBytes(protowire.AppendTag(nil, 99, protowire.BytesType), make([]byte, 65<<10))
	s := grpc.NewServer(grpc.ForceServerCodecV2(plain{}), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		var none []byte
		if err := stream.RecvMsg(&none); err != nil {
			return err
		}
		return stream.SendMsg(answer)
	}))
	go s.Serve(l)
	defer s.Stop()
	p := plugintest.New(t, f.dir, gpu)
	p.Endpoint = "long.sock"
	if err := p.Register(); status.Code(err) == codes.OK || !strings.Contains(err.Error(), "larger than max") {
		t.Errorf("it is accepted: %v", err)
	}
}

// A plugin and callers of Register send long headers, which stay in memory as long as the stream or the call does.
func TestRegister_HeadersAreLong_Fails(t *testing.T) {
	t.Parallel()
	f := start(t)
	long := strings.Repeat("~", 32<<10)
	l, err := net.Listen("unix", filepath.Join(f.dir, "long.sock"))
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(s, longHeaders{header: metadata.Pairs("x", long)})
	go s.Serve(l)
	defer s.Stop()
	p := plugintest.New(t, f.dir, gpu)
	p.Endpoint = "long.sock"
	if err := p.Register(); err == nil || !strings.Contains(err.Error(), "failed to get device plugin options: rpc error: code = Internal") {
		t.Errorf("a plugin with long headers is accepted: %v", err)
	}
	client := pluginapi.NewRegistrationClient(plugintest.Client(t, filepath.Join(f.dir, "kubelet.sock")))
	_, err = client.Register(metadata.AppendToOutgoingContext(t.Context(), "x", long), &pluginapi.RegisterRequest{Version: "v1beta1", Endpoint: "none.sock", ResourceName: string(gpu)})
	if err == nil || !strings.Contains(err.Error(), "header list size") {
		t.Errorf("a call with long headers is answered: %v", err)
	}
}

// longHeaders is a plugin that answers with headers.
type longHeaders struct {
	pluginapi.UnimplementedDevicePluginServer
	header metadata.MD
}

func (h longHeaders) GetDevicePluginOptions(ctx context.Context, _ *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, grpc.SetHeader(ctx, h.header)
}
