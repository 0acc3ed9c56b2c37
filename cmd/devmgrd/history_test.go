package main

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
)

var someSpans = []*adminv1.Span{
	{Namespace: "ml", Pod: "training-1", Container: "main", ResourceName: "vendor.example/gpu", DeviceIds: []string{"GPU-3", "GPU-4"},
		From: before(76 * time.Hour), FromAtLatest: true, Until: before(26 * time.Hour)},
	{Namespace: "ml", Pod: "training-2", Container: "main", ResourceName: "vendor.example/gpu", DeviceIds: []string{"GPU-3"},
		From: before(25*time.Hour + 58*time.Minute), Until: before(3 * time.Hour), UntilAtLatest: true},
	{Namespace: "ml", Pod: "training-0", Container: "main", ResourceName: "vendor.example/gpu", DeviceIds: []string{"GPU-3"}, From: before(2*time.Hour + 15*time.Minute)},
}

// The flags say what is asked for, and what is no device, no pod or no length of time is a mistake.
func TestHistoryRequest(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string // empty: a mistake
	}{
		{nil, "{}"},
		{[]string{"--device", "v.example/gpu/a/b"}, `{"resourceName":"v.example/gpu","id":"a/b"}`},
		{[]string{"--pod", "ns/p", "--since", "90m"}, `{"namespace":"ns","name":"p","since":"5400s"}`},
		{[]string{"--since", "0s"}, `{"since":"0s"}`},
		{[]string{"--device", "gpu"}, ""},
		{[]string{"--pod", "p"}, ""},
		{[]string{"--since", "-1h"}, ""},
	} {
		cmd := newHistoryCommand()
		if err := cmd.ParseFlags(c.args); err != nil {
			t.Fatal(err)
		}
		request, err := historyRequest(cmd)
		if c.want == "" {
			if _, mistake := err.(usageError); !mistake {
				t.Errorf("%q: %v, %v", c.args, request, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", c.args, err)
		} else if got := asJSON(t, request); got != c.want {
			t.Errorf("%q: %s, want %s", c.args, got, c.want)
		}
	}
	var got bytes.Buffer
	if showHistory(&got, nil, noon); got.String() != "Nobody had such devices in the time that is remembered.\n" {
		t.Errorf("got %q", got.String())
	}
}

// asJSON writes a request without the white space that protojson varies.
func asJSON(t *testing.T, request *adminv1.ListHistoryRequest) string {
	t.Helper()
	text, err := protojson.Marshal(request)
	var even bytes.Buffer
	if err == nil {
		err = json.Compact(&even, text)
	}
	if err != nil {
		t.Fatal(err)
	}
	return even.String()
}
