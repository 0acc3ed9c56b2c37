package registry

import (
	"context"
	"hash/maphash"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// messages are the lists that a plugin sends on one ListAndWatch stream.
type messages struct {
	stream   grpc.ServerStreamingClient[pluginapi.ListAndWatchResponse]
	codec    *listCodec
	received chan received // from the goroutine that receives
	waits    bool          // it runs

	last  []byte           // a message that is kept, encoded; nil: none is
	again <-chan time.Time // it is due again
}

type received struct {
	message   *pluginapi.ListAndWatchResponse
	err       error
	unchanged bool
}

// maxKept is the greatest length of a message that is kept, in bytes: of some 250 devices.
const maxKept = 16 << 10

// messages calls ListAndWatch. The stream ends with ctx.
func (l *registration) messages(ctx context.Context, on *session) (*messages, error) {
	codec := newListCodec()
	stream, err := on.client.ListAndWatch(ctx, &pluginapi.Empty{}, grpc.ForceCodecV2(codec), grpc.MaxCallRecvMsgSize(l.registry.cfg.MaxMessageBytes))
	return &messages{stream: stream, codec: codec, received: make(chan received)}, err
}

// next returns the plugin's next list that differs from the one before, or one that is due again.
func (m *messages) next() (*pluginapi.ListAndWatchResponse, error) {
	for {
		if !m.waits {
			m.waits = true
			go m.receive()
		}
		select {
		case r := <-m.received:
			m.waits = false
			if r.unchanged {
				continue
			}
			m.last, m.again = nil, nil
			return r.message, r.err
		case <-m.again:
			message := new(pluginapi.ListAndWatchResponse)
			err := proto.Unmarshal(m.last, message)
			m.last, m.again = nil, nil
			return message, err
		}
	}
}

// receive receives one message.
func (m *messages) receive() {
	message, err := m.stream.Recv()
	m.received <- received{message, err, err == nil && m.codec.unchanged}
}

// finish ends the stream, and returns when nothing receives any longer.
func (m *messages) finish(end context.CancelFunc) {
	end()
	if m.waits {
		<-m.received
	}
}

// repeat has next return a message again after a pause, unless another one comes before. A longer one than maxKept comes again when the plugin sends it again.
func (m *messages) repeat(message *pluginapi.ListAndWatchResponse, pause time.Duration) (err error) {
	if proto.Size(message) > maxKept {
		m.codec.length = -1 // no goroutine receives: the message came from the plugin
		return nil
	}
	m.last, err = proto.Marshal(message)
	m.again = time.After(pause)
	return err
}

// A listCodec decodes the messages of one stream, except those that equal the one before: some plugins send tens of thousands of
// unchanged devices every few seconds. It compares the length and a 64-bit hash with a secret seed. Two different messages have the
// same hash once in 10^19 times, and the plugin's next change would correct that.
type listCodec struct {
	encoding.CodecV2
	unchanged bool // the latest message was the same as the one before, and was not decoded

	hash   maphash.Hash
	sum    uint64
	length int // of the latest message; -1: there was none
}

func newListCodec() *listCodec {
	return &listCodec{CodecV2: encoding.GetCodecV2(protocodec.Name), length: -1}
}

// Unmarshal is called by the stream's Recv, so by one goroutine.
func (c *listCodec) Unmarshal(data mem.BufferSlice, into any) error {
	c.hash.Reset()
	for _, b := range data {
		c.hash.Write(b.ReadOnlyData())
	}
	sum, length := c.hash.Sum64(), data.Len()
	c.unchanged = sum == c.sum && length == c.length
	c.sum, c.length = sum, length
	if c.unchanged {
		return nil
	}
	return c.CodecV2.Unmarshal(data, into)
}
