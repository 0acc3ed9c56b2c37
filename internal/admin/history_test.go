package admin_test

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/admin"
	"github.com/devmgrd/devmgrd/internal/device"
)

// nothing is a history in which nothing has happened.
type nothing struct{}

func (nothing) Spans(time.Time) ([]device.Span, error) { return nil, nil }

// past is a history that a test writes.
type past struct {
	spans []device.Span
	err   error
}

func (p past) Spans(since time.Time) ([]device.Span, error) {
	var all []device.Span
	for _, s := range p.spans {
		if s.Until.IsZero() || !s.Until.Before(since) {
			all = append(all, s)
		}
	}
	return all, p.err
}

// The answer has exactly what the request selects, by device, by pod and by time.
func TestListHistory(t *testing.T) {
	t.Parallel()
	from := time.Now().Add(-3 * time.Hour)
	span := func(pod, ids string, until time.Duration) device.Span {
		s := device.Span{
			Pod: device.Pod{UID: device.PodUID("uid-" + pod), Namespace: "ns", Name: pod}, Container: "main",
			Resource: gpu, IDs: []device.ID{device.ID(ids[:2]), device.ID(ids[2:])}, From: from, FromApprox: until == 0,
		}
		if until > 0 {
			s.Until, s.UntilApprox = from.Add(until), true
		}
		return s
	}
	nic := span("a", "d0d1", 0)
	nic.Resource = "vendor.com/nic"
	r := start(t, func(c *admin.Config) {
		c.History = past{spans: []device.Span{span("a", "d0d1", time.Hour), span("b", "d1d2", 0), nic}}
	})
	has := func(pod, resource, ids, rest string) string {
		return `spans {namespace: "ns" pod: "` + pod + `" uid: "uid-` + pod + `" container: "main" resource_name: "` + resource + `" device_ids: [` + ids + `] ` + rest + `} `
	}
	a, b := has("a", "vendor.com/gpu", `"d0", "d1"`, "until_approximate: true"), has("b", "vendor.com/gpu", `"d1", "d2"`, "from_approximate: true")
	n := has("a", "vendor.com/nic", `"d0", "d1"`, "from_approximate: true")
	for _, c := range []struct {
		request *adminv1.ListHistoryRequest
		want    string
	}{
		{&adminv1.ListHistoryRequest{}, a + b + n},
		{&adminv1.ListHistoryRequest{ResourceName: "vendor.com/gpu"}, a + b},
		{&adminv1.ListHistoryRequest{ResourceName: "vendor.com/gpu", Id: "d0"}, a},
		{&adminv1.ListHistoryRequest{ResourceName: "vendor.com/gpu", Id: "d"}, ""},
		{&adminv1.ListHistoryRequest{Namespace: "ns", Name: "a"}, a + n},
		{&adminv1.ListHistoryRequest{Namespace: "ns", Name: "a", ResourceName: "vendor.com/nic", Id: "d1"}, n},
		{&adminv1.ListHistoryRequest{Namespace: "other"}, ""},
		{&adminv1.ListHistoryRequest{Since: durationpb.New(time.Hour)}, b + n},
		{&adminv1.ListHistoryRequest{Since: durationpb.New(3 * time.Hour)}, a + b + n},
	} {
		got, err := r.ListHistory(t.Context(), c.request)
		for _, s := range got.GetSpans() {
			if !s.From.AsTime().Equal(from) || (s.Until == nil) == s.UntilApproximate {
				t.Errorf("%v: from %v until %v", c.request, s.From, s.Until)
			}
			s.From, s.Until = nil, nil
		}
		expect(t, got, err, c.want)
	}
	for words, request := range map[string]*adminv1.ListHistoryRequest{
		"device d0 is named without its resource": {Id: "d0"},
		"pod a is named without its namespace":    {Name: "a"},
		"since is not a valid, positive duration": {Since: durationpb.New(-time.Hour)},
	} {
		_, err := r.ListHistory(t.Context(), request)
		refused(t, err, codes.InvalidArgument, words)
	}
	r = start(t, func(c *admin.Config) { c.History = past{err: errors.New("no disk")} })
	_, err := r.ListHistory(t.Context(), &adminv1.ListHistoryRequest{})
	refused(t, err, codes.Unavailable, "no disk")
}
