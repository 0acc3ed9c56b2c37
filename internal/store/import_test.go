package store_test

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
)

// All of it is written in one commit, or nothing is; and what is there already is not written again.
func TestSaveAll(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	plugin := device.PluginRecord{Resource: "a.com/x", Reported: true, Devices: []device.Device{{ID: "0", Healthy: true, NUMA: []int{1}}}}
	pods, plugins := []device.PodRecord{pod("a"), pod("b")}, []device.PluginRecord{plugin}
	if err := s.SaveAll(pods, plugins); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SaveAll(pods, plugins); err != nil {
		t.Fatal(err)
	}
	if again, err := os.Stat(filepath.Join(dir, "state.db")); err != nil || !again.ModTime().Equal(info.ModTime()) {
		t.Errorf("what was there has been written again (%v)", err)
	}
	nameless := device.PluginRecord{Resource: ""} // bbolt takes no empty name
	if err := s.SaveAll([]device.PodRecord{pod("c")}, []device.PluginRecord{{Resource: "a.com/y"}, nameless}); err == nil {
		t.Error("a resource without a name was saved")
	}
	gotPods, err := s.Pods()
	if err != nil || !reflect.DeepEqual(gotPods, pods) {
		t.Errorf("pods: %+v (%v)", gotPods, err)
	}
	if got, err := s.Plugins(); err != nil || !reflect.DeepEqual(got, plugins) {
		t.Errorf("plugins: %+v (%v)", got, err)
	}
}
