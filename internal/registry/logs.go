package registry

import (
	"io"
	"log"

	"google.golang.org/grpc/grpclog"
)

// gRPC logs errors of plugins under the lock of the connection, by default to a standard error that may block. SetLoggerV2 must be called
// before any other function of gRPC.
func init() { grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, standard{})) }

// standard is an io.Writer that logs lines with the standard library's logger.
type standard struct{}

func (standard) Write(line []byte) (int, error) {
	log.Print(string(line))
	return len(line), nil
}
