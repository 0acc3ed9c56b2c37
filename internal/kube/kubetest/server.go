// Package kubetest is a small API server for tests: pods, nodes and ResourceSlices over HTTP with list, watch (also as a stream of
// the list), get, merge patch, eviction, and for ResourceSlices create, update and delete, which can go away, come back, and forget its
// history. It behaves; it has no canned
// answers. It knows no admission, no authorization and no validation.
package kubetest

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/devmgrd/devmgrd/internal/kube"
)

// An object is a Kubernetes object as JSON knows it.
type object = map[string]any

// An event is one step of the server's history.
type event struct {
	version int
	kind    string // ADDED, MODIFIED or DELETED
	path    string
	object  object
}

// Server is the API server. It starts up and running.
type Server struct {
	t         testing.TB
	address   string
	transport http.RoundTripper // nil: sockets

	mu       sync.Mutex
	http     *http.Server // nil while away
	version  int
	oldest   int // watches from an older version get 410 Gone
	objects  map[string]object
	history  []event
	changed  chan struct{} // closed and replaced at every change
	requests map[string]int
	refuse   func(verb, path string) int
	plain    bool // lists are not streamed, as in older releases
	patched  func()
	dies     bool // during the next patch
	patches  []string
	untaint  bool          // taints of devices are dropped, as by releases before 1.36
	ahead    time.Duration // of the clients' clock
}

// New starts a server that ends with the test.
func New(t testing.TB) *Server {
	s := newServer(t)
	s.Start()
	t.Cleanup(s.Stop)
	return s
}

func newServer(t testing.TB) *Server {
	return &Server{t: t, version: 100, objects: map[string]object{}, changed: make(chan struct{}), requests: map[string]int{}}
}

// NewAway returns a server that no client can reach until Start.
func NewAway(t testing.TB) *Server {
	s := New(t)
	s.Stop()
	return s
}

// Client makes the client that the daemon would use.
func (s *Server) Client() rest.Interface {
	client, err := kube.NewClient(&rest.Config{Host: "http://" + s.address, Transport: s.transport}, "devmgrd/test")
	if err != nil {
		s.t.Fatal(err)
	}
	return client
}

// ResourceClient makes the client for resource.k8s.io/v1 that the daemon would use.
func (s *Server) ResourceClient() rest.Interface {
	client, err := kube.NewResourceClient(&rest.Config{Host: "http://" + s.address, Transport: s.transport}, "devmgrd/test")
	if err != nil {
		s.t.Fatal(err)
	}
	return client
}

// Log is a logger whose lines appear when the test fails.
func Log(t testing.TB) *slog.Logger {
	w := &output{to: t.Output()}
	t.Cleanup(w.close)
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// output writes until the test is over: a goroutine of client-go's outlives the watch that it belongs to, and may log.
type output struct {
	mu sync.Mutex
	to io.Writer // nil: the test is over
}

func (o *output) Write(line []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.to == nil {
		return len(line), nil
	}
	return o.to.Write(line)
}

func (o *output) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.to = nil
}

// Start makes the server reachable at its old address.
func (s *Server) Start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.http != nil {
		return
	}
	address := s.address
	if address == "" {
		address = "127.0.0.1:0"
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		s.t.Fatal(err)
	}
	s.address = listener.Addr().String()
	s.http = &http.Server{Handler: s}
	go s.http.Serve(listener)
}

// Stop cuts all connections and refuses new ones. Its objects stay.
func (s *Server) Stop() {
	s.mu.Lock()
	server := s.http
	s.http = nil
	s.mu.Unlock()
	if server != nil {
		server.Close()
	}
}

