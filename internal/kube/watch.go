package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// The pause between attempts grows from firstRetry to lastRetry. It starts over after a watch that lasted longer than steady.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
	steady     = 10 * time.Second
)

// pageSize is how many objects are asked for at once of an API server that does not stream its lists.
const pageSize = 10

// WatchConfig is what NewWatch needs. Every field but Trim is required.
type WatchConfig struct {
	Name     string // for logs and errors, such as "this node"
	Client   rest.Interface
	Resource string // the plural in the API, such as "pods"
	Selector fields.Selector
	New      func() (object, list runtime.Object) // an empty object of the resource, and an empty list of them
	// Trim returns what Store.Replace gets for an object of a list, without what is not needed of it: a list may be long, and its objects large. They
	// are trimmed as they arrive. nil: the objects themselves.
	Trim  func(object any) any
	Store Store
	Log   *slog.Logger
}

// A Store receives all changes in order, from one goroutine.
type Store interface {
	Replace(list []any, version string) // all objects
	Update(object any)                  // a new object, or another version of one
	Delete(object any)
	Bookmark(version string) // the watch has delivered everything up to this version
}

// A Watch keeps a store up to date with the API server.
type Watch struct {
	cfg       WatchConfig
	reflector *cache.Reflector

	mu     locks.Mutex[locks.Leaf] // guards what follows
	open   bool                    // the watch request is answered
	listed bool                    // the store has a full list from this attempt
	since  time.Time               // when the store became up to date; zero: it is not
	err    error                   // why it is not
	away   bool                    // an attempt has failed
	back   time.Time               // when the store became up to date after that; zero: none has failed
}

// errNotYet is the state before the first answer.
var errNotYet = errors.New("the API server has not answered yet")

// NewWatch returns a Watch; Run starts it.
func NewWatch(cfg WatchConfig) *Watch {
	w := &Watch{cfg: cfg, err: errNotYet}
	object, _ := cfg.New()
	w.reflector = cache.NewReflectorWithOptions(
		&cache.ListWatch{ListWithContextFunc: w.list, WatchFuncWithContext: w.watch},
		object, observed{w}, cache.ReflectorOptions{Name: cfg.Name, TypeDescription: cfg.Resource})
	return w
}

// Run watches until ctx ends, which is not an error.
func (w *Watch) Run(ctx context.Context) error {
	ctx = quietly(ctx, w.cfg.Log)
	retry := loops.Backoff{First: firstRetry, Last: lastRetry}
	for ctx.Err() == nil {
		err := w.reflector.ListAndWatchWithContext(ctx)
		if ctx.Err() != nil {
			break
		}
		if w.end(err) > steady {
			retry.Reset()
		}
		retry.Wait(ctx)
	}
	return nil
}

// Check returns nil while the store is up to date with the API server, and otherwise the reason.
func (w *Watch) Check() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.since.IsZero() {
		return nil
	}
	return fmt.Errorf("not following %s: %w", w.cfg.Name, w.err)
}

// Back returns the end of the last outage of the API server, which may have begun before the start; now, if one lasts; zero if there was none.
func (w *Watch) Back(now time.Time) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.away && w.since.IsZero() {
		return now
	}
	return w.back
}

// list makes one list request, for the latest state. The reflector's first choice, resource version "0", would let an API server
// that lags behind return a state older than one that devmgrd has acted on before a restart.
func (w *Watch) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if o.ResourceVersion == "0" {
		o.ResourceVersion = ""
	}
	switch { // the reflector wants pages of the latest state
	case o.ResourceVersion != "":
		o.Limit = 0 // the API server has that state in memory, but no pages of it
	case o.Limit > 0:
		o.Limit = pageSize
	}
	o.FieldSelector = w.cfg.Selector.String()
	w.progress(func() { w.open = false }) // a watch that was to stream the list has failed
	_, list := w.cfg.New()
	if err := params(w.cfg.Client.Get().Resource(w.cfg.Resource), o).Do(ctx).Into(list); err != nil || w.cfg.Trim == nil {
		return list, err
	}
	return w.trimmed(list)
}

