package kubetest

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// ServeHTTP answers for core/v1 and resource.k8s.io/v1, in JSON whatever the client would like best.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/api/v1/"), slicesPrefix)
	q := r.URL.Query()
	verb := "get"
	switch {
	case q.Get("watch") == "true" || q.Get("watch") == "1":
		verb = "watch"
	case r.Method == http.MethodPatch && r.Header.Get("Content-Type") == strategic:
		verb = "conditions"
	case r.Method == http.MethodPatch:
		verb = "patch"
	case r.Method == http.MethodPost && path == "resourceslices":
		verb = "create"
	case r.Method == http.MethodPost:
		verb = "evict"
	case r.Method == http.MethodPut:
		verb = "update"
	case r.Method == http.MethodDelete:
		verb = "delete"
	case kinds[path] != "":
		verb = "list"
	}
	s.mu.Lock()
	s.requests[verb]++
	refuse := s.refuse
	s.mu.Unlock()
	if refuse != nil {
		if code := refuse(verb, path); code != 0 {
			fail(w, code, "Refused", "refused by the test")
			return
		}
	}
	switch verb {
	case "watch":
		s.serveWatch(w, r, path)
	case "list":
		s.serveList(w, path, q)
	case "patch":
		s.servePatch(w, r, path)
	case "conditions":
		s.serveConditions(w, r, path)
	case "evict":
		s.serveEviction(w, r, path)
	case "create", "update":
		s.serveSlice(w, r, verb, path)
	case "delete":
		s.serveDeletion(w, path)
	default:
		s.mu.Lock()
		defer s.mu.Unlock()
		o, ok := s.objects[path]
		if !ok {
			fail(w, http.StatusNotFound, "NotFound", path+" not found")
			return
		}
		reply(w, http.StatusOK, o)
	}
}

// serveList lists objects, by path. With a limit it lists that many, and the rest as the client asks for it.
func (s *Server) serveList(w http.ResponseWriter, resource string, q url.Values) {
	s.mu.Lock()
	defer s.mu.Unlock()
	limit, _ := strconv.Atoi(q.Get("limit"))
	items, last, more := []object{}, "", ""
	for _, path := range slices.Sorted(maps.Keys(s.objects)) {
		switch o := s.objects[path]; {
		case path <= q.Get("continue") || !matches(path, resource, q.Get("fieldSelector"), o):
			continue
		case limit > 0 && len(items) == limit:
			more = last
		default:
			items, last = append(items, o), path
		}
	}
	reply(w, http.StatusOK, object{"apiVersion": versionOf(resource), "kind": kinds[resource] + "List",
		"metadata": object{"resourceVersion": strconv.Itoa(s.version), "continue": more}, "items": items})
}

