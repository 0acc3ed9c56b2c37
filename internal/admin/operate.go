package admin

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
)

const (
	maxReason = 1024 // bytes
	maxNamed  = 4096 // devices in one call
)

// Cordon takes devices out of service.
func (s *Server) Cordon(ctx context.Context, request *adminv1.CordonRequest) (*adminv1.CordonResponse, error) {
	answer, err := s.cordon(request)
	s.record(ctx, "cordon", subjectsOf(request.Devices), request.Reason, err)
	return answer, err
}

func (s *Server) cordon(request *adminv1.CordonRequest) (*adminv1.CordonResponse, error) {
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
func (s *Server) Uncordon(ctx context.Context, request *adminv1.UncordonRequest) (_ *adminv1.UncordonResponse, err error) {
	defer func() { s.record(ctx, "uncordon", subjectsOf(request.Devices), "", err) }()
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
func (s *Server) Forget(ctx context.Context, request *adminv1.ForgetRequest) (_ *adminv1.ForgetResponse, err error) {
	defer func() { s.record(ctx, "forget", []string{device.Clip(request.ResourceName)}, "", err) }()
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
	if err != nil {
		return nil, refusal(err)
	}
	return &adminv1.ForgetResponse{Lifted: lists.Map(lifted, func(c device.Cordon) *adminv1.DeviceName {
		return &adminv1.DeviceName{ResourceName: string(c.Resource), Id: string(c.ID)}
	})}, nil
}

// Drain takes devices out of service and evicts the pods that have them.
func (s *Server) Drain(request *adminv1.DrainRequest, stream grpc.ServerStreamingServer[adminv1.DrainResponse]) error {
	cordoned, err := s.startDrain(request)
	s.record(stream.Context(), "drain", subjectsOf(request.Devices), request.Reason, err)
	if err != nil {
		return err
	}
	names := lists.Map(cordoned.Devices, func(d *adminv1.Device) device.Cordon {
		return device.Cordon{Resource: device.ResourceName(d.ResourceName), ID: device.ID(d.Id)}
	})
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
			for _, h := range holdersOf(d) {
				holders += h.Uid + " "
				if !asked[h.Uid] && h.Name != "" { // without a name it may get one later
					asked[h.Uid] = true
					pod := device.Pod{UID: device.PodUID(h.Uid), Namespace: h.Namespace, Name: h.Name}
					s.cfg.Evictions.Evict(pod, "its device "+device.QuoteID(device.ID(d.Id))+" of "+d.ResourceName+" is drained", func() bool { return s.drained(names, pod.UID) })
				}
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
		if err := s.await(stream.Context(), moved); err != nil {
			return err
		}
	}
}

// holdersOf returns all pods that have a device.
func holdersOf(d *adminv1.Device) []*adminv1.Holder {
	if d.Holder == nil {
		return nil
	}
	return append([]*adminv1.Holder{d.Holder}, d.Sharers...)
}

// startDrain takes the devices out of service.
func (s *Server) startDrain(request *adminv1.DrainRequest) (*adminv1.CordonResponse, error) {
	if s.cfg.Evictions == nil {
		return nil, status.Error(codes.FailedPrecondition, "evicting pods needs an API server, but kubernetes.mode is none; cordon the devices, and end their pods")
	}
	return s.cordon(&adminv1.CordonRequest{Devices: request.Devices, Reason: request.Reason})
}

// drained reports whether a pod has one of these devices while the device is still out of service.
func (s *Server) drained(names []device.Cordon, uid device.PodUID) bool {
	return slices.ContainsFunc(s.named(names), func(d *adminv1.Device) bool {
		return d.Cordon != nil && slices.ContainsFunc(holdersOf(d), func(h *adminv1.Holder) bool { return h.Uid == string(uid) })
	})
}

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
	var unsaved *device.UnsavedError // first: its cause may be one of the others
	var unknown *device.UnknownDeviceError
	switch {
	case errors.As(err, &unsaved):
		return status.Errorf(codes.Unavailable, "not known to be durable; ask with devmgrd devices, and try again: %v", unsaved.Err)
	case errors.As(err, &unknown):
		return status.Errorf(codes.NotFound, "%v, and nothing has been changed; see devmgrd devices %s", err, unknown.Resource)
	case errors.As(err, new(*device.DeclaredCordonError)), errors.As(err, new(*device.InUseError)):
		return status.Errorf(codes.FailedPrecondition, "nothing has been changed: %v", err)
	}
	return status.Errorf(codes.Unavailable, "nothing has been changed: %v", err)
}

// named returns the current state of devices, in the order of names.
func (s *Server) named(names []device.Cordon) []*adminv1.Device {
	found := map[device.Key]device.DeviceStatus{}
	for _, n := range names {
		if _, looked := found[device.Key{Resource: n.Resource}]; looked {
			continue
		}
		found[device.Key{Resource: n.Resource}] = device.DeviceStatus{}
		all, _ := s.cfg.View.Devices(n.Resource)
		for _, d := range all {
			found[device.Key{Resource: n.Resource, ID: d.ID}] = d
		}
	}
	var all []*adminv1.Device
	for _, n := range names {
		if d, there := found[device.Key{Resource: n.Resource, ID: n.ID}]; there {
			all = append(all, deviceOf(d))
		}
	}
	return all
}