// A trimmed is what Trim has returned for an object, where the reflector needs an object.
type trimmed struct {
	metav1.TypeMeta
	is any
}

func (t *trimmed) DeepCopyObject() runtime.Object { return t }

// trimmed returns a list with its objects trimmed.
func (w *Watch) trimmed(list runtime.Object) (runtime.Object, error) {
	of, err := meta.ListAccessor(list)
	if err != nil {
		return nil, err
	}
	short := &metainternalversion.List{ListMeta: metav1.ListMeta{ResourceVersion: of.GetResourceVersion(), Continue: of.GetContinue()}}
	err = meta.EachListItem(list, func(object runtime.Object) error {
		short.Items = append(short.Items, &trimmed{is: w.cfg.Trim(object)})
		return nil
	})
	return short, err
}

// watch makes one watch request.
func (w *Watch) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	o.FieldSelector = w.cfg.Selector.String()
	stream, err := params(w.cfg.Client.Get().Resource(w.cfg.Resource), o).Watch(ctx)
	if err != nil {
		return nil, opaque(err)
	}
	w.progress(func() { w.open = true })
	return stream, nil
}

// opaque hides the type of errors that the reflector would retry itself, with pauses that ignore the context: Run retries.
func opaque(err error) error {
	if utilnet.IsConnectionRefused(err) || apierrors.IsTooManyRequests(err) {
		return errors.New(err.Error())
	}
	return err
}

// progress records a step, and logs when the store has become up to date.
func (w *Watch) progress(step func()) {
	w.mu.Lock()
	step()
	current := w.open && w.listed && w.since.IsZero()
	if current {
		w.since = time.Now()
		if w.away {
			w.back = w.since
		}
	}
	w.mu.Unlock()
	if current {
		w.cfg.Log.Info("following "+w.cfg.Name, "resource", w.cfg.Resource)
	}
}

// end records the end of an attempt, logs a change, and returns how long the store was up to date.
func (w *Watch) end(err error) time.Duration {
	if err == nil {
		err = errors.New("the API server ended the watch")
	}
	w.mu.Lock()
	since, before := w.since, w.err
	w.open, w.listed, w.since, w.away, w.err = false, false, time.Time{}, true, err
	w.mu.Unlock()
	if since.IsZero() {
		if errors.Is(before, errNotYet) {
			w.cfg.Log.Warn("cannot follow "+w.cfg.Name+" yet", "resource", w.cfg.Resource, "err", err)
		}
		return 0
	}
	w.cfg.Log.Warn("lost "+w.cfg.Name, "resource", w.cfg.Resource, "err", err)
	return time.Since(since)
}

// observed is a Watch's Store as the reflector calls it. It reports each full list to the Watch, and has a streamed list trimmed.
type observed struct{ *Watch }

// Transformer returns what the reflector does with each object of a streamed list.
func (w observed) Transformer() cache.TransformFunc {
	if w.cfg.Trim == nil {
		return nil
	}
	return func(object any) (any, error) { return w.cfg.Trim(object), nil }
}

func (w observed) Replace(list []any, version string) error {
	for i := range list {
		if t, is := list[i].(*trimmed); is {
			list[i] = t.is
		}
	}
	w.cfg.Store.Replace(list, version)
	w.progress(func() { w.listed = true })
	return nil
}

func (w observed) Add(object any) error          { return w.Update(object) }
func (w observed) Update(object any) error       { w.cfg.Store.Update(object); return nil }
func (w observed) Delete(object any) error       { w.cfg.Store.Delete(object); return nil }
func (w observed) Bookmark(version string) error { w.cfg.Store.Bookmark(version); return nil }
func (w observed) Resync() error                 { return nil } // never called

// ParseVersion returns a resourceVersion as an integer, which Kubernetes lets clients compare; 0: it is not one.
func ParseVersion(s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
