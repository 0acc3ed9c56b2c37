package nodestatus_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube/kubetest"
)

// retire has resources be taken off the Node.
func (v *view) retire(fail error, all ...device.ResourceName) {
	v.mu.Lock()
	v.retired, v.fail = append(v.retired, all...), fail
	v.mu.Unlock()
	v.signal()
}

// What is retired goes from capacity and allocatable, nothing else does, and a later writer may put it back.
func TestRetired(t *testing.T) {
	t.Parallel()
	api := kubetest.New(t)
	api.Put(node(map[string]string{"a.example/old": "0", "a.example/ignored": "5", "b.example/x": "1"}, map[string]string{"a.example/old": "0", "a.example/ignored": "5", "b.example/x": "1"}))
	v := newView(quantities{"a.example/gpu": 2})
	v.partial = true
	v.retire(nil, "a.example/old", "a.example/ignored")
	p, _ := publish(t, api, v)
	untilShows(t, api, map[string]string{"a.example/gpu": "2/2", "a.example/old": "0/0", "a.example/ignored": "5/5", "b.example/x": "1/1"}) // pods may ask for it
	for r, want := range map[device.ResourceName]bool{"a.example/old": true, "a.example/never": false, "a.example/ignored": false, "b.example/x": true} {
		if _, shown := p.Shown(r); shown != want {
			t.Errorf("the Node shows %s: %v", r, shown)
		}
	}
	v.complete()
	untilShows(t, api, map[string]string{"a.example/gpu": "2/2", "a.example/ignored": "5/5", "b.example/x": "1/1"})
	kubetest.Until(t, "the view has been told", func() bool { return len(v.Resources().Retired) == 0 })
	untilSettled(t, p)
	api.Put(node(map[string]string{"a.example/gpu": "2", "a.example/old": "4"}, map[string]string{"a.example/gpu": "2", "a.example/old": "4"}))
	v.set(quantities{"a.example/gpu": 3}) // the patch that this needs ends the test
	untilShows(t, api, map[string]string{"a.example/gpu": "3/3", "a.example/old": "4/4"})
}

// A note that cannot be removed is kept, and the next occasion is used.
func TestRetiredIsNotedLater(t *testing.T) {
	t.Parallel()
	api := kubetest.New(t)
	api.Put(node(nil, nil))
	v := newView(quantities{})
	v.retire(errors.New("disk full"), "a.example/old")
	p, _ := publish(t, api, v)
	kubetest.Until(t, "the failure shows", func() bool {
		err := p.Check()
		return err != nil && err.Error() == "recording that the node no longer shows [a.example/old]: disk full"
	})
	v.retire(nil)
	kubetest.Until(t, "the view has been told", func() bool { return len(v.Resources().Retired) == 0 })
	untilSettled(t, p)
}

// The API server carries out a patch and dies before it answers. The resource is forgotten meanwhile. As of what devmgrd has seen, the Node does not show it.
func TestRetired_AfterAPatchWithoutAnswer_IsRemoved(t *testing.T) {
	t.Parallel()
	api := kubetest.New(t)
	api.Put(node(nil, nil))
	v := newView(quantities{})
	p, _ := publish(t, api, v)
	untilSettled(t, p)
	api.DieDuringPatch()
	v.set(quantities{"a.example/gpu": 1})
	kubetest.Until(t, "the patch has no answer", func() bool { return p.Check() != nil })
	v.set(quantities{})
	v.retire(nil, "a.example/gpu")
	api.Start()
	untilShows(t, api, map[string]string{})
	kubetest.Until(t, "the view has been told", func() bool { return len(v.Resources().Retired) == 0 })
	untilShows(t, api, map[string]string{})
}

// Resources that a pattern of dra.resources matches come, are taken off the Node, and are forgotten: nothing is remembered of them.
func TestRetired_ClaimedResource_TimeIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const old, stays device.ResourceName = "a.example/old", "a.example/stays"
		api := kubetest.NewInMemory(t)
		theirs := map[string]string{string(old): "1", string(stays): "1"}
		api.Put(node(theirs, theirs))
		v := newView(quantities{old: 1, stays: 1})
		p := publishClaimed(t, api, v, nil)
		check := func(when string, want map[device.ResourceName]bool) {
			t.Helper()
			time.Sleep(time.Minute)
			synctest.Wait()
			for r, remembered := range want {
				if since, uncounted, _ := p.Uncounted(r); !uncounted || since.IsZero() == remembered {
					t.Errorf("%s: %s was taken off at %v, off the Node: %v", when, r, since, uncounted)
				}
			}
		}
		check("listed", map[device.ResourceName]bool{old: true, stays: true})
		v.set(quantities{stays: 1})
		v.retire(nil, old)
		check("forgotten", map[device.ResourceName]bool{old: false, stays: true})
	})
}
