package admin_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/admin"
	"github.com/devmgrd/devmgrd/internal/allocator"
	"github.com/devmgrd/devmgrd/internal/allocator/allocatortest"
	"github.com/devmgrd/devmgrd/internal/device"
)

// actions returns what is on record, without times.
func (r *harness) actions(request *adminv1.ListActionsRequest) []*adminv1.Action {
	r.t.Helper()
	answer, err := r.ListActions(r.t.Context(), request)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, a := range answer.Actions {
		if since := time.Since(a.At.AsTime()); since < 0 || since > time.Hour {
			r.t.Errorf("%s happened %s ago", a.Verb, since)
		}
		a.At = nil
	}
	return answer.Actions
}

// Each command that changes something is on record, done or refused, with the process that gave it as the kernel names that.
func TestActions(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	r := start(t, func(c *admin.Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	r.Plugins.Stock(gpu, 2)
	first := &adminv1.DeviceName{ResourceName: string(gpu), Id: "d000"}
	ghost := &adminv1.DeviceName{ResourceName: string(gpu), Id: "gh\x1bost"}
	_, err := r.Cordon(t.Context(), &adminv1.CordonRequest{Devices: []*adminv1.DeviceName{first}, Reason: "Xid 79"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.Cordon(t.Context(), &adminv1.CordonRequest{Devices: []*adminv1.DeviceName{first, ghost}})
	refused(t, err, codes.NotFound, "nothing has been changed")
	if _, err = r.Uncordon(t.Context(), &adminv1.UncordonRequest{Devices: []*adminv1.DeviceName{first}}); err != nil {
		t.Fatal(err)
	}
	drain, err := r.Drain(t.Context(), &adminv1.DrainRequest{Devices: []*adminv1.DeviceName{first}, Reason: "swap"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = drain.Recv()
	refused(t, err, codes.FailedPrecondition, "needs an API server")
	_, err = r.Forget(t.Context(), &adminv1.ForgetRequest{ResourceName: string(gpu)})
	refused(t, err, codes.FailedPrecondition, "nothing has been changed")
	backup, err := r.Backup(t.Context(), &adminv1.BackupRequest{History: true})
	for err == nil {
		_, err = backup.Recv()
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}

	name, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	me := fmt.Sprintf("uid:%d pid:%d program:%q", os.Geteuid(), os.Getpid(), strings.TrimSpace(string(name)))
	if text, err := os.ReadFile("/proc/self/loginuid"); err == nil {
		if login, _ := strconv.ParseUint(string(text), 10, 32); login != 1<<32-1 {
			me += fmt.Sprintf(" login_uid:%d", login)
		}
	}
	all := r.actions(&adminv1.ListActionsRequest{})
	want := []string{
		`verb:"cordon" subjects:"vendor.com/gpu/d000" reason:"Xid 79"`,
		`verb:"cordon" subjects:["vendor.com/gpu/d000", "vendor.com/gpu/\"gh\\x1bost\""] error:""`,
		`verb:"uncordon" subjects:"vendor.com/gpu/d000"`,
		`verb:"drain" subjects:"vendor.com/gpu/d000" reason:"swap" error:""`,
		`verb:"forget" subjects:"vendor.com/gpu" error:""`,
		`verb:"backup" subjects:"history"`,
	}
	if len(all) != len(want) {
		t.Fatalf("%d actions are on record, want %d: %v", len(all), len(want), all)
	}
	for i, a := range all {
		if strings.Contains(want[i], "error:") != (a.Error != "") {
			t.Errorf("%s: error %q", want[i], a.Error)
		}
		a.Error = ""
		expect(t, a, nil, want[i]+" "+me)
	}
	if lines := log.String(); strings.Count(lines, "operator's action done") != 3 || strings.Count(lines, "operator's action refused") != 3 ||
		!strings.Contains(lines, `reason="Xid 79"`) || strings.Contains(lines, "\x1b") {
		t.Error(lines)
	}

	verbs := func(request *adminv1.ListActionsRequest) (all []string) {
		for _, a := range r.actions(request) {
			all = append(all, a.Verb)
		}
		return all
	}
	for subject, want := range map[string][]string{
		"vendor.com/gpu":             {"cordon", "cordon", "uncordon", "drain", "forget"},
		"vendor.com/gpu/d000":        {"cordon", "cordon", "uncordon", "drain"},
		`vendor.com/gpu/"gh\x1bost"`: {"cordon"},
		"vendor.com/gp":              nil,
	} {
		if got := verbs(&adminv1.ListActionsRequest{Subject: subject}); !slices.Equal(got, want) {
			t.Errorf("actions on %s: %v, want %v", subject, got, want)
		}
	}
	if got := verbs(&adminv1.ListActionsRequest{Since: durationpb.New(time.Hour)}); len(got) != len(all) {
		t.Errorf("actions of the last hour: %v", got)
	}
	_, err = r.ListActions(t.Context(), &adminv1.ListActionsRequest{Since: durationpb.New(-time.Hour)})
	refused(t, err, codes.InvalidArgument, "since")
}

// A command that names very many devices is recorded with the first ones, and the number of the others.
func TestActions_ManyDevices(t *testing.T) {
	t.Parallel()
	r := start(t)
	var names []*adminv1.DeviceName
	for i := range 4096 {
		names = append(names, &adminv1.DeviceName{ResourceName: string(gpu), Id: fmt.Sprintf("device-%06d", i)})
	}
	_, err := r.Cordon(t.Context(), &adminv1.CordonRequest{Devices: names})
	refused(t, err, codes.NotFound, "")
	a := r.actions(&adminv1.ListActionsRequest{})[0]
	size := 0
	for _, s := range a.Subjects {
		size += len(s)
	}
	if len(a.Subjects)+int(a.MoreSubjects) != 4096 || size > 16<<10 || size < 15<<10 {
		t.Errorf("%d subjects of %d bytes, and %d more", len(a.Subjects), size, a.MoreSubjects)
	}
}

// What an operator orders is done even if it cannot be recorded, and is in the log.
func TestActions_HistoryUnwritable(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	r := start(t, func(c *admin.Config) {
		c.Actions, c.Log = brokenLog{}, slog.New(slog.NewTextHandler(&log, nil))
	})
	r.Plugins.Stock(gpu, 1)
	answer, err := r.Cordon(t.Context(), &adminv1.CordonRequest{Devices: []*adminv1.DeviceName{{ResourceName: string(gpu), Id: "d000"}}})
	if err != nil || answer.Devices[0].Cordon == nil {
		t.Errorf("%v, %v", answer, err)
	}
	if lines := log.String(); !strings.Contains(lines, "operator's action done") || !strings.Contains(lines, "operator's action not recorded") {
		t.Error(lines)
	}
	_, err = r.ListActions(t.Context(), &adminv1.ListActionsRequest{})
	refused(t, err, codes.Unavailable, "no space left")
}

// A commit that fails may be in the state file all the same, so no answer claims that nothing has been changed.
func TestChanges_CommitFailsLate_AnswerIsUnsure(t *testing.T) {
	t.Parallel()
	var disk lateDisk
	r := start(t, func(c *admin.Config) {
		a := allocatortest.Start(t, filepath.Join(t.TempDir(), "state"), func(c *allocator.Config) { disk.Store, c.Store = c.Store, &disk })
		a.Plugins.Stock(gpu, 2)
		c.View, c.Allocator = a, a
	})
	name := func(id string) []*adminv1.DeviceName {
		return []*adminv1.DeviceName{{ResourceName: string(gpu), Id: id}}
	}
	if _, err := r.Cordon(t.Context(), &adminv1.CordonRequest{Devices: name("d000")}); err != nil {
		t.Fatal(err)
	}
	disk.err = errors.New("input/output error")
	_, err := r.Cordon(t.Context(), &adminv1.CordonRequest{Devices: name("d001")})
	const unsure = "not known to be durable; ask with devmgrd devices, and try again: "
	refused(t, err, codes.Unavailable, unsure+"input/output error")
	_, err = r.Uncordon(t.Context(), &adminv1.UncordonRequest{Devices: name("d000")})
	refused(t, err, codes.Unavailable, unsure+"input/output error")
	_, err = r.Forget(t.Context(), &adminv1.ForgetRequest{ResourceName: string(gpu)}) // its plugin is serving, and its cordons cannot be written again
	refused(t, err, codes.Unavailable, unsure+"vendor.com/gpu is in use")
}

// lateDisk makes each commit of cordons, and then reports err.
type lateDisk struct {
	allocator.Store
	err error
}

func (d *lateDisk) SaveCordons(save, forget []device.Cordon) error {
	return errors.Join(d.Store.SaveCordons(save, forget), d.err)
}

// brokenLog is a history on a full disk.
type brokenLog struct{}

var errFull = errors.New("no space left on device")

func (brokenLog) SaveActions(...device.Action) error         { return errFull }
func (brokenLog) Actions(time.Time) ([]device.Action, error) { return nil, errFull }
