package plugintest

import (
	"context"
	"errors"
	"slices"
	"strings"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

var errEnd = errors.New("end of stream")

// service is the plugin as the manager sees it.
type service struct {
	pluginapi.UnimplementedDevicePluginServer
	plugin *Plugin
}

func (s *service) GetDevicePluginOptions(ctx context.Context, _ *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	if err := s.plugin.seen(ctx, Request{Method: GetOptions}); err != nil {
		return nil, err
	}
	return s.plugin.Options, nil
}

// ListAndWatch sends the list once, and again whenever it is set.
func (s *service) ListAndWatch(_ *pluginapi.Empty, stream pluginapi.DevicePlugin_ListAndWatchServer) error {
	p, ctx := s.plugin, stream.Context()
	if err := p.seen(ctx, Request{Method: ListAndWatch}); err != nil {
		return err
	}
	p.mu.Lock()
	p.opened++
	id := p.opened
	p.streams[id] = nil
	stopped := p.stopped
	p.mu.Unlock()
	gone := ctx.Done()
	if p.Stubborn {
		gone = stopped
	}
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.streams, id)
	}()
	for sent := 0; ; {
		p.mu.Lock()
		end, devices, version, changed := p.streams[id], p.devices, p.version, p.changed
		p.mu.Unlock()
		if errors.Is(end, errEnd) {
			return nil
		}
		if end != nil {
			return end
		}
		if version != sent {
			if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: devices}); err != nil && !p.Stubborn {
				return err
			}
			sent = version
		}
		select {
		case <-gone:
			return ctx.Err()
		case <-changed:
		}
	}
}

func (s *service) Allocate(ctx context.Context, request *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	var first []string
	if len(request.ContainerRequests) > 0 {
		first = request.ContainerRequests[0].DevicesIds
	}
	if err := s.plugin.seen(ctx, Request{Method: Allocate, IDs: slices.Clone(first)}); err != nil {
		return nil, err
	}
	if s.plugin.OnAllocate != nil {
		return s.plugin.OnAllocate(ctx, request)
	}
	answer := &pluginapi.AllocateResponse{}
	for _, c := range request.ContainerRequests {
		answer.ContainerResponses = append(answer.ContainerResponses, &Answer{
			Envs: map[string]string{"DEVICES": strings.Join(c.DevicesIds, ",")},
		})
	}
	return answer, nil
}

func (s *service) PreStartContainer(ctx context.Context, request *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
	if err := s.plugin.seen(ctx, Request{Method: PreStart, IDs: slices.Clone(request.DevicesIds)}); err != nil {
		return nil, err
	}
	return &pluginapi.PreStartContainerResponse{}, nil
}

// GetPreferredAllocation prefers the first of what is available, unless OnPrefer knows better.
func (s *service) GetPreferredAllocation(ctx context.Context, request *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	seen := Request{Method: Preferred}
	if len(request.ContainerRequests) > 0 {
		c := request.ContainerRequests[0]
		seen.Available, seen.Must, seen.Size = c.AvailableDeviceIDs, c.MustIncludeDeviceIDs, int(c.AllocationSize)
	}
	if err := s.plugin.seen(ctx, seen); err != nil {
		return nil, err
	}
	if s.plugin.OnPrefer != nil {
		return s.plugin.OnPrefer(ctx, request)
	}
	answer := &pluginapi.PreferredAllocationResponse{}
	for _, c := range request.ContainerRequests {
		ids := append([]string(nil), c.MustIncludeDeviceIDs...)
		for _, id := range c.AvailableDeviceIDs {
			if len(ids) < int(c.AllocationSize) && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
		answer.ContainerResponses = append(answer.ContainerResponses, &PreferredAnswer{DeviceIDs: ids})
	}
	return answer, nil
}