func (s *Server) serveWatch(w http.ResponseWriter, r *http.Request, resource string) {
	q := r.URL.Query()
	from, _ := strconv.Atoi(q.Get("resourceVersion"))
	whole := q.Get("sendInitialEvents") == "true"

	s.mu.Lock()
	var first []object // frames
	switch {
	case whole && s.plain:
		s.mu.Unlock()
		fail(w, http.StatusUnprocessableEntity, "Invalid", "sendInitialEvents is forbidden")
		return
	case whole:
		for path, o := range s.objects {
			if matches(path, resource, q.Get("fieldSelector"), o) {
				first = append(first, object{"type": "ADDED", "object": o})
			}
		}
		from = s.version
		first = append(first, object{"type": "BOOKMARK", "object": object{"apiVersion": versionOf(resource), "kind": kinds[resource],
			"metadata": object{"resourceVersion": strconv.Itoa(from), "annotations": object{"k8s.io/initial-events-end": "true"}}}})
	case from < s.oldest:
		s.mu.Unlock()
		fail(w, http.StatusGone, "Expired", "too old resource version")
		return
	}
	s.mu.Unlock()

	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	out, flush := json.NewEncoder(w), w.(http.Flusher)
	flush.Flush()
	for _, frame := range first {
		if out.Encode(frame) != nil {
			return
		}
	}
	for {
		flush.Flush()
		s.mu.Lock()
		next, changed := slices.Clone(s.history), s.changed
		s.mu.Unlock()
		for _, e := range next {
			if e.version <= from || !matches(e.path, resource, q.Get("fieldSelector"), e.object) {
				continue
			}
			from = e.version
			if out.Encode(object{"type": e.kind, "object": e.object}) != nil {
				return
			}
		}
		flush.Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// Ahead sets how far the server's clock is ahead of the clients'.
func (s *Server) Ahead(by time.Duration) { s.set(func() { s.ahead = by }) }

// OnPatch calls f after each patch; f may Put, as another writer would.
func (s *Server) OnPatch(f func()) { s.set(func() { s.patched = f }) }

// DieDuringPatch has the server stop during the next patch. The patch is carried out, and no client hears of it before the server is started again.
func (s *Server) DieDuringPatch() { s.set(func() { s.dies = true }) }

func (s *Server) servePatch(w http.ResponseWriter, r *http.Request, path string) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var patch object
	if err := json.Unmarshal(text, &patch); err != nil || r.Header.Get("Content-Type") != "application/merge-patch+json" {
		fail(w, http.StatusUnsupportedMediaType, "Unsupported", "this server takes merge patches only")
		return
	}
	path, isStatus := strings.CutSuffix(path, "/status")
	s.mu.Lock()
	dies := s.dies
	s.dies = false
	s.mu.Unlock()
	if dies {
		s.Stop()
		defer panic(http.ErrAbortHandler)
	}
	s.mu.Lock()
	was, ok := s.objects[path]
	if !ok || !isStatus {
		s.mu.Unlock()
		fail(w, http.StatusNotFound, "NotFound", path+" not found")
		return
	}
	is := merge(copied(was), patch)
	if fmt.Sprint(is) != fmt.Sprint(was) { // a patch that changes nothing makes no version
		is["metadata"].(object)["managedFields"] = []any{object{"manager": "devmgrd", "operation": "Update", "apiVersion": "v1", "subresource": "status",
			"time": time.Now().Add(s.ahead).UTC().Format(time.RFC3339)}}
		s.putLocked(path, is)
	}
	reply(w, http.StatusOK, is)
	patched := s.patched
	s.patches = append(s.patches, string(text))
	s.mu.Unlock()
	if patched != nil {
		patched()
	}
}

// strategic is the type of patches that know a list's items by their keys. The server takes them for conditions.
const strategic = "application/strategic-merge-patch+json"

// serveConditions applies a strategic merge patch to a Node or a Pod as a real server does. A UID in the patch is a precondition.
func (s *Server) serveConditions(w http.ResponseWriter, r *http.Request, path string) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	path, isStatus := strings.CutSuffix(path, "/status")
	s.mu.Lock()
	defer s.mu.Unlock()
	was, ok := s.objects[path]
	if !ok || !isStatus {
		fail(w, http.StatusNotFound, "NotFound", path+" not found")
		return
	}
	var asked struct{ Metadata struct{ UID any } }
	if json.Unmarshal(text, &asked) == nil && asked.Metadata.UID != nil && asked.Metadata.UID != was["metadata"].(object)["uid"] {
		fail(w, http.StatusUnprocessableEntity, "Invalid", "metadata.uid: field is immutable")
		return
	}
	before, _ := json.Marshal(was)
	var schema any = corev1.Node{}
	if was["kind"] == "Pod" {
		schema = corev1.Pod{}
	}
	after, err := strategicpatch.StrategicMergePatch(before, text, schema)
	var is object
	if err == nil {
		err = json.Unmarshal(after, &is)
	}
	if err != nil {
		fail(w, http.StatusBadRequest, "BadRequest", err.Error())
		return
	}
	s.putLocked(path, is)
	reply(w, http.StatusOK, s.objects[path])
}

// serveEviction deletes a pod if it has the UID that is asked for.
func (s *Server) serveEviction(w http.ResponseWriter, r *http.Request, path string) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var asked struct {
		DeleteOptions struct{ Preconditions struct{ UID string } }
	}
	path, isEviction := strings.CutSuffix(path, "/eviction")
	if err := json.Unmarshal(text, &asked); err != nil || !isEviction {
		fail(w, http.StatusUnsupportedMediaType, "Unsupported", "this server takes evictions in JSON only")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects[path]
	switch {
	case !ok:
		fail(w, http.StatusNotFound, "NotFound", path+" not found")
	case o["metadata"].(object)["uid"] != asked.DeleteOptions.Preconditions.UID:
		fail(w, http.StatusConflict, "Conflict", "another pod of that name")
	default:
		delete(s.objects, path)
		s.recordLocked("DELETED", path, copied(o))
		reply(w, http.StatusCreated, object{"apiVersion": "v1", "kind": "Status", "metadata": object{}, "status": "Success"})
	}
}

// merge applies a JSON merge patch (RFC 7386).
func merge(to, patch object) object {
	if to == nil {
		to = object{}
	}
	for k, v := range patch {
		switch v := v.(type) {
		case nil:
			delete(to, k)
		case object:
			below, _ := to[k].(object)
			to[k] = merge(below, v)
		default:
			to[k] = v
		}
	}
	return to
}

func reply(w http.ResponseWriter, code int, o object) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(o)
}

func fail(w http.ResponseWriter, code int, reason, message string) {
	reply(w, code, object{"apiVersion": "v1", "kind": "Status", "metadata": object{}, "status": "Failure",
		"code": code, "reason": reason, "message": message})
}