// Put creates or updates a *corev1.Pod, *corev1.Node or *resourceapi.ResourceSlice and returns its new resourceVersion.
func (s *Server) Put(o runtime.Object) int {
	s.t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		s.t.Fatal(err)
	}
	var as object
	if err := json.Unmarshal(text, &as); err != nil {
		s.t.Fatal(err)
	}
	var path string
	as["apiVersion"] = "v1"
	switch o := o.(type) {
	case *corev1.Pod:
		path, as["kind"] = "namespaces/"+o.Namespace+"/pods/"+o.Name, "Pod"
	case *corev1.Node:
		path, as["kind"] = "nodes/"+o.Name, "Node"
	case *resourceapi.ResourceSlice:
		path, as["kind"], as["apiVersion"] = slicePath(o.Name), "ResourceSlice", resourceapi.SchemeGroupVersion.String()
	default:
		s.t.Fatalf("kubetest does not know %T", o)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.putLocked(path, as)
}

func (s *Server) putLocked(path string, o object) int {
	kind := "ADDED"
	if _, ok := s.objects[path]; ok {
		kind = "MODIFIED"
	}
	s.recordLocked(kind, path, o)
	s.objects[path] = o
	return s.version
}

// Delete removes an object by its path: nodes/N, resourceslices/N or namespaces/NS/pods/N.
func (s *Server) Delete(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects[path]
	if !ok {
		s.t.Fatalf("there is no %s to delete", path)
	}
	delete(s.objects, path)
	s.recordLocked("DELETED", path, copied(o))
	return s.version
}

func (s *Server) recordLocked(kind, path string, o object) {
	s.version++
	o["metadata"].(object)["resourceVersion"] = strconv.Itoa(s.version)
	s.history = append(s.history, event{s.version, kind, path, o})
	close(s.changed)
	s.changed = make(chan struct{})
}

// Forget drops the history: who asks for an older version gets 410 Gone.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.oldest = s.version
	s.history = nil
}

// Node returns a node as it is now, or nil.
func (s *Server) Node(name string) *corev1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects["nodes/"+name]
	if !ok {
		return nil
	}
	return decoded[corev1.Node](s, o)
}

// decoded returns an object as its type.
func decoded[T any](s *Server, o object) *T {
	text, _ := json.Marshal(o)
	as := new(T)
	if err := json.Unmarshal(text, as); err != nil {
		s.t.Error(err)
	}
	return as
}

// Requests returns how often a verb was asked for: list, watch, get, patch, conditions (patches of these), evict, create, update or
// delete.
func (s *Server) Requests(verb string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[verb]
}

// Patches returns the bodies of all patches but those of conditions, in order.
func (s *Server) Patches() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.patches)
}

// set changes how the server behaves.
func (s *Server) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// Refuse lets f answer requests with a status other than zero.
func (s *Server) Refuse(f func(verb, path string) int) { s.set(func() { s.refuse = f }) }

// PlainLists stops the streaming of lists, which older releases do not know.
func (s *Server) PlainLists() { s.set(func() { s.plain = true }) }

// Until waits for a condition and fails the test when it does not come.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("gave up waiting: %s", what)
		}
	}
}

// copied returns a deep copy.
func copied(o object) object {
	text, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	var c object
	if err := json.Unmarshal(text, &c); err != nil {
		panic(err)
	}
	return c
}

// matches reports whether an object is of the resource and selected by fields such as spec.nodeName.
func matches(path, resource, selector string, o object) bool {
	if !strings.HasPrefix(path, resource+"/") && !strings.Contains(path, "/"+resource+"/") {
		return false
	}
	for term := range strings.SplitSeq(selector, ",") {
		if field, value, ok := strings.Cut(term, "="); ok && at(o, field) != value {
			return false
		}
	}
	return true
}

// at returns the value of a field such as spec.nodeName.
func at(o object, field string) string {
	var at any = o
	for name := range strings.SplitSeq(field, ".") {
		m, ok := at.(object)
		if !ok {
			return ""
		}
		at = m[name]
	}
	return fmt.Sprint(at)
}

// Pod returns a pod as it is now, or nil.
func (s *Server) Pod(namespace, name string) *corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects["namespaces/"+namespace+"/pods/"+name]
	if !ok {
		return nil
	}
	return decoded[corev1.Pod](s, o)
}
