package registry_test

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/devmgrd/devmgrd/internal/device"
)

// bare hands messages on as the bytes that they are on the wire. Without a name it leaves the content type as it was
// before codecs had names.
type bare struct{}

func (bare) Name() string { return "" }

func (bare) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (bare) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// A field is one field of a message.
type field struct {
	number protowire.Number
	value  any // a string, a bool, or the fields of a message
}

// message writes a message by hand, with more at the end of it and of each message in it.
func message(more []byte, fields ...field) []byte {
	var b []byte
	for _, f := range fields {
		switch v := f.value.(type) {
		case string:
			b = protowire.AppendString(protowire.AppendTag(b, f.number, protowire.BytesType), v)
		case bool:
			b = protowire.AppendVarint(protowire.AppendTag(b, f.number, protowire.VarintType), protowire.EncodeBool(v))
		case []field:
			b = protowire.AppendBytes(protowire.AppendTag(b, f.number, protowire.BytesType), message(more, v...))
		}
	}
	return append(b, more...)
}

// tomorrow is what no version knows yet: a field of each sort.
func tomorrow() (b []byte) {
	b = protowire.AppendVarint(protowire.AppendTag(b, 21, protowire.VarintType), 1<<60)
	b = protowire.AppendFixed32(protowire.AppendTag(b, 22, protowire.Fixed32Type), 7)
	b = protowire.AppendFixed64(protowire.AppendTag(b, 23, protowire.Fixed64Type), 7)
	b = protowire.AppendString(protowire.AppendTag(b, 24, protowire.BytesType), "not \xff text")
	b = protowire.AppendTag(b, 25, protowire.StartGroupType)
	b = protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), "inside")
	return protowire.AppendTag(b, 25, protowire.EndGroupType)
}

// A fossil is a plugin whose library is of another time than ours. It has the methods of the first v1beta1.
type fossil struct {
	more []byte // what each of its messages has besides the fields of the first v1beta1
	well chan struct{}

	mu       sync.Mutex
	requests map[string][]byte // the last request of each method
}

const service = "/v1beta1.DevicePlugin/"

// handle is called for each call.
func (p *fossil) handle(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	var request []byte
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	p.mu.Lock()
	p.requests[method] = request
	p.mu.Unlock()
	say := func(fields ...field) error {
		answer := message(p.more, fields...)
		return stream.SendMsg(&answer)
	}
	one := field{1, []field{{1, "card-0"}, {2, "Healthy"}}}
	switch method {
	case service + "GetDevicePluginOptions":
		return say(field{1, true})
	case service + "ListAndWatch":
		if err := say(one, field{1, []field{{1, "card-1"}, {2, "Unhealthy"}}}); err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-p.well:
		}
		if err := say(one, field{1, []field{{1, "card-1"}, {2, "Healthy"}}}); err != nil {
			return err
		}
		<-stream.Context().Done()
		return nil
	case service + "Allocate":
		return say(field{1, []field{
			{1, []field{{1, "CARDS"}, {2, "0,1"}}},
			{2, []field{{1, "/lib/card"}, {2, "/opt/card"}, {3, true}}},
			{3, []field{{1, "/dev/card0"}, {2, "/dev/card0"}, {3, "rw"}}},
			{4, []field{{1, "vendor.example/cards"}, {2, "two"}}},
		}})
	case service + "PreStartContainer":
		return say()
	}
	return status.Error(codes.Unimplemented, "unknown method "+method)
}

// Plugins bring protobuf and gRPC libraries of many years. What they say is understood though it has fields that we do
// not know or lacks those that came later, and we say nothing that the first v1beta1 did not know.
func TestWireGenerations(t *testing.T) {
	t.Parallel()
	for name, more := range map[string][]byte{"the first v1beta1": nil, "one to come": tomorrow()} {
		t.Run(name, func(t *testing.T) {
			f := start(t)
			p := &fossil{more: more, well: make(chan struct{}), requests: map[string][]byte{}}
			l, err := net.Listen("unix", filepath.Join(f.dir, "fossil.sock"))
			if err != nil {
				t.Fatal(err)
			}
			server := grpc.NewServer(grpc.ForceServerCodecV2(bare{}), grpc.UnknownServiceHandler(p.handle))
			var served sync.WaitGroup
			served.Go(func() { _ = server.Serve(l) }) // ends with Stop
			t.Cleanup(func() { server.Stop(); served.Wait() })

			socket := filepath.Join(f.dir, "kubelet.sock")
			conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithAuthority(socket)) // as clients had it once
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			request := message(more, field{1, "v1beta1"}, field{2, "fossil.sock"}, field{3, gpu}, field{4, []field{{1, true}}})
			answer := []byte("none")
			if err := conn.Invoke(t.Context(), "/v1beta1.Registration/Register", &request, &answer, grpc.ForceCodecV2(bare{})); err != nil || len(answer) != 0 {
				t.Fatalf("Register is answered with %x, %v", answer, err)
			}

			f.eventually("the plugin serves", f.serves("card-0", "card-1"))
			if o := f.offer(); !o.PreStart || o.Prefers || fmt.Sprint(o.Inventory.Devices) != "[{card-0 true [] 0} {card-1 false [] 0}]" {
				t.Errorf("offer = %+v", o)
			}
			close(p.well)
			f.eventually("the next list is understood", func() bool { return f.offer().Inventory.Devices[1].Healthy })

			cards := []device.ID{"card-0", "card-1"}
			got, err := f.Allocate(t.Context(), pod, container, gpu, cards)
			want := device.Grant{
				Env:         map[string]string{"CARDS": "0,1"},
				Mounts:      []device.Mount{{ContainerPath: "/lib/card", HostPath: "/opt/card", ReadOnly: true}},
				Nodes:       []device.Node{{ContainerPath: "/dev/card0", HostPath: "/dev/card0", Permissions: "rw"}},
				Annotations: map[string]string{"vendor.example/cards": "two"},
			}
			if err != nil || fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
				t.Errorf("grant = %+v, %v\nwant    %+v", got, err, want)
			}
			if err := f.PreStart(t.Context(), pod, container, gpu, cards); err != nil {
				t.Error(err)
			}

			ids := []field{{1, "card-0"}, {1, "card-1"}}
			p.mu.Lock()
			defer p.mu.Unlock()
			for method, want := range map[string][]byte{
				"GetDevicePluginOptions": nil, "ListAndWatch": nil,
				"Allocate": message(nil, field{1, ids}), "PreStartContainer": message(nil, ids...),
			} {
				if got, called := p.requests[service+method]; !called || !slices.Equal(got, want) {
					t.Errorf("%s was asked with %x, want %x", method, got, want)
				}
			}
			if len(p.requests) != 4 {
				t.Errorf("it was asked what it did not know: %x", p.requests)
			}
		})
	}
}
