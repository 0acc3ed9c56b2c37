package dra

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// sliceOf returns a ResourceSlice as anyone with the node's token may create it.
func sliceOf(name string, version int, resource string) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{
		Name: name, ResourceVersion: strconv.Itoa(version), Annotations: map[string]string{resourceAnnotation: resource},
	}}
}

func TestSlices_ManyComeAndGo_AreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		s.Replace(nil, "1")
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i := range 2000 {
			resource := fmt.Sprint(i, strings.Repeat("x", 200_000))
			if i%2 == 0 {
				resource = fmt.Sprintf("made-up.example/%d", i)
			}
			name := fmt.Sprint(i, strings.Repeat("n", 200))
			s.Update(sliceOf(name, 10*i+2, resource))
			s.Delete(sliceOf(name, 10*i+3, resource))
			time.Sleep(100 * time.Millisecond)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		if kept := int64(after.HeapAlloc-before.HeapAlloc) >> 10; kept > 1<<10 {
			t.Errorf("slices that are gone keep %d KiB", kept)
		}
		if n := len(s.left); n > 200 {
			t.Errorf("%d resources are remembered", n)
		}
		if _, left, _ := s.of("made-up.example/1998"); time.Since(left) > time.Second {
			t.Errorf("the last resource has left at %s", left)
		}
	})
}

// Who has the node's token may write any annotation, and protobuf carries any bytes.
func TestSlices_MadeUpResource_HasNoMetric(t *testing.T) {
	t.Parallel()
	s, metrics := newStore(), prometheus.NewRegistry()
	newMetrics(metrics, s)
	s.Replace([]any{sliceOf("a", 1, "a.example/\xff"), sliceOf("b", 2, "made up"), sliceOf("c", 3, "vendor.example/gpu")}, "3")
	families, err := metrics.Gather()
	if err != nil || len(families) != 2 || len(families[0].Metric) != 2 {
		t.Errorf("%v, %v", families, err)
	}
}

// The answer to a write comes after a list that no longer has the slice.
func TestSlices_AnswerIsOlderThanTheList_SliceIsGone(t *testing.T) {
	t.Parallel()
	s := newStore()
	s.Replace([]any{sliceOf("a", 5, "a.example/x")}, "6")
	s.Replace(nil, "9")
	s.observe(sliceOf("a", 8, "a.example/x"))
	if all, _ := s.now(); len(all) > 0 {
		t.Errorf("the slices are %v", all)
	}
}
