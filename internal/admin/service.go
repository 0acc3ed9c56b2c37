package admin

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
)

// Updated is View.Updated.
func (s *Server) Updated() <-chan struct{} { return s.cfg.View.Updated() }

// GetStatus returns the daemon's components, resources and waiting pods.
func (s *Server) GetStatus(context.Context, *adminv1.GetStatusRequest) (*adminv1.GetStatusResponse, error) {
	answer := &adminv1.GetStatusResponse{Version: s.cfg.Version, Node: s.cfg.Node, Started: timestamppb.New(s.started)}
	answer.Components = lists.Map(s.cfg.Components(), func(c device.Component) *adminv1.Component {
		return &adminv1.Component{Name: c.Name, Ready: c.Err == nil, Problem: text(c.Err)}
	})
	resources := s.cfg.View.Resources().ByName
	for _, r := range slices.Sorted(maps.Keys(resources)) {
		status := resources[r]
		if status.States == nil {
			continue
		}
		one := resourceOf(r, status)
		if s.cfg.OnNode != nil {
			shown, _ := s.cfg.OnNode(r)
			target := status.Capacity
			if !status.Counted() { // the plugin has not registered yet, and devmgrd leaves the Node's capacity alone
				target = shown
			}
			one.NodeCapacity, one.TargetCapacity = int32(shown), int32(target)
		}
		if s.cfg.Claimed != nil && s.cfg.Claimed(r) {
			one.Claimed, one.TargetCapacity = true, 0
			if awaited := status.Awaited; awaited != (device.Pod{}) {
				one.Awaited = awaited.String()
			}
		}
		if s.cfg.OverMaxDevices != nil {
			one.OverMaxDevices = int32(s.cfg.OverMaxDevices(r))
		}
		answer.Resources = append(answer.Resources, one)
	}
	answer.Waiting = lists.Map(s.cfg.View.Snapshot().Waiting(), func(p device.PodStatus) *adminv1.Waiting {
		return &adminv1.Waiting{Namespace: p.Pod.Namespace, Name: p.Pod.Name, Reason: string(p.Wait.Reason), Message: p.Wait.Message, Since: stamp(p.Since)}
	})
	answer.NotRedirected = containersOf(s.notRedirected())
	if s.cfg.Limits != nil {
		answer.Limits = lists.Map(s.cfg.Limits(), func(l device.Limit) *adminv1.Limit { return &adminv1.Limit{Release: l.Release, Text: l.Text} })
	}
	return answer, nil
}

// onNode returns a resource's capacity on the Node.
func (s *Server) onNode(r device.ResourceName) (n int, shown bool) {
	if s.cfg.OnNode == nil {
		return 0, false
	}
	return s.cfg.OnNode(r)
}

func (s *Server) notRedirected() []device.PodContainer {
	if s.cfg.NotRedirected == nil {
		return nil
	}
	return s.cfg.NotRedirected()
}

// ListPlugins returns the known device plugins.
func (s *Server) ListPlugins(context.Context, *adminv1.ListPluginsRequest) (*adminv1.ListPluginsResponse, error) {
	answer := &adminv1.ListPluginsResponse{NotRedirected: containersOf(s.notRedirected())}
	offers, registrations := s.cfg.View.Resources().Offers(), s.cfg.Plugins.Registrations()
	for _, r := range slices.Sorted(maps.Keys(offers)) {
		answer.Plugins = append(answer.Plugins, pluginOf(offers[r], registrations[r]))
	}
	return answer, nil
}

// ListGrants returns the grants of plugins.
func (s *Server) ListGrants(context.Context, *adminv1.ListGrantsRequest) (*adminv1.ListGrantsResponse, error) {
	return &adminv1.ListGrantsResponse{Grants: lists.Map(s.cfg.Rules.Seen(), grantsOf)}, nil
}

// ListDevices returns each device and its state.
func (s *Server) ListDevices(_ context.Context, request *adminv1.ListDevicesRequest) (*adminv1.ListDevicesResponse, error) {
	all, known := s.cfg.View.Devices(device.ResourceName(request.ResourceName))
	if !known {
		return nil, s.unknownResource(request.ResourceName)
	}
	answer := &adminv1.ListDevicesResponse{Devices: make([]*adminv1.Device, len(all))}
	for i, d := range all {
		answer.Devices[i] = deviceOf(d)
	}
	return answer, nil
}

// EachDevice yields what ListDevices returns for one resource; nothing: there is no such resource.
func (s *Server) EachDevice(resource string) iter.Seq[*adminv1.Device] {
	return func(yield func(*adminv1.Device) bool) {
		for d := range s.cfg.View.EachDevice(device.ResourceName(resource)) {
			if !yield(deviceOf(d)) {
				return
			}
		}
	}
}

// WatchDevices sends all devices, and again after each change.
func (s *Server) WatchDevices(request *adminv1.WatchDevicesRequest, stream grpc.ServerStreamingServer[adminv1.WatchDevicesResponse]) error {
	var last []*adminv1.Device
	for {
		moved := s.cfg.View.Updated()
		all, err := s.ListDevices(stream.Context(), &adminv1.ListDevicesRequest{ResourceName: request.ResourceName})
		if err != nil {
			return err
		}
		if last == nil || !slices.EqualFunc(all.Devices, last, func(a, b *adminv1.Device) bool { return proto.Equal(a, b) }) {
			if err := stream.Send(&adminv1.WatchDevicesResponse{Devices: all.Devices}); err != nil {
				return err
			}
			last = all.Devices
		}
		if err := s.await(stream.Context(), moved); err != nil {
			return err
		}
	}
}

