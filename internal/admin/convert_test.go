package admin

import (
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/devmgrd/devmgrd/internal/device"
)

func TestPluginOf(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	p := pluginOf(device.Offer{
		Inventory: device.Inventory{Resource: "vendor.com/gpu", Devices: []device.Device{{ID: "a", Healthy: true}, {ID: "b"}}},
		State:     device.Lost, Connected: true, Since: at, LastError: "it said \xff", LastErrorAt: at.Add(time.Second),
	}, device.Registration{Endpoint: "gpu.sock"})
	if p.Healthy != 0 || p.Devices != 2 || p.State != "connected" || !p.Since.AsTime().Equal(at) || p.LastError != "it said \uFFFD" || !p.LastErrorTime.AsTime().Equal(at.Add(time.Second)) {
		t.Errorf("%v", p)
	}
}

// Each field of a device is in the message, and each field of the message comes from one, but for those that only devmgrd needs.
func TestDeviceOf_EachField_IsShown(t *testing.T) {
	t.Parallel()
	own := map[string]bool{"Added": true, "Vanished": true, "Claimed": true, "Claimable": true}
	shown := map[string]bool{}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[device.DeviceStatus]()) {
		if field.Anonymous {
			continue
		}
		var d device.DeviceStatus
		fill(reflect.ValueOf(&d).Elem().FieldByIndex(field.Index))
		got := deviceOf(d)
		if reached := !proto.Equal(got, deviceOf(device.DeviceStatus{})); reached == own[field.Name] {
			t.Errorf("%s is in the message: %t", field.Name, reached)
		}
		message := got.ProtoReflect()
		for i := range message.Descriptor().Fields().Len() {
			if f := message.Descriptor().Fields().Get(i); message.Has(f) {
				shown[string(f.Name())] = true
			}
		}
	}
	all := deviceOf(device.DeviceStatus{}).ProtoReflect().Descriptor().Fields()
	for i := range all.Len() {
		if name := string(all.Get(i).Name()); !shown[name] {
			t.Errorf("no field of a device sets %s", name)
		}
	}
}

// fill sets a value, and each field of a struct, to another than the zero value.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.String:
		v.SetString("x")
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(1, 0)))
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	}
}
