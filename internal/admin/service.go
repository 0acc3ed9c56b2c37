package admin

import (
	"context"
	"errors"
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
)

// service is AdminService.
type service struct {
	adminv1.UnimplementedAdminServiceServer
	*Server
}

// GetStatus returns the daemon's components, resources and waiting pods.
func (s service) GetStatus(context.Context, *adminv1.GetStatusRequest) (*adminv1.GetStatusResponse, error) {
	answer := &adminv1.GetStatusResponse{Version: s.cfg.Version, Node: s.cfg.Node, Started: timestamppb.New(s.started)}
	for _, p := range s.cfg.Components() {
		answer.Components = append(answer.Components, &adminv1.Component{Name: p.Name, Ready: p.Err == nil, Problem: text(p.Err)})
	}
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
		answer.Resources = append(answer.Resources, one)
	}
	for _, p := range s.cfg.View.Snapshot().Waiting() {
		answer.Waiting = append(answer.Waiting, &adminv1.Waiting{
			Namespace: p.Pod.Namespace, Name: p.Pod.Name, Reason: string(p.Wait.Reason), Message: p.Wait.Message, Since: stamp(p.Since),
		})
	}
	answer.NotRedirected = containersOf(s.notRedirected())
	return answer, nil
}

// onNode returns a resource's capacity on the Node.
func (s service) onNode(r device.ResourceName) (n int, shown bool) {
	if s.cfg.OnNode == nil {
		return 0, false
	}
	return s.cfg.OnNode(r)
}

func (s service) notRedirected() []device.PodContainer {
	if s.cfg.NotRedirected == nil {
		return nil
	}
	return s.cfg.NotRedirected()
}

// ListPlugins returns the known device plugins.
func (s service) ListPlugins(context.Context, *adminv1.ListPluginsRequest) (*adminv1.ListPluginsResponse, error) {
	answer := &adminv1.ListPluginsResponse{NotRedirected: containersOf(s.notRedirected())}
	offers, registrations := s.cfg.View.Resources().Offers(), s.cfg.Plugins.Registrations()
	for _, r := range slices.Sorted(maps.Keys(offers)) {
		answer.Plugins = append(answer.Plugins, pluginOf(offers[r], registrations[r]))
	}
	return answer, nil
}

// ListGrants returns the grants of plugins.
func (s service) ListGrants(context.Context, *adminv1.ListGrantsRequest) (*adminv1.ListGrantsResponse, error) {
	answer := &adminv1.ListGrantsResponse{}
	for _, g := range s.cfg.Rules.Seen() {
		answer.Grants = append(answer.Grants, grantsOf(g))
	}
	return answer, nil
}

// ListDevices returns each device and its state.
func (s service) ListDevices(_ context.Context, request *adminv1.ListDevicesRequest) (*adminv1.ListDevicesResponse, error) {
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

// WatchDevices sends all devices, and again after each change.
func (s service) WatchDevices(request *adminv1.WatchDevicesRequest, stream grpc.ServerStreamingServer[adminv1.WatchDevicesResponse]) error {
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
		if err := until(stream.Context(), s, time.After(watchPause)); err != nil {
			return err
		}
		if err := until(stream.Context(), s, moved); err != nil {
			return err
		}
	}
}

// watchPause is the minimum time between two reads of one watcher, or of one drain.
const watchPause = 200 * time.Millisecond

// until waits for a value, or fails if the caller or the daemon ends before.
func until[T any](ctx context.Context, s service, what <-chan T) error {
	select {
	case <-what:
		return nil
	case <-s.stopping:
		return status.Error(codes.Unavailable, "devmgrd is stopping")
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// unknownResource returns an error that lists the known resources.
func (s service) unknownResource(name string) error {
	var names []string
	for r := range s.cfg.View.Resources().Offers() {
		names = append(names, string(r))
	}
	slices.Sort(names)
	if len(names) == 0 {
		return status.Errorf(codes.NotFound, "unknown resource %q; no device plugin has registered yet", clip(name))
	}
	return status.Errorf(codes.NotFound, "unknown resource %q; known resources: %s", clip(name), strings.Join(names[:min(len(names), 20)], ", "))
}

// ListAssignments returns the devices of each container.
func (s service) ListAssignments(_ context.Context, request *adminv1.ListAssignmentsRequest) (*adminv1.ListAssignmentsResponse, error) {
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
	return status.Errorf(codes.NotFound, "pod %s/%s is not known on this node", clip(namespace), clip(name))
}

// Explain returns why a pod has its devices, or why it waits for them.
func (s service) Explain(ctx context.Context, request *adminv1.ExplainRequest) (*adminv1.ExplainResponse, error) {
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
		}
		return e, nil
	}
	switch o, known = s.cfg.View.Snapshot().Pod(namespace, name); {
	case known:
		return s.explanation(o), nil
	case err != nil:
		return nil, status.Errorf(codes.NotFound, "pod %s/%s is not known on this node: %v", clip(namespace), clip(name), err)
	case !ended:
		return nil, unknownPod(namespace, name)
	}
	e := &adminv1.ExplainResponse{Namespace: namespace, Name: name, Uid: string(end.Pod.UID), Verdict: "ended", Message: "the pod has ended"}
	tellEnd(e, end)
	return e, nil
}

