package plugintest

import (
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

// Client returns a client of the socket at path. Its calls wait for the server. gRPC's own client waits a second after a refused
// connection; this one dials again at once.
func Client(t testing.TB, path string, more ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	soon := backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1.6, MaxDelay: 100 * time.Millisecond}
	conn, err := grpc.NewClient("unix://"+path, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: soon, MinConnectTimeout: 20 * time.Second}),
	}, more...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}
