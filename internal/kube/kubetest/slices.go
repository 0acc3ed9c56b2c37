package kubetest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// slicesPrefix is the path of resource.k8s.io/v1.
const slicesPrefix = "/apis/resource.k8s.io/v1/"

// kinds are the resources that the server has.
var kinds = map[string]string{"pods": "Pod", "nodes": "Node", "resourceslices": "ResourceSlice"}

func versionOf(resource string) string {
	if resource == "resourceslices" {
		return resourceapi.SchemeGroupVersion.String()
	}
	return "v1"
}

func slicePath(name string) string { return "resourceslices/" + name }

// DropTaints has the server drop the taints of devices, as releases before 1.36 do.
func (s *Server) DropTaints() { s.set(func() { s.untaint = true }) }

// ResourceSlices returns the ResourceSlices as they are now, ordered by name.
func (s *Server) ResourceSlices() (all []resourceapi.ResourceSlice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for path, o := range s.objects {
		if matches(path, "resourceslices", "", o) {
			all = append(all, *decoded[resourceapi.ResourceSlice](s, o))
		}
	}
	slices.SortFunc(all, func(a, b resourceapi.ResourceSlice) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// readSlice decodes a ResourceSlice in protobuf or JSON.
func readSlice(r *http.Request) (*resourceapi.ResourceSlice, error) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := resourceapi.AddToScheme(scheme); err != nil {
		return nil, err
	}
	o, _, err := serializer.NewCodecFactory(scheme).UniversalDeserializer().Decode(text, nil, nil)
	if err != nil {
		return nil, err
	}
	slice, ok := o.(*resourceapi.ResourceSlice)
	if !ok {
		return nil, fmt.Errorf("a %T is no ResourceSlice", o)
	}
	return slice, nil
}

// serveSlice creates or updates a ResourceSlice as a real server does: it dates taints, and refuses an update of another version.
func (s *Server) serveSlice(w http.ResponseWriter, r *http.Request, verb, path string) {
	slice, err := readSlice(r)
	if err != nil {
		fail(w, http.StatusBadRequest, "BadRequest", err.Error())
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if slice.Name == "" {
		slice.Name = fmt.Sprint(slice.GenerateName, s.version)
	}
	was, there := s.objects[slicePath(slice.Name)]
	switch {
	case verb == "update" && path != slicePath(slice.Name):
		fail(w, http.StatusBadRequest, "BadRequest", "the name is not that of the path")
		return
	case verb == "create" && there:
		fail(w, http.StatusConflict, "AlreadyExists", slice.Name+" already exists")
		return
	case verb == "update" && !there:
		fail(w, http.StatusNotFound, "NotFound", slice.Name+" not found")
		return
	case verb == "update" && slice.ResourceVersion != at(was, "metadata.resourceVersion"):
		fail(w, http.StatusConflict, "Conflict", "the object has been modified")
		return
	}
	for _, d := range slice.Spec.Devices {
		for i := range d.Taints {
			if d.Taints[i].TimeAdded == nil {
				now := metav1.Now()
				d.Taints[i].TimeAdded = &now
			}
		}
	}
	if s.untaint {
		for i := range slice.Spec.Devices {
			slice.Spec.Devices[i].Taints = nil
		}
	}
	text, err := json.Marshal(slice)
	var is object
	if err == nil {
		err = json.Unmarshal(text, &is)
	}
	if err != nil {
		fail(w, http.StatusBadRequest, "BadRequest", err.Error())
		return
	}
	is["kind"], is["apiVersion"] = "ResourceSlice", versionOf("resourceslices")
	if is["metadata"].(object)["uid"] == nil {
		is["metadata"].(object)["uid"] = fmt.Sprintf("uid-%d", s.version)
	}
	s.putLocked(slicePath(slice.Name), is)
	code := http.StatusOK
	if verb == "create" {
		code = http.StatusCreated
	}
	reply(w, code, is)
}

// serveDeletion deletes an object.
func (s *Server) serveDeletion(w http.ResponseWriter, path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, there := s.objects[path]
	if !there {
		fail(w, http.StatusNotFound, "NotFound", path+" not found")
		return
	}
	delete(s.objects, path)
	s.recordLocked("DELETED", path, copied(o))
	reply(w, http.StatusOK, object{"apiVersion": "v1", "kind": "Status", "metadata": object{}, "status": "Success"})
}
