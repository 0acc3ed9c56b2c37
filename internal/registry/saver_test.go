package registry

import (
	"reflect"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A record that differs in any field is written again; Resource is the records' key.
func TestSameRecord_EveryFieldCounts(t *testing.T) {
	t.Parallel()
	for _, field := range reflect.VisibleFields(reflect.TypeFor[device.PluginRecord]()) {
		var changed device.PluginRecord
		v := reflect.ValueOf(&changed).Elem().FieldByIndex(field.Index)
		fill(v)
		if v.IsZero() {
			t.Errorf("%s: the test does not change it", field.Name)
		}
		if field.Name != "Resource" && sameRecord(device.PluginRecord{}, changed) {
			t.Errorf("%s: a change is not written", field.Name)
		}
	}
}

// fill changes a zero value.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int64, reflect.Int:
		v.SetInt(1)
	case reflect.Uint64:
		v.SetUint(1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Struct:
		if v.NumField() > 0 && v.Field(0).CanSet() {
			fill(v.Field(0))
		}
		if at := reflect.ValueOf(time.Unix(1, 0)); v.Type() == at.Type() {
			v.Set(at)
		}
	}
}
