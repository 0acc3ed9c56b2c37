package nodestatus_test

import (
	"errors"
	"maps"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube/kubetest"
)

// conditions returns the Node's conditions as text.
func conditions(api *kubetest.Server) map[string]string {
	all := map[string]string{}
	for _, c := range api.Node("n1").Status.Conditions {
		all[string(c.Type)] = string(c.Status) + " " + c.Reason + ": " + c.Message
	}
	return all
}

// TestConditions: the Node shows what devmgrd knows, each change is written once, and conditions of others stay.
func TestConditions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewInMemory(t)
		n := node(nil, nil)
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}}
		api.Put(n)
		v := newView(quantities{"a.example/gpu": 0})
		v.parts = []device.Component{{Name: "nri"}}
		publish(t, api, v)
		time.Sleep(time.Minute)
		want := map[string]string{
			"Ready":              "True KubeletReady: ",
			"DeviceManagerReady": "True ComponentsReady: all components of devmgrd are ready",
			"DevicesHealthy":     "True NoDevices: no plugin lists devices",
		}
		if got := conditions(api); !maps.Equal(got, want) || api.Requests("conditions") != 1 {
			t.Errorf("the Node shows %q after %d writes, want %q", got, api.Requests("conditions"), want)
		}

		v.mu.Lock()
		v.parts[0].Err = errors.New("not connected to the runtime")
		v.mu.Unlock()
		time.Sleep(time.Minute)
		want["DeviceManagerReady"] = "False ComponentsNotReady: nri: not connected to the runtime"
		if got := conditions(api); !maps.Equal(got, want) || api.Requests("conditions") != 2 {
			t.Errorf("the Node shows %q after %d writes, want %q", got, api.Requests("conditions"), want)
		}

		// Another writer removes them all, and the API server refuses for a while.
		api.Refuse(func(verb, _ string) int {
			if verb == "conditions" {
				return http.StatusForbidden
			}
			return 0
		})
		api.Put(node(nil, nil))
		time.Sleep(time.Minute)
		delete(want, "Ready")
		if got := conditions(api); len(got) > 0 {
			t.Errorf("the Node shows %q", got)
		}
		refused := api.Requests("conditions")
		if refused > 2+6 {
			t.Errorf("%d writes are refused in a minute", refused-2)
		}
		api.Refuse(nil)
		time.Sleep(2 * time.Minute)
		if got := conditions(api); !maps.Equal(got, want) {
			t.Errorf("the Node shows %q, want %q", got, want)
		}
		before := api.Requests("conditions")
		time.Sleep(24 * time.Hour)
		if n := api.Requests("conditions") - before; n > 0 {
			t.Errorf("%d writes at rest", n)
		}
	})
}

// TestCordons_Annotation: each change of the annotation is passed on once; a mistake in it, or a Node that is gone, changes
// nothing.
func TestCordons_Annotation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewInMemory(t)
		annotate := func(text string) {
			n := node(nil, nil)
			n.Annotations = map[string]string{device.CordonAnnotation: text}
			api.Put(n)
			time.Sleep(time.Second)
		}
		annotate("a.example/gpu: [d1]")
		v := newView(quantities{"a.example/gpu": 2})
		v.refuse = errors.New("disk full")
		publish(t, api, v)
		declared := func() (names []string) {
			v.mu.Lock()
			defer v.mu.Unlock()
			for _, c := range v.cordons {
				names = append(names, string(c.ID)+c.Reason)
			}
			return names
		}
		is := func(want string) {
			t.Helper()
			if got := strings.Join(declared(), " "); got != want {
				t.Errorf("declared: %q, want %q", got, want)
			}
		}
		time.Sleep(time.Minute)
		is("")
		v.mu.Lock()
		v.refuse = nil
		v.mu.Unlock()
		time.Sleep(time.Minute)
		is("d1")
		annotate("a.example/gpu: {d2: fan}")
		is("d2fan")
		annotate("a.example/gpu: d1")
		is("d2fan")
		if len(v.mistakes) != 1 || !strings.Contains(v.mistakes[0], "a.example/gpu") {
			t.Errorf("mistakes: %q", v.mistakes)
		}
		api.Delete("nodes/n1")
		time.Sleep(time.Second)
		is("d2fan")
		annotate("")
		is("d2fan")
		annotate("{}")
		is("")
		annotate("a.example/gpu: [d1]")
		is("d1")
		api.Put(node(nil, nil))
		time.Sleep(time.Second)
		is("")
	})
}
