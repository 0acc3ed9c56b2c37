package lists_test

import (
	"reflect"
	"testing"

	"github.com/devmgrd/devmgrd/internal/lists"
)

func TestPut_NoMap_MakesOne(t *testing.T) {
	var all map[string]int
	lists.Put(&all, "a", 1)
	lists.Put(&all, "b", 2)
	if want := map[string]int{"a": 1, "b": 2}; !reflect.DeepEqual(all, want) {
		t.Errorf("%v, want %v", all, want)
	}
}

func TestInner_NoMap_MakesOne(t *testing.T) {
	all := map[string]map[int]bool{}
	lists.Inner(all, "a")[1] = true
	lists.Inner(all, "a")[2] = true
	if want := map[string]map[int]bool{"a": {1: true, 2: true}}; !reflect.DeepEqual(all, want) {
		t.Errorf("%v, want %v", all, want)
	}
}
