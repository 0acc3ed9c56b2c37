package device

import (
	"maps"
	"testing"
	"time"
)

// A reader's map never changes.
func TestCordons_InnerMapsAreReplaced(t *testing.T) {
	cs := Cordons{}
	cs.Add(Cordon{Resource: "v.example/a", ID: "1"}, Cordon{Resource: "v.example/a", ID: "2"}, Cordon{Resource: "v.example/b", ID: "1"})
	a, b := cs["v.example/a"], cs["v.example/b"]
	before, other := maps.Clone(a), maps.Clone(b)
	cs.Remove(Cordon{Resource: "v.example/a", ID: "1"})
	cs.Add(Cordon{Resource: "v.example/a", ID: "2", Reason: "new", Since: time.Unix(1, 0)})
	if !maps.Equal(a, before) || !maps.Equal(b, other) {
		t.Errorf("a reader's maps have changed: %v, %v", a, b)
	}
	now := cs["v.example/a"]
	if _, left := now["1"]; left || now["2"].Reason != "new" || len(now) != 1 || len(cs["v.example/b"]) != 1 {
		t.Errorf("after the changes: %v", cs)
	}
}
