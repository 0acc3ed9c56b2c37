package cli

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/store"
)

// saved writes a state file with these pods, each with device gpu-0, and a history of one span. It returns their paths.
func saved(t *testing.T, pods ...string) (state, history string) {
	t.Helper()
	dir := t.TempDir()
	s, err := store.Open(store.Config{Dir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	var records []device.PodRecord
	for _, name := range pods {
		c := device.Container{Pod: device.PodUID("uid-" + name), Name: "main"}
		records = append(records, device.PodRecord{
			Demand: device.PodDemand{Pod: device.Pod{UID: c.Pod, Namespace: "ns", Name: name}, Demands: []device.Demand{
				{Container: c, Kind: device.App, Wants: map[device.ResourceName]int{"a.example/gpu": 1}},
			}},
			Assignments: []device.Assignment{{Container: c, Shares: []device.Share{{Resource: "a.example/gpu", IDs: []device.ID{"gpu-0"}}}}},
		})
	}
	h, _ := store.OpenHistory(s)
	span := device.Span{Number: 1, Pod: device.Pod{UID: "old", Namespace: "ns", Name: "long-gone"}, Resource: "a.example/gpu", From: time.Unix(1, 0), Until: time.Unix(2, 0)}
	if err := errors.Join(s.SavePods(records, nil), h.SaveHistory([]device.Span{span}, nil), h.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, store.FileName), filepath.Join(dir, store.HistoryName)
}

// verify reports each of the two files separately.
func TestVerify(t *testing.T) {
	state, history := saved(t, "a")
	says := func(want int, args []string, on ...string) {
		t.Helper()
		status, out, errs := execute(append([]string{"store", "verify"}, args...)...)
		if status != want {
			t.Errorf("%v: status %d, want %d", args, status, want)
		}
		for _, text := range on {
			if !strings.Contains(out+errs, text) {
				t.Errorf("%v does not say %q:\n%s%s", args, text, out, errs)
			}
		}
	}
	sound := []string{state + " is sound: schema version 2, 1 pods (1 with devices)", history + " is sound: schema version 1, 1 spans"}
	says(0, []string{"--state", state}, sound...)
	if _, out, _ := execute("store", "dump", "--state", state); !strings.Contains(out, `"uid-a"`) || !strings.Contains(out, "long-gone") {
		t.Errorf("dump prints\n%s", out)
	}

	away := filepath.Join(t.TempDir(), "copy.db")
	if err := os.Rename(history, away); err != nil {
		t.Fatal(err)
	}
	says(0, []string{"--state", state}, sound[0])
	says(1, []string{"--state", state, "--history", history}, sound[0], "there is no history file "+history)
	says(0, []string{"--state", state, "--history", away}, sound[0], away+" is sound")

	if err := os.WriteFile(history, []byte("damage"), 0o600); err != nil {
		t.Fatal(err)
	}
	says(1, []string{"--state", state}, sound[0], "history file "+history+" is damaged", "assignments do not depend on it")
	if status, out, errs := execute("store", "dump", "--state", state); status != 1 || !strings.Contains(out, `"uid-a"`) || !strings.Contains(errs, "is damaged") {
		t.Errorf("dump prints\n%s%s", out, errs)
	}
	if err := errors.Join(os.Rename(away, history), os.WriteFile(state, []byte("damage"), 0o600)); err != nil {
		t.Fatal(err)
	}
	says(1, []string{"--state", state}, "state file "+state+" is damaged", sound[1])
}

// A dump is another text when a field of a record is set, whatever the field.
func TestDump_EachField_IsPrinted(t *testing.T) {
	t.Parallel()
	elsewhere := []string{ // in neither file
		".Pods.Demand.Demands.Claims", ".Pods.Demand.Group", ".Pods.Demand.Admitted", ".Pods.Demand.Mirror", ".Pods.Demand.Leaving",
		".Cordons.Suspended", ".Cordons.Refused", ".Cordons.Until", ".Version",
	}
	var all struct {
		store.State
		store.HistoryContent
	}
	dump := func() string {
		text, err := json.Marshal(dumped(all.State, all.HistoryContent))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	fields := 0
	var visit func(path string, v reflect.Value)
	visit = func(path string, v reflect.Value) {
		before := dump()
		switch v.Kind() {
		case reflect.Struct:
			if v.Type() == reflect.TypeFor[time.Time]() {
				v.Set(reflect.ValueOf(time.Unix(1, 0)))
				break
			}
			for i := range v.NumField() {
				of := path
				if field := v.Type().Field(i); !field.Anonymous {
					of += "." + field.Name
				}
				if !slices.Contains(elsewhere, of) {
					visit(of, v.Field(i))
				}
			}
			return
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			defer visit(path, v.Index(0))
		case reflect.Pointer:
			v.Set(reflect.New(v.Type().Elem()))
			defer visit(path, v.Elem())
		case reflect.Map:
			v.Set(reflect.MakeMap(v.Type()))
			v.SetMapIndex(reflect.Zero(v.Type().Key()), reflect.Zero(v.Type().Elem()))
		case reflect.String:
			v.SetString("x")
		case reflect.Bool:
			v.SetBool(true)
		case reflect.Float64:
			v.SetFloat(1)
		default:
			v.Set(reflect.ValueOf(1).Convert(v.Type()))
		}
		fields++
		if dump() == before {
			t.Errorf("%s is not printed", path)
		}
	}
	visit("", reflect.ValueOf(&all).Elem())
	if fields < 80 {
		t.Errorf("only %d fields were found", fields)
	}
}

// verify names each device that several pods have, and the pods.
func TestVerify_Contradiction(t *testing.T) {
	state, history := saved(t, "a", "b")
	status, out, errs := execute("store", "verify", "--state", state)
	for _, want := range []string{
		state + " is intact, but contradicts itself: schema version 2, 2 pods (2 with devices)",
		"device gpu-0 of a.example/gpu is assigned to ns/a (UID uid-a) and ns/b (UID uid-b)",
		history + " is sound", "assigns 1 devices to several pods",
	} {
		if !strings.Contains(out+errs, want) {
			t.Errorf("it does not say %q:\n%s%s", want, out, errs)
		}
	}
	if status != 1 {
		t.Errorf("status %d", status)
	}
}
