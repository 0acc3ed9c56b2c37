package nodestatus_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/devmgrd/devmgrd/internal/kube/kubetest"
)

// Pods that the scheduler has bound by the number that the Node showed hold it, during a fall and for half a minute after it: the
// kubelet would reject them. They never raise it further, and later pods do not raise it at all.
func TestBoundPods_HoldTheNumber_UpToWhatTheNodeShowed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		at    time.Duration // after less is wanted
		ask   int           // what all bound pods ask for
		shows string
	}{
		"bound before the fall":               {at: time.Second, ask: 4, shows: "4/4"},
		"bound while the number is off":       {at: 5*time.Second + 500*time.Millisecond, ask: 4, shows: "4/4"},
		"bound after the fall":                {at: 8 * time.Second, ask: 3, shows: "3/3"},
		"bound after the fall, asks for more": {at: 8 * time.Second, ask: 9, shows: "4/4"},
		"bound much later":                    {at: 40 * time.Second, ask: 4, shows: "2/2"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := kubetest.NewInMemory(t)
				api.Put(node(nil, nil))
				v := newView(quantities{"a.example/gpu": 4})
				publish(t, api, v)
				untilShows(t, api, map[string]string{"a.example/gpu": "4/4"})
				time.Sleep(time.Hour)
				v.bind(quantities{"a.example/gpu": 2})
				v.set(quantities{"a.example/gpu": 2})
				time.Sleep(c.at)
				v.bind(quantities{"a.example/gpu": c.ask})
				time.Sleep(10 * time.Second)
				if got := shows(api)["a.example/gpu"]; got != c.shows {
					t.Errorf("10 s after the pods were bound the Node shows %q, want %s", got, c.shows)
				}
				v.bind(quantities{"a.example/gpu": 2}) // rejected, or deleted
				time.Sleep(time.Minute)
				if got := shows(api)["a.example/gpu"]; got != "2/2" {
					t.Errorf("a minute after the pods have gone the Node shows %q, want 2/2", got)
				}
			})
		})
	}
}
