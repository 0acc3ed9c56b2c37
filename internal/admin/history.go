package admin

import (
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/device"
)

// ListHistory returns which container had which devices, and when.
func (s *Server) ListHistory(_ context.Context, request *adminv1.ListHistoryRequest) (*adminv1.ListHistoryResponse, error) {
	switch {
	case request.Id != "" && request.ResourceName == "":
		return nil, status.Errorf(codes.InvalidArgument, "device %s is named without its resource", device.Clip(device.QuoteID(device.ID(request.Id))))
	case request.Name != "" && request.Namespace == "":
		return nil, status.Errorf(codes.InvalidArgument, "pod %s is named without its namespace", device.Clip(request.Name))
	}
	since, err := sinceOf(request.Since)
	if err != nil {
		return nil, err
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

// sinceOf returns the time that lies d before now; zero if d is nil.
func sinceOf(d *durationpb.Duration) (time.Time, error) {
	if d == nil {
		return time.Time{}, nil
	}
	if err := d.CheckValid(); err != nil || d.AsDuration() < 0 {
		return time.Time{}, status.Error(codes.InvalidArgument, "since is not a valid, positive duration")
	}
	return time.Now().Add(-d.AsDuration()), nil
}

// ListActions returns operators' commands, and what devmgrd has done to devices on its own.
func (s *Server) ListActions(_ context.Context, request *adminv1.ListActionsRequest) (*adminv1.ListActionsResponse, error) {
	since, err := sinceOf(request.Since)
	if err != nil {
		return nil, err
	}
	all, err := s.cfg.Actions.Actions(since)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	answer := &adminv1.ListActionsResponse{}
	for _, a := range all {
		if about(a, request.Subject) {
			answer.Actions = append(answer.Actions, actionOf(a))
		}
	}
	return answer, nil
}

// about reports whether an action is on a subject, or on a device of it. An empty subject matches every action.
func about(a device.Action, subject string) bool {
	return subject == "" || slices.ContainsFunc(a.Subject, func(s string) bool {
		return s == subject || strings.HasPrefix(s, subject+"/")
	})
}

func actionOf(a device.Action) *adminv1.Action {
	return &adminv1.Action{
		At: stamp(a.At), Verb: a.Verb, Subjects: a.Subject, MoreSubjects: uint32(a.More), Reason: a.Reason, Error: a.Err,
		Uid: a.Operator.UID, LoginUid: a.Operator.Login, Pid: a.Operator.PID, Program: a.Operator.Name, Own: a.Own,
	}
}

// matches reports whether a request asks for a span.
func matches(request *adminv1.ListHistoryRequest, s device.Span) bool {
	return (request.ResourceName == "" || request.ResourceName == string(s.Resource)) &&
		(request.Id == "" || slices.Contains(s.IDs, device.ID(request.Id))) &&
		(request.Namespace == "" || request.Namespace == s.Pod.Namespace) &&
		(request.Name == "" || request.Name == s.Pod.Name)
}

func spanOf(s device.Span) *adminv1.Span {
	return &adminv1.Span{
		Namespace: s.Pod.Namespace, Pod: s.Pod.Name, Uid: string(s.Pod.UID), Container: s.Container, ResourceName: string(s.Resource),
		DeviceIds: sortedIDs(s.IDs), From: stamp(s.From), FromApproximate: s.FromApprox, Until: stamp(s.Until), UntilApproximate: s.UntilApprox,
	}
}