// ended asks the API server how a pod ended. If the pod has not ended, the allocator knows it afterwards.
func (s service) ended(ctx context.Context, namespace, name string) (end device.EndedPod, ended bool, err error) {
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

// Cordon takes devices out of service.
func (s service) Cordon(ctx context.Context, request *adminv1.CordonRequest) (*adminv1.CordonResponse, error) {
	answer, err := s.cordon(request)
	s.record(ctx, "cordon", subjectsOf(request.Devices), request.Reason, err)
	return answer, err
}

func (s service) cordon(request *adminv1.CordonRequest) (*adminv1.CordonResponse, error) {
	cordons, err := cordonsOf(request.Devices)
	if err != nil {
		return nil, err
	}
	if len(request.Reason) > maxReason {
		return nil, status.Errorf(codes.InvalidArgument, "the reason is longer than %d bytes", maxReason)
	}
	now := time.Now().UTC().Truncate(time.Second)
	for i := range cordons {
		cordons[i].Reason, cordons[i].Since = request.Reason, now
	}
	if _, err := s.cfg.Allocator.Cordon(cordons); err != nil {
		return nil, refusal(err)
	}
	return &adminv1.CordonResponse{Devices: s.named(cordons)}, nil
}

// Uncordon puts devices back into service.
func (s service) Uncordon(ctx context.Context, request *adminv1.UncordonRequest) (*adminv1.UncordonResponse, error) {
	answer, err := s.uncordon(request)
	s.record(ctx, "uncordon", subjectsOf(request.Devices), "", err)
	return answer, err
}

func (s service) uncordon(request *adminv1.UncordonRequest) (*adminv1.UncordonResponse, error) {
	cordons, err := cordonsOf(request.Devices)
	if err != nil {
		return nil, err
	}
	if _, err := s.cfg.Allocator.Uncordon(cordons); err != nil {
		return nil, refusal(err)
	}
	return &adminv1.UncordonResponse{Devices: s.named(cordons)}, nil
}

// Forget removes an unused resource.
func (s service) Forget(ctx context.Context, request *adminv1.ForgetRequest) (*adminv1.ForgetResponse, error) {
	answer, err := s.forget(request)
	s.record(ctx, "forget", []string{clip(request.ResourceName)}, "", err)
	return answer, err
}

func (s service) forget(request *adminv1.ForgetRequest) (*adminv1.ForgetResponse, error) {
	r, err := device.ParseResourceName(request.ResourceName)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if _, known := s.cfg.View.Devices(r); !known {
		if _, shown := s.onNode(r); !shown {
			return nil, s.unknownResource(request.ResourceName)
		}
	}
	lifted, err := s.cfg.Allocator.Forget(r)
	switch inUse := (*device.InUseError)(nil); {
	case errors.As(err, &inUse):
		return nil, status.Errorf(codes.FailedPrecondition, "nothing has been changed: %v", err)
	case err != nil:
		return nil, status.Errorf(codes.Unavailable, "nothing has been changed: %v", err)
	}
	answer := &adminv1.ForgetResponse{}
	for _, c := range lifted {
		answer.Lifted = append(answer.Lifted, &adminv1.DeviceName{ResourceName: string(c.Resource), Id: string(c.ID)})
	}
	return answer, nil
}

// Drain takes devices out of service and evicts the pods that have them.
func (s service) Drain(request *adminv1.DrainRequest, stream grpc.ServerStreamingServer[adminv1.DrainResponse]) error {
	cordoned, err := s.startDrain(request)
	s.record(stream.Context(), "drain", subjectsOf(request.Devices), request.Reason, err)
	if err != nil {
		return err
	}
	var names []device.Cordon
	for _, d := range cordoned.Devices {
		names = append(names, device.Cordon{Resource: device.ResourceName(d.ResourceName), ID: device.ID(d.Id)})
	}
	asked := map[string]bool{} // pods, by UID
	last := ""
	for {
		moved := s.cfg.View.Updated()
		devices := s.named(names)
		if len(devices) < len(names) || slices.ContainsFunc(devices, func(d *adminv1.Device) bool { return d.Cordon == nil }) {
			return status.Error(codes.Aborted, "one of the devices was uncordoned meanwhile; no further pod is evicted")
		}
		holders := ""
		for _, d := range devices {
			if d.Holder == nil {
				continue
			}
			holders += d.Holder.Uid + " "
			if !asked[d.Holder.Uid] && d.Holder.Name != "" { // without a name it may get one later
				asked[d.Holder.Uid] = true
				pod := device.Pod{UID: device.PodUID(d.Holder.Uid), Namespace: d.Holder.Namespace, Name: d.Holder.Name}
				s.cfg.Evictions.Evict(pod, "its device "+device.QuoteID(device.ID(d.Id))+" of "+d.ResourceName+" is drained", func() bool { return s.drained(names, pod.UID) })
			}
		}
		if last == "" || holders != last {
			if err := stream.Send(&adminv1.DrainResponse{Devices: devices, Done: holders == ""}); err != nil {
				return err
			}
		}
		if last = holders; holders == "" {
			return nil
		}
		// Devices may change a thousand times a second, and a read takes longer with more devices.
		if err := until(stream.Context(), s, time.After(watchPause)); err != nil {
			return err
		}
		if err := until(stream.Context(), s, moved); err != nil {
			return err
		}
	}
}

// startDrain takes the devices out of service.
func (s service) startDrain(request *adminv1.DrainRequest) (*adminv1.CordonResponse, error) {
	if s.cfg.Evictions == nil {
		return nil, status.Error(codes.FailedPrecondition, "evicting pods needs an API server, but kubernetes.mode is none; cordon the devices, and end their pods")
	}
	return s.cordon(&adminv1.CordonRequest{Devices: request.Devices, Reason: request.Reason})
}

// drained reports whether a pod has one of these devices while the device is still out of service.
func (s *service) drained(names []device.Cordon, uid device.PodUID) bool {
	return slices.ContainsFunc(s.named(names), func(d *adminv1.Device) bool {
		return d.Cordon != nil && d.Holder != nil && d.Holder.Uid == string(uid)
	})
}

// Backup sends a copy of the state file, or of the history.
func (s service) Backup(request *adminv1.BackupRequest, stream grpc.ServerStreamingServer[adminv1.BackupResponse]) error {
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

const (
	apiLimit  = 3 * time.Second // for the reads of one call; devmgrd explain allows 10 s
	maxReason = 1024            // bytes
	maxNamed  = 4096            // devices in one call
)

// cordonsOf validates the names in a request.
func cordonsOf(names []*adminv1.DeviceName) ([]device.Cordon, error) {
	switch {
	case len(names) == 0:
		return nil, status.Error(codes.InvalidArgument, "no device is named; name them like vendor.example/gpu/ID")
	case len(names) > maxNamed:
		return nil, status.Errorf(codes.InvalidArgument, "%d devices are named; one call takes %d at most", len(names), maxNamed)
	}
	all := make([]device.Cordon, len(names))
	for i, n := range names {
		r, err := device.ParseResourceName(n.ResourceName)
		if err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
		if n.Id == "" {
			return nil, status.Errorf(codes.InvalidArgument, "a device of %s is named without its ID", r)
		}
		all[i] = device.Cordon{Resource: r, ID: device.ID(n.Id)}
	}
	return all, nil
}

// subjectsOf names devices for the record of an action.
func subjectsOf(names []*adminv1.DeviceName) []string {
	all := make([]string, min(len(names), maxNamed))
	for i := range all {
		all[i] = names[i].ResourceName + "/" + device.QuoteID(device.ID(names[i].Id))
	}
	return all
}

// refusal converts an error of the allocator to a gRPC status.
func refusal(err error) error {
	if unknown := (*device.UnknownDeviceError)(nil); errors.As(err, &unknown) {
		return status.Errorf(codes.NotFound, "%v, and nothing has been changed; see devmgrd devices %s", err, unknown.Resource)
	}
	return status.Errorf(codes.Unavailable, "nothing has been changed: %v", err)
}

// named returns the current state of devices, in the order of names.
func (s service) named(names []device.Cordon) []*adminv1.Device {
	type key struct {
		device.ResourceName
		device.ID
	}
	found := map[key]device.DeviceStatus{}
	for _, n := range names {
		if _, looked := found[key{n.Resource, ""}]; looked {
			continue
		}
		found[key{n.Resource, ""}] = device.DeviceStatus{}
		all, _ := s.cfg.View.Devices(n.Resource)
		for _, d := range all {
			found[key{n.Resource, d.ID}] = d
		}
	}
	var all []*adminv1.Device
	for _, n := range names {
		if d, there := found[key{n.Resource, n.ID}]; there {
			all = append(all, deviceOf(d))
		}
	}
	return all
}
