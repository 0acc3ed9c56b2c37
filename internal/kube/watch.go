package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/devmgrd/devmgrd/internal/backoff"
)

// The pause between attempts grows from firstRetry to lastRetry. A life in step for longer than steady starts over.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
	steady     = 10 * time.Second
)

// WatchConfig says what a Watch follows. Every field is required.
type WatchConfig struct {
	Name     string // for people: what is followed
	Client   rest.Interface
	Resource string // the plural in the API, such as "pods"
	Selector fields.Selector
	New      func() (object, list runtime.Object) // an empty object of the resource, and an empty list of them
	// Store receives everything in order, from one goroutine: Replace after each list, Add, Update and Delete for
	// what the watch brings, and Bookmark if it has that method.
	Store cache.ReflectorStore
	Log   *slog.Logger
}

// A Watch keeps a store in step with the API server.
type Watch struct {
	cfg       WatchConfig
	reflector *cache.Reflector

	mu     sync.Mutex // guards what follows
	open   bool       // the stream is there
	listed bool       // the store has had the whole truth in this life
	since  time.Time  // when the watch came into step; zero: it is not
	lost   error      // why it is not
}

// errNotYet is why a Watch that has not listed yet is not in step.
var errNotYet = errors.New("the API server has not answered yet")

// NewWatch makes a Watch; Run starts it.
func NewWatch(cfg WatchConfig) *Watch {
	w := &Watch{cfg: cfg, lost: errNotYet}
	object, _ := cfg.New()
	w.reflector = cache.NewReflectorWithOptions(
		&cache.ListWatch{ListWithContextFunc: w.list, WatchFuncWithContext: w.watch},
		object, noting(w, cfg.Store), cache.ReflectorOptions{Name: cfg.Name, TypeDescription: cfg.Resource})
	return w
}

// Run follows until ctx ends, which is not an error.
func (w *Watch) Run(ctx context.Context) error {
	ctx = quietly(ctx, w.cfg.Log)
	retry := backoff.Backoff{First: firstRetry, Last: lastRetry}
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

// Check returns nil while the store is in step with the API server, else the reason why it is not.
func (w *Watch) Check() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.since.IsZero() {
		return nil
	}
	return fmt.Errorf("not following %s: %w", w.cfg.Name, w.lost)
}

// list is one list request. Lists are never served from an old state: "0", the reflector's first choice, would let
// an API server that lags behind take back what this node has already acted upon before a restart.
func (w *Watch) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if o.ResourceVersion == "0" {
		o.ResourceVersion = ""
	}
	o.FieldSelector = w.cfg.Selector.String()
	w.note(func() { w.open = false }) // a stream that was to bring the list has failed
	_, list := w.cfg.New()
	err := params(w.cfg.Client.Get().Resource(w.cfg.Resource), o).Do(ctx).Into(list)
	return list, err
}

// watch opens the stream.
func (w *Watch) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	o.FieldSelector = w.cfg.Selector.String()
	stream, err := params(w.cfg.Client.Get().Resource(w.cfg.Resource), o).Watch(ctx)
	if err != nil {
		return nil, plain(err)
	}
	w.note(func() { w.open = true })
	return stream, nil
}

// plain hides the kinds of error that the reflector would retry on its own, with a pause that heeds no context:
// retries are Run's.
func plain(err error) error {
	if utilnet.IsConnectionRefused(err) || apierrors.IsTooManyRequests(err) {
		return errors.New(err.Error())
	}
	return err
}

// note takes down a step forward, and says so when it was the last one.
func (w *Watch) note(step func()) {
	w.mu.Lock()
	step()
	arrived := w.open && w.listed && w.since.IsZero()
	if arrived {
		w.since = time.Now()
	}
	w.mu.Unlock()
	if arrived {
		w.cfg.Log.Info("following "+w.cfg.Name, "resource", w.cfg.Resource)
	}
}

// end takes down that a life is over, says so if it was a change, and returns how long it was in step.
func (w *Watch) end(err error) time.Duration {
	if err == nil {
		err = errors.New("the API server ended the watch")
	}
	w.mu.Lock()
	since, before := w.since, w.lost
	w.open, w.listed, w.since, w.lost = false, false, time.Time{}, err
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

// noted is a store that tells its Watch of each full list.
type noted struct {
	cache.ReflectorStore
	watch *Watch
}

func (n noted) Replace(list []any, version string) error {
	err := n.ReflectorStore.Replace(list, version)
	n.watch.note(func() { n.watch.listed = true })
	return err
}

// notedBookmarks is noted for a store that wants bookmarks; the reflector looks for the method.
type notedBookmarks struct {
	noted
	cache.ReflectorBookmarkStore
}

// noting wraps s without hiding that it takes bookmarks.
func noting(w *Watch, s cache.ReflectorStore) cache.ReflectorStore {
	if b, ok := s.(cache.ReflectorBookmarkStore); ok {
		return notedBookmarks{noted{s, w}, b}
	}
	return noted{s, w}
}

// ParseVersion reads a resourceVersion, which Kubernetes lets clients compare as integers; 0 if it is none.
func ParseVersion(s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
