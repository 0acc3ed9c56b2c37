package registry

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// The grace period goes on over a restart of devmgrd, with a moment to dial, and however the clock was set.
func TestGraceLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		for name, test := range map[string]struct {
			away, boot time.Duration // how long ago
			grace      time.Duration
			want       time.Duration
		}{
			"away for a part of it":     {20 * time.Second, time.Hour, time.Minute, 40 * time.Second},
			"away for all of it":        {time.Hour, 2 * time.Hour, time.Minute, dialTime},
			"away since before a boot":  {time.Hour, 15 * time.Second, time.Minute, 45 * time.Second},
			"away from now on":          {0, time.Hour, time.Minute, time.Minute},
			"the clock was set back":    {-time.Hour, time.Hour, time.Minute, time.Minute},
			"the clock was set forward": {100_000 * time.Hour, time.Hour, time.Minute, dialTime},
			"a short period":            {time.Second, time.Hour, 2 * time.Second, 2 * time.Second},
			"no period":                 {time.Second, time.Hour, 0, 0},
		} {
			r := &Registry{cfg: Config{GracePeriod: test.grace}}
			if got := r.graceLeft(now.Add(-test.away), now.Add(-test.boot)); got != test.want {
				t.Errorf("%s: %v is left, want %v", name, got, test.want)
			}
		}
	})
}

func TestRememberedSince(t *testing.T) {
	t.Parallel()
	before := time.Now()
	for name, test := range map[string]struct {
		record device.PluginRecord
		want   device.OfferState
		now    bool // since
	}{
		"served":          {device.PluginRecord{}, device.Stale, true},
		"away":            {device.PluginRecord{Away: before.Add(-time.Minute)}, device.Stale, false},
		"lost":            {device.PluginRecord{Away: before.Add(-time.Hour), Lost: true}, device.Lost, false},
		"lost, to come":   {device.PluginRecord{Away: before.Add(time.Hour), Lost: true}, device.Lost, true},
		"lost, not known": {device.PluginRecord{Lost: true}, device.Lost, true},
	} {
		s := remembered(test.record, &registration{})
		if s.state != test.want || !test.now && !s.since.Equal(test.record.Away) || test.now && s.since.Before(before) {
			t.Errorf("%s: %v since %v", name, s.state, s.since)
		}
	}
}
