package kube

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// An API server that refuses what a test names, by "VERB resource".
func resourceServer(t *testing.T, release string, served bool, refused string, slices ...resourceapi.ResourceSlice) (c Client, asked map[string]string) {
	asked = map[string]string{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer := func(code int, o any) {
			w.WriteHeader(code)
			_ = json.NewEncoder(w).Encode(o)
		}
		path := strings.TrimPrefix(r.URL.Path, "/apis/resource.k8s.io/v1")
		if r.URL.Path == "/version" {
			answer(http.StatusOK, map[string]string{"gitVersion": release})
			return
		}
		if !served {
			answer(http.StatusNotFound, metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound})
			return
		}
		if path == "" {
			answer(http.StatusOK, metav1.APIResourceList{})
			return
		}
		verb := r.Method
		if r.URL.Query().Has("watch") {
			verb = "WATCH"
		}
		body, _ := io.ReadAll(r.Body)
		asked[verb+" "+path] = r.URL.Query().Get("fieldSelector") + string(body)
		if verb != "GET" && verb != "WATCH" && r.URL.Query().Get("dryRun") != metav1.DryRunAll {
			t.Errorf("%s %s is no dry run", verb, path)
		}
		switch {
		case refused != "" && strings.HasPrefix(verb+" "+path, refused):
			answer(http.StatusForbidden, metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden})
		case verb == "WATCH":
		case path == "/resourceslices" && verb == "GET":
			answer(http.StatusOK, resourceapi.ResourceSliceList{TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceSliceList"}, Items: slices})
		case path == "/deviceclasses":
			gpu := "vendor.example/gpu"
			answer(http.StatusOK, resourceapi.DeviceClassList{TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "DeviceClassList"},
				Items: []resourceapi.DeviceClass{
					{ObjectMeta: metav1.ObjectMeta{Name: "gpus"}, Spec: resourceapi.DeviceClassSpec{ExtendedResourceName: &gpu}},
					{ObjectMeta: metav1.ObjectMeta{Name: "others"}},
				}})
		case verb == "PUT": // another client was faster
			answer(http.StatusConflict, metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonConflict, Code: http.StatusConflict})
		case strings.Contains(path, "/resourceclaims/"): // it has just gone
			answer(http.StatusNotFound, metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound})
		default:
			answer(http.StatusOK, metav1.Status{Status: metav1.StatusSuccess})
		}
	}))
	t.Cleanup(server.Close)
	c, err := NewResourceClient(&rest.Config{Host: server.URL}, "test")
	if err != nil {
		t.Fatal(err)
	}
	return c, asked
}

func TestClaimRights_EachIsTried(t *testing.T) {
	slice := resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}}
	pods := []corev1.Pod{{}, {
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"},
		Status:     corev1.PodStatus{ExtendedResourceClaimStatus: &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "c"}},
	}}
	for refused, want := range map[string]string{
		"":                                    "",
		"GET /resourceslices":                 "list resourceslices",
		"WATCH /resourceslices":               "watch resourceslices",
		"POST /resourceslices":                "create resourceslices",
		"PUT /resourceslices/s":               "update resourceslices",
		"DELETE /resourceslices/s":            "delete resourceslices",
		"GET /namespaces/ns/resourceclaims/c": "get resourceclaims",
	} {
		c, asked := resourceServer(t, "v1.36.3", true, refused, slice)
		a, err := ClaimRights(t.Context(), c, "n1", "devmgrd.io", pods)
		if err != nil || !a.Served || a.Older || a.Release != "v1.36.3" {
			t.Errorf("%q: %+v, %v", refused, a, err)
		}
		var lacks []string
		for _, r := range a.Rights {
			if r.Err != nil {
				lacks = append(lacks, r.What)
			}
		}
		if got := strings.Join(lacks, ", "); got != want {
			t.Errorf("without %q it lacks %q, want %q", refused, got, want)
		}
		if got := asked["GET /resourceslices"]; !strings.Contains(got, "spec.driver=devmgrd.io") || !strings.Contains(got, "spec.nodeName=n1") {
			t.Errorf("it lists the slices %q", got)
		}
		if a.ClassesErr != nil || !maps.Equal(a.Classes, map[string]string{"vendor.example/gpu": "gpus"}) {
			t.Errorf("the classes are %v, %v", a.Classes, a.ClassesErr)
		}
	}
}

// A kubelet's credentials are refused for slices and claims that do not exist, so these are not tried; and they may not list classes.
func TestClaimRights_OfAKubelet(t *testing.T) {
	c, asked := resourceServer(t, "v1.35.0", true, "GET /deviceclasses")
	a, err := ClaimRights(t.Context(), c, "n1", "devmgrd.io", []corev1.Pod{{}})
	if err != nil || !a.Older || a.ClassesErr == nil || len(a.Rights) != 6 || len(asked) != 4 {
		t.Errorf("%+v after %v, %v", a, asked, err)
	}
	for _, r := range a.Rights {
		if r.Err != nil {
			t.Errorf("%s: %v", r.What, r.Err)
		}
	}
}

func TestClaimRights_Releases(t *testing.T) {
	for release, older := range map[string]bool{"v1.34.4": true, "v1.35.9+k3s1": true, "v1.36.0": false, "v1.37.1-gke.1": false, "of no form": false} {
		c, _ := resourceServer(t, release, true, "")
		if a, err := ClaimRights(t.Context(), c, "n1", "devmgrd.io", nil); err != nil || a.Older != older {
			t.Errorf("%s: %+v, %v", release, a, err)
		}
	}
	c, _ := resourceServer(t, "v1.33.1", false, "")
	if a, err := ClaimRights(t.Context(), c, "n1", "devmgrd.io", nil); err != nil || a.Served || a.Rights != nil {
		t.Errorf("without the API: %+v, %v", a, err)
	}
}