// watchPause is the minimum time between two reads of one watcher, or of one drain.
const watchPause = 200 * time.Millisecond

// await waits for watchPause and for a change, or fails if the caller or the daemon ends before.
func (s *Server) await(ctx context.Context, moved <-chan struct{}) error {
	for pause := time.After(watchPause); pause != nil || moved != nil; {
		select {
		case <-pause:
			pause = nil
		case <-moved:
			moved = nil
		case <-s.stopping:
			return status.Error(codes.Unavailable, "devmgrd is stopping")
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	return nil
}

// unknownResource returns an error that lists the known resources.
func (s *Server) unknownResource(name string) error {
	names := lists.Strings(slices.Sorted(maps.Keys(s.cfg.View.Resources().Offers())))
	if len(names) == 0 {
		return status.Errorf(codes.NotFound, "unknown resource %q; no device plugin has registered yet", device.Clip(name))
	}
	return status.Errorf(codes.NotFound, "unknown resource %q; known resources: %s", device.Clip(name), strings.Join(lists.First(names, 20), ", "))
}

// ListAssignments returns the devices of each container.
func (s *Server) ListAssignments(_ context.Context, request *adminv1.ListAssignmentsRequest) (*adminv1.ListAssignmentsResponse, error) {
	answer := &adminv1.ListAssignmentsResponse{}
	one, found := request.Namespace != "" || request.Name != "", false
	pods := slices.Clone(s.cfg.View.Snapshot().Pods)
	slices.SortFunc(pods, func(a, b device.PodStatus) int { return strings.Compare(a.Pod.String(), b.Pod.String()) })
	for _, h := range pods {
		if one && (h.Pod.Namespace != request.Namespace || h.Pod.Name != request.Name) {
			continue
		}
		found = true
		answer.Assignments = append(answer.Assignments, assignmentsOf(h.PodAllocation)...)
	}
	if one && !found {
		return nil, unknownPod(request.Namespace, request.Name)
	}
	return answer, nil
}

func unknownPod(namespace, name string) error {
	return status.Errorf(codes.NotFound, "pod %s/%s is not known on this node", device.Clip(namespace), device.Clip(name))
}

// Explain returns why a pod has its devices, or why it waits for them.
func (s *Server) Explain(ctx context.Context, request *adminv1.ExplainRequest) (*adminv1.ExplainResponse, error) {
	namespace, name := request.Namespace, request.Name
	o, known := s.cfg.View.Snapshot().Pod(namespace, name)
	if known && o.Active {
		return s.explanation(o), nil
	}
	end, ended, err := s.ended(ctx, namespace, name)
	if known {
		e := s.explanation(o)
		if ended && end.Pod.UID == o.Pod.UID {
			tellEnd(e, end)
			if o.Release != nil {
				e.Message += "; its devices are not free yet: " + o.Release.String()
			}
		}
		return e, nil
	}
	switch o, known = s.cfg.View.Snapshot().Pod(namespace, name); {
	case known:
		return s.explanation(o), nil
	case err != nil:
		return nil, status.Errorf(codes.NotFound, "pod %s/%s is not known on this node: %v", device.Clip(namespace), device.Clip(name), err)
	case !ended:
		return nil, unknownPod(namespace, name)
	}
	e := &adminv1.ExplainResponse{Namespace: namespace, Name: name, Uid: string(end.Pod.UID), Verdict: "ended", Message: "the pod has ended"}
	tellEnd(e, end)
	return e, nil
}

// ended asks the API server how a pod ended. If the pod has not ended, the allocator knows it afterwards.
func (s *Server) ended(ctx context.Context, namespace, name string) (end device.EndedPod, ended bool, err error) {
	if s.cfg.Pods == nil {
		return end, false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, apiLimit)
	defer cancel()
	if end, ended, err = s.cfg.Pods.Ended(ctx, namespace, name); ended || err != nil {
		return end, ended, err
	}
	_, err = s.cfg.Pods.Find(ctx, namespace, name)
	return end, false, err
}

// Backup sends a copy of the state file, or of the history.
func (s *Server) Backup(request *adminv1.BackupRequest, stream grpc.ServerStreamingServer[adminv1.BackupResponse]) error {
	file, title := s.cfg.StateFile, "state file"
	if request.History {
		file, title = s.cfg.HistoryFile, "history"
	}
	_, err := file.WriteTo(chunkWriter{stream})
	if err != nil {
		err = status.Errorf(codes.Unavailable, "copying the %s: %v", title, err)
	}
	s.record(stream.Context(), "backup", []string{title}, "", err)
	return err
}

// chunkWriter sends data in chunks small enough for any client.
type chunkWriter struct {
	stream grpc.ServerStreamingServer[adminv1.BackupResponse]
}

const maxChunk = 1 << 20

func (p chunkWriter) Write(data []byte) (n int, err error) {
	for len(data) > 0 && err == nil {
		part := data[:min(len(data), maxChunk)]
		data = data[len(part):]
		if err = p.stream.Send(&adminv1.BackupResponse{Data: part}); err == nil {
			n += len(part)
		}
	}
	return n, err
}

// apiLimit bounds the reads from the API server in one call; devmgrd explain allows 10 s.
const apiLimit = 3 * time.Second
