// Package peercreds lets a gRPC server on a unix socket know the client of each call, by the connection. It is a base package:
// three servers of the daemon need it.
package peercreds

import (
	"context"
	"errors"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// Identify returns a new connection, which it may wrap, and its client. It sends nothing. An error closes the connection.
type Identify[T any] func(net.Conn) (net.Conn, T, error)

// New returns credentials for a server. Calls get their client with Of.
func New[T any](f Identify[T]) credentials.TransportCredentials { return f }

// Of returns the client of a call; the zero value: the call did not come through a server with such credentials.
func Of[T any](ctx context.Context) T {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return *new(T)
	}
	i, _ := p.AuthInfo.(info[T])
	return i.client
}

type info[T any] struct {
	credentials.CommonAuthInfo
	client T
}

// AuthType is part of credentials.AuthInfo.
func (info[T]) AuthType() string { return "peer credentials" }

// ServerHandshake is part of credentials.TransportCredentials, as are the methods below.
func (f Identify[T]) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, client, err := f(conn)
	if err != nil {
		return nil, nil, err
	}
	return conn, info[T]{credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, client}, nil
}

// ClientHandshake fails: only servers have these credentials.
func (Identify[T]) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("only for servers")
}

func (Identify[T]) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "unix"}
}

func (f Identify[T]) Clone() credentials.TransportCredentials { return f }

func (Identify[T]) OverrideServerName(string) error { return nil }
