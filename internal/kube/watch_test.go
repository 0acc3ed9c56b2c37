package kube_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	apiruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/devmgrd/devmgrd/internal/kube"
	"github.com/devmgrd/devmgrd/internal/kube/kubetest"
)

// lines is a log that can be read while it is written.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// TestOneLinePerChange takes a watch through away, in step, away for several attempts, and in step again.
func TestOneLinePerChange(t *testing.T) {
	api := kubetest.NewAway(t)
	log := &lines{}
	w := kube.NewWatch(kube.WatchConfig{
		Name: "our node", Client: api.Client(), Resource: "nodes", Selector: fields.OneTermEqualSelector("metadata.name", "n1"),
		New:   func() (object, list apiruntime.Object) { return &corev1.Node{}, &corev1.NodeList{} },
		Store: &weighed{}, Log: slog.New(slog.NewTextHandler(log, nil)),
	})
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	if err := w.Check(); err == nil || !strings.Contains(err.Error(), "not following our node") {
		t.Errorf("before Run: %v", err)
	}
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	inStep := func(want bool) {
		t.Helper()
		kubetest.Until(t, "in step", func() bool { return (w.Check() == nil) == want })
	}
	kubetest.Until(t, "the first attempt", func() bool { return strings.Contains(log.String(), "cannot follow") })
	now := time.Now()
	if back := w.Back(now); !back.Equal(now) {
		t.Errorf("it is away at the start, and back since %s, want now", back)
	}
	api.Start()
	inStep(true)
	if back := w.Back(time.Time{}); back.Before(now) {
		t.Errorf("it is back since %s, want after %s", back, now)
	}
	now = time.Now()
	api.Stop()
	inStep(false)
	if back := w.Back(now); !back.Equal(now) {
		t.Errorf("it is away, and back since %s, want now", back)
	}
	api.Refuse(func(string, string) int { return 503 })
	tries := api.Requests("watch")
	api.Start()
	kubetest.Until(t, "several attempts", func() bool { return api.Requests("watch") > tries+2 })
	api.Refuse(nil)
	inStep(true)
	if back := w.Back(time.Time{}); !back.After(now) {
		t.Errorf("it is back since %s", back)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	var said []string
	for line := range strings.Lines(log.String()) {
		_, rest, _ := strings.Cut(line, "msg=")
		said = append(said, rest[:18])
	}
	if got, want := strings.Join(said, "|"), `"cannot follow our|"following our nod|"lost our node" re|"following our nod`; got != want {
		t.Errorf("got  %s\nwant %s\n%s", got, want, log)
	}
}

func TestBack_NeverAway_IsZero(t *testing.T) {
	api := kubetest.New(t)
	w := kube.NewWatch(kube.WatchConfig{
		Name: "our node", Client: api.Client(), Resource: "nodes", Selector: fields.OneTermEqualSelector("metadata.name", "n1"),
		New:   func() (object, list apiruntime.Object) { return &corev1.Node{}, &corev1.NodeList{} },
		Store: &weighed{}, Log: slog.New(slog.DiscardHandler),
	})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	kubetest.Until(t, "in step", func() bool { return w.Check() == nil })
	if back := w.Back(time.Now()); !back.IsZero() {
		t.Errorf("it was never away, and is back since %s", back)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A weighed store measures the heap that is in use when a full list arrives.
type weighed struct {
	heap uint64
	list []any
}

func (s *weighed) Replace(list []any, _ string) { s.list, s.heap = list, heap() }
func (s *weighed) Update(any)                   {}
func (s *weighed) Delete(any)                   {}
func (s *weighed) Bookmark(string)              {}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// An API server has any number of pods for a node, of about 1.4 MB each.
func TestWatch_ListIsAStream_ObjectsAreTrimmed(t *testing.T) {
	for name, plain := range map[string]bool{"as a stream": false, "in pages": true} {
		t.Run(name, func(t *testing.T) {
			const pods = 42
			api := kubetest.New(t)
			if plain {
				api.PlainLists()
			}
			large := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Args: []string{strings.Repeat("x", 256<<10)}}}}}
			for i := range pods {
				large.Namespace, large.Name = "a", fmt.Sprint("p", i)
				api.Put(large)
			}
			s := &weighed{}
			w := kube.NewWatch(kube.WatchConfig{
				Name: "pods", Client: api.Client(), Resource: "pods", Selector: fields.OneTermEqualSelector("spec.nodeName", "n1"),
				New:   func() (object, list apiruntime.Object) { return &corev1.Pod{}, &corev1.PodList{} },
				Trim:  func(object any) any { return object.(*corev1.Pod).Name },
				Store: s, Log: slog.New(slog.DiscardHandler),
			})
			before := heap()
			ctx, stop := context.WithCancel(context.Background())
			done := make(chan error)
			go func() { done <- w.Run(ctx) }()
			kubetest.Until(t, "in step", func() bool { return w.Check() == nil })
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
			held := int64(s.heap-before) >> 10
			t.Logf("%d KiB are held", held)
			if held > 4<<10 {
				t.Errorf("a list of %d pods of 256 KiB holds %d KiB", pods, held)
			}
			names := map[any]bool{}
			for _, one := range s.list {
				names[one] = true
			}
			if len(names) != pods || !names["p0"] || !names["p41"] {
				t.Errorf("the store gets %v", s.list)
			}
		})
	}
}
