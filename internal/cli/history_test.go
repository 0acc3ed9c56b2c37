package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
)

var someSpans = []*adminv1.Span{
	{Namespace: "ml", Pod: "training-1", Container: "main", ResourceName: "vendor.example/gpu", DeviceIds: []string{"GPU-3", "GPU-4"},
		From: before(76 * time.Hour), FromApproximate: true, Until: before(26 * time.Hour)},
	{Namespace: "ml", Pod: "training-2", Container: "main", ResourceName: "vendor.example/gpu", DeviceIds: []string{"GPU-3"},
		From: before(25*time.Hour + 58*time.Minute), Until: before(3 * time.Hour), UntilApproximate: true},
	{Namespace: "ml", Pod: "training-0", Container: "main", ResourceName: "vendor.example/gpu", DeviceIds: []string{"GPU-3"}, From: before(2*time.Hour + 15*time.Minute)},
}

var someActions = []*adminv1.Action{
	{At: before(26 * time.Hour), Verb: "drain", Subjects: []string{"vendor.example/gpu/GPU-3"}, Reason: "Xid 79", LoginUid: new(uint32(1000)), Pid: 4242, Program: "devmgrd"},
	{At: before(25 * time.Hour), Verb: "forget", Subjects: []string{"vendor.example/gpu"}, Error: "nothing has been changed: a plugin serves it",
		LoginUid: new(uint32(1000)), Pid: 4290, Program: "devmgrd"},
	{At: before(2 * time.Hour), Verb: "uncordon", Subjects: []string{"vendor.example/gpu/GPU-3"}, Uid: 0, Pid: 118, Program: "ansible-run"},
}

func someUser(uid uint32) string {
	return map[uint32]string{0: "root", 1000: "ada"}[uid]
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
			if mistake := (usageError{}); !errors.As(err, &mistake) {
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
	showHistory(&got, &adminv1.ListHistoryResponse{}, noon)
	if got.String() != "No matching entries.\n" {
		t.Errorf("got %q", got.String())
	}
}

// Of many devices the first few are shown. Text of others is cleaned.
func TestShowActions(t *testing.T) {
	var got bytes.Buffer
	showActions(&got, []*adminv1.Action{{
		At: before(time.Hour), Verb: "cordon", Subjects: []string{"v.example/gpu/1", "v.example/gpu/2", "v.example/gpu/3", "v.example/gpu/4", "v.example/gpu/5"},
		MoreSubjects: 3, Program: "\x1b[2J",
	}}, someUser)
	for _, want := range []string{"v.example/gpu/1,v.example/gpu/2,v.example/gpu/3,v.example/gpu/4 and 4 more", "␛[2J (0)", "done"} {
		if !strings.Contains(got.String(), want) {
			t.Errorf("%q lacks %q", got.String(), want)
		}
	}
	got.Reset()
	showActions(&got, nil, someUser)
	if got.String() != "No such action is recorded.\n" {
		t.Errorf("got %q", got.String())
	}
	if name := userName(0); name != "root" {
		t.Errorf("user 0 is %q", name)
	}
	if name := userName(3_999_999_999); name != "3999999999" {
		t.Errorf("a user without a name is %q", name)
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
