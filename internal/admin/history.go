package admin

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/device"
)

// ListHistory gives who had which devices, from when to when.
func (s service) ListHistory(_ context.Context, request *adminv1.ListHistoryRequest) (*adminv1.ListHistoryResponse, error) {
	switch {
	case request.Id != "" && request.ResourceName == "":
		return nil, status.Errorf(codes.InvalidArgument, "device %s is named without its resource", clip(device.QuoteID(device.ID(request.Id))))
	case request.Name != "" && request.Namespace == "":
		return nil, status.Errorf(codes.InvalidArgument, "pod %s is named without its namespace", clip(request.Name))
	}
	var since time.Time
	if request.Since != nil {
		if err := request.Since.CheckValid(); err != nil || request.Since.AsDuration() < 0 {
			return nil, status.Error(codes.InvalidArgument, "since is no length of time that has passed")
		}
		since = time.Now().Add(-request.Since.AsDuration())
	}
	all, err := s.cfg.History.Spans(since)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	answer := &adminv1.ListHistoryResponse{}
	for _, span := range all {
		if matches(request, span) {
			answer.Spans = append(answer.Spans, spanOf(span))
		}
	}
	return answer, nil
}

// matches tells whether a span is one of those that are asked for.
func matches(request *adminv1.ListHistoryRequest, s device.Span) bool {
	return (request.ResourceName == "" || request.ResourceName == string(s.Resource)) &&
		(request.Id == "" || slices.Contains(s.IDs, device.ID(request.Id))) &&
		(request.Namespace == "" || request.Namespace == s.Pod.Namespace) &&
		(request.Name == "" || request.Name == s.Pod.Name)
}

func spanOf(s device.Span) *adminv1.Span {
	one := &adminv1.Span{
		Namespace: s.Pod.Namespace, Pod: s.Pod.Name, Uid: string(s.Pod.UID), Container: s.Container, ResourceName: string(s.Resource),
		From: stamp(s.From), FromAtLatest: s.FromLate, Until: stamp(s.Until), UntilAtLatest: s.UntilLate,
	}
	for _, id := range slices.SortedFunc(slices.Values(s.IDs), device.CompareIDs) {
		one.DeviceIds = append(one.DeviceIds, string(id))
	}
	return one
}
