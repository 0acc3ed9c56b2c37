package dra

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube"
	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// A resource is a number of the Node, or its devices are in ResourceSlices; never both, or the scheduler would promise devices twice. While it moves it is
// neither, for as long as a scheduler that is behind may choose by what it remembers:
//
//	                 offered (Offering.Claimed),               bindingTime since then (maySlice):
//	                 and slices are Writable (Try):            Publisher.want creates slices
//	                 Publisher.split removes the number
//	number of  ------------------------------->  neither  -------------------------------->  in slices
//	the Node   <-------------------------------  neither  <--------------------------------
//	                 bindingTime since the last                offered no longer:
//	                 slice has left (Sliced):                  Publisher.want leaves them out
//	                 Publisher.awaitSlices lets
//	                 the number pass
//
// The left half is in internal/nodestatus/offered.go, and its Publisher.publish calls it; the right half is in publisher.go here, and asks the left half
// for Uncounted. The time of the number's removal is durable before the patch (saveUncounted there). A pod without a claim has a right to devices if it was
// created before that time, or at most lateBinding later: it may have been bound by the number (NeedsClaim).
const (
	// bindingTime is how long a resource is neither: a pod that the scheduler has bound may not be known here yet.
	bindingTime = 10 * time.Second
	// lateBinding: pods that are created up to this long after the removal of a resource from the Node, by the API server's clock, may still be bound by the
	// number. The scheduler sees the removal later, and the time of a write may be that of an earlier one.
	lateBinding = time.Minute
	// listTime is how long the Node may have to wait for the first list of the slices.
	listTime = 10 * time.Second
)

// maySlice reports whether the first slice of a resource may be created that the Node has not shown since that time, and otherwise when; zero: when the
// Node changes. There is no pause if the clock was ahead when the number went.
func maySlice(since time.Time, uncounted bool, now time.Time) (may bool, again time.Time) {
	switch {
	case !uncounted:
		return false, time.Time{}
	case now.Before(since), !now.Before(since.Add(bindingTime)):
		return true, time.Time{}
	}
	return false, since.Add(bindingTime)
}

// A Node is what the Node shows of resources that are offered through claims.
type Node interface {
	// Uncounted reports whether the Node does not show a resource, and since when; zero: it never did. known is false until the Node has been read.
	Uncounted(device.ResourceName) (since time.Time, uncounted, known bool)
}

// NeedsClaim reports whether a pod that was created at that time may have devices of a resource with a claim only; known is false until the Node has been
// read.
func NeedsClaim(n Node, r device.ResourceName, created time.Time) (needs, known bool) {
	since, uncounted, known := n.Uncounted(r)
	return uncounted && created.After(since.Add(lateBinding)), known
}

// Slices are devmgrd's ResourceSlices of this node as the API server has them.
type Slices struct {
	*store
	nodeName string
	client   rest.Interface
	watch    *kube.Watch
	log      *slog.Logger
	writable chan struct{} // closed once a slice would be accepted

	mu     locks.Mutex[locks.Leaf] // guards what follows
	failed error                   // why the last try to create a slice failed
	asked  time.Time               // when Sliced was called for the first time: the Node was known then
}

// NewSlices returns the Slices of a node. client is one of resource.k8s.io/v1. A Publisher makes them follow the API server.
func NewSlices(nodeName string, client rest.Interface, log *slog.Logger) *Slices {
	s := newStore()
	return &Slices{store: s, nodeName: nodeName, client: client, log: log, writable: make(chan struct{}), watch: kube.NewWatch(kube.WatchConfig{
		Name:     "this node's resource slices",
		Client:   client,
		Resource: "resourceslices",
		Selector: fields.SelectorFromSet(fields.Set{
			resourceapi.ResourceSliceSelectorNodeName: nodeName,
			resourceapi.ResourceSliceSelectorDriver:   Driver,
		}),
		New: func() (object, list runtime.Object) {
			return &resourceapi.ResourceSlice{}, &resourceapi.ResourceSliceList{}
		},
		Store: s,
		Log:   log,
	})}
}

// Writable returns a channel that is closed once the API server would accept a ResourceSlice of this node: it may lack resource.k8s.io/v1 or refuse the
// right.
func (s *Slices) Writable() <-chan struct{} { return s.writable }

// Try finds out when slices are Writable, unless ctx ends before, which is not an error.
func (s *Slices) Try(ctx context.Context) error {
	select {
	case <-s.first:
	case <-ctx.Done():
		return nil
	}
	for pause := (loops.Backoff{First: firstRetry, Last: lastRetry}); ctx.Err() == nil; pause.Wait(ctx) {
		limited, cancel := context.WithTimeout(ctx, writeTimeout)
		err := kube.TryResourceSlice(limited, s.client, s.nodeName, Driver)
		cancel()
		if ctx.Err() == nil {
			s.tried(err)
		}
		if err == nil {
			close(s.writable)
			<-ctx.Done()
		}
	}
	return nil
}

// tried records why no ResourceSlice could be created, and logs that once.
func (s *Slices) tried(err error) {
	s.mu.Lock()
	before := s.failed
	s.failed = err
	s.mu.Unlock()
	if err != nil && before == nil {
		s.log.Warn("cannot create resource slices; resources stay in the Node's capacity", "err", err)
	}
}

// check returns nil while the slices are followed and would be accepted, as far as is known.
func (s *Slices) check() error {
	if err := s.watch.Check(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil {
		return fmt.Errorf("trying to create a ResourceSlice: %w; resources that the Node shows stay there", s.failed)
	}
	return nil
}

// Sliced reports whether the scheduler may still choose devices of a resource from ResourceSlices, or has done so a moment ago: pods with such
// claims may not be known yet. It is true while a slice exists, for bindingTime after the last was seen to leave, and for bindingTime after the
// first list: a slice may have left before. Before the first list it is true for listTime.
func (s *Slices) Sliced(r device.ResourceName) bool {
	is, left, listed := s.of(r)
	if listed.IsZero() {
		return time.Since(s.firstAsked()) < listTime
	}
	return is || min(time.Since(left), time.Since(listed)) < bindingTime
}

func (s *Slices) firstAsked() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked.IsZero() {
		s.asked = time.Now()
	}
	return s.asked
}

// shown reports whether there is a slice of a resource.
func (s *Slices) shown(r device.ResourceName) bool {
	is, _, _ := s.of(r)
	return is
}
