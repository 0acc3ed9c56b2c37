package openers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// maxAnswer bounds an answer, in bytes: 1024 openers have about 1 KiB each, and at most 25 KiB.
const maxAnswer = 32 << 20

// A Client asks a server.
type Client struct {
	Path string // of its unix socket
}

// Find has the server look for the openers of devices, which are 1024 at most. It fails with ctx, too. A server that does not answer counts as busy all the time.
func (c Client) Find(ctx context.Context, devices []Device) (Scan, error) {
	scan, err := c.find(ctx, devices)
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err() // rather than a use of the closed connection
		}
		return Scan{CPU: scan.CPU}, fmt.Errorf("asking %s: %w", c.Path, err)
	}
	return scan, nil
}

func (c Client) find(ctx context.Context, devices []Device) (Scan, error) {
	if len(devices) > MaxDevices {
		return Scan{}, fmt.Errorf("%d devices in the request: the limit is %d", len(devices), MaxDevices)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", c.Path)
	if err != nil {
		return Scan{}, err
	}
	defer conn.Close()
	asked := time.Now()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	text, err := json.Marshal(request{devices})
	if err != nil {
		return Scan{}, err
	}
	if _, err := conn.Write(append(text, '\n')); err != nil {
		return Scan{}, err
	}
	var got answer
	if err := json.NewDecoder(io.LimitReader(conn, maxAnswer)).Decode(&got); err != nil {
		return Scan{CPU: time.Since(asked)}, fmt.Errorf("reading the answer: %w", err)
	}
	switch {
	case got.Error != "":
		return Scan{CPU: got.CPU}, errors.New(got.Error)
	case got.Scan == nil:
		return Scan{}, errors.New("the answer has no scan")
	}
	return *got.Scan, nil
}
