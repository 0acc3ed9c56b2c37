package plugintest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Healthy and Unhealthy are the health of devices, as the API spells it.
const (
	Healthy   = pluginapi.Healthy
	Unhealthy = pluginapi.Unhealthy
)

// Devices makes n healthy devices without place, dev-000000 and so on.
func Devices(n int) []*Device {
	devices := make([]*Device, n)
	for i := range devices {
		devices[i] = Dev(fmt.Sprintf("dev-%06d", i), Healthy)
	}
	return devices
}

// Dev makes a device, near the NUMA nodes if any are given.
func Dev(id, health string, numa ...int64) *Device {
	d := &Device{ID: id, Health: health}
	if len(numa) > 0 {
		d.Topology = &pluginapi.TopologyInfo{}
		for _, n := range numa {
			d.Topology.Nodes = append(d.Topology.Nodes, &pluginapi.NUMANode{ID: n})
		}
	}
	return d
}

// Grants makes an OnAllocate that answers each container the same.
func Grants(a *Answer) func(context.Context, *AllocateRequest) (*AllocateResponse, error) {
	return func(_ context.Context, request *AllocateRequest) (*AllocateResponse, error) {
		answer := &AllocateResponse{}
		for range request.ContainerRequests {
			answer.ContainerResponses = append(answer.ContainerResponses, a)
		}
		return answer, nil
	}
}

// Hang is for Before: it answers nothing until the caller stops waiting or the plugin is stopped.
func Hang(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// Fail is for Before: the method answers with an error of that text.
func Fail(text string) func(context.Context) error {
	return func(context.Context) error { return errors.New(text) }
}

// Delay is for Before: the method takes that long.
func Delay(d time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(d):
			return nil
		}
	}
}

// HoldUntil is for Before: the method waits until the channel is closed.
func HoldUntil(open <-chan struct{}) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-open:
			return nil
		}
	}
}

// Eventually waits until the condition holds, and fails the test if it does not within five minutes: the limit of a
// machine that does many things at once, not an expectation.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	Within(t, 5*time.Minute, what, condition)
}

// Within is Eventually with a limit that the test is about.
func Within(t testing.TB, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(limit); !condition(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}
