package registry_test

import (
	"net"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

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
