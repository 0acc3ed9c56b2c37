package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/test/cluster"
)

const (
	// suspendFor is how long a device's first suspension lasts here.
	suspendFor = 30 * time.Second
	// patience is how long a suspension may last that is waited for. Longer ones are ended as an operator would.
	patience = suspendFor + 10*time.Second
	// comeback is how long after its suspension a device may take to be in service.
	comeback = 15 * time.Second
)

// A suspension is a device out of service, as devmgrd has announced it.
type suspension struct {
	seen, until time.Time
}

var announced = regexp.MustCompile(`^suspended by devmgrd until (\S+): `)

// announcements asks devmgrd which devices it knows, and until when they are suspended; zero: they are not.
func (w *world) announcements(ctx context.Context) (map[string]suspension, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	text, err := w.node.Command(ctx, "devices", resourceName, "-o", "json").Output()
	if err != nil {
		return nil, err
	}
	var answer struct {
		Devices []struct {
			ID     string
			Cordon *struct{ Reason string }
		}
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, err
	}
	all := map[string]suspension{}
	for _, d := range answer.Devices {
		s := suspension{seen: time.Now()}
		if d.Cordon != nil {
			if found := announced.FindStringSubmatch(d.Cordon.Reason); found != nil {
				s.until, err = time.Parse(time.RFC3339, found[1])
				if err != nil {
					return nil, err
				}
			}
		}
		all[d.ID] = s
	}
	return all, nil
}

// watchSuspensions notes the suspensions of devmgrd, for those who watch, and ends those that last too long, as an operator would. It returns
// when the last of the others ends; zero: there is none.
func (w *world) watchSuspensions(ctx context.Context) (last time.Time) {
	all, err := w.announcements(ctx)
	if err != nil {
		w.tell("asking for suspended devices: %v", err)
		return last
	}
	for id, s := range all {
		switch left := time.Until(s.until); {
		case s.until.IsZero():
			continue
		case left > patience:
			w.uncordon(ctx, id)
			continue
		case left < -comeback:
			w.say(late, fmt.Sprintf("device %s is suspended, and should have been until %s", id, s.until))
			w.uncordon(ctx, id)
			continue
		case s.until.After(last):
			last = s.until
		}
		w.suspended(id, s)
	}
	return last
}

// suspended notes a suspension.
func (w *world) suspended(id string, s suspension) {
	w.mu.Lock()
	before, known := w.suspensions[id]
	again := known && s.until.Equal(before.until)
	if !again {
		w.suspensions[id] = s
		w.announced++
	}
	w.mu.Unlock()
	if !again {
		w.tell("device %s is suspended until %s", id, s.until.Format(time.TimeOnly))
	}
}

// uncordon returns devices to service, and has devmgrd forget how often they have failed.
func (w *world) uncordon(ctx context.Context, ids ...string) {
	w.mu.Lock()
	for _, id := range ids {
		delete(w.suspensions, id)
	}
	w.mu.Unlock()
	args := []string{"uncordon"}
	for _, id := range ids {
		args = append(args, resourceName+"/"+id)
	}
	if out, err := w.node.Command(ctx, args...).CombinedOutput(); err != nil {
		w.tell("uncordon %v: %v: %s", ids, err, out)
	}
}

// forbidden returns until when no pod that was created at a time may get a device; zero: it may.
func (w *world) forbidden(id, pod string, now time.Time) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, known := w.suspensions[id]
	if created := w.created[pod]; known && now.Before(s.until) && created.After(s.seen) && (w.uses[pod] == "" || w.uses[pod] == pod) { // else it joins others
		return s.until
	}
	return time.Time{}
}

// flap has a device fail until it is suspended. What happens meanwhile does not end the suspension, and its time does.
func (w *world) flap(ctx context.Context, dice *rand.Rand) {
	restarts := []*cluster.Process{w.plugin, w.devmgrd}
	for range dice.IntN(3) {
		restarts = append(restarts, []*cluster.Process{w.plugin, w.devmgrd, w.Kubelet, w.Runtime}[dice.IntN(4)])
	}
	dice.Shuffle(len(restarts), func(i, j int) { restarts[i], restarts[j] = restarts[j], restarts[i] })
	free, again := dice.IntN(2) == 0, dice.IntN(2) == 0
	if free {
		w.tell("delete all pods")
		w.clear(ctx)
	}
	until, ok := w.flaps(ctx, time.Time{})
	if !ok {
		return
	}
	for _, p := range restarts {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(dice.IntN(4000)) * time.Millisecond):
		}
		what, err := w.restartAtOnce(p, dice)
		if err == nil && dice.IntN(2) == 0 {
			var name string
			name, err = w.create(ctx, 1)
			what += "; create " + name + " (1 device)"
		}
		if err != nil {
			what += " (" + short(err) + ")"
		}
		w.tell("%s", what)
	}
	id := readMood().id(0)
	err := w.eventually(ctx, time.Until(until)+comeback, func() (bool, string) {
		all, err := w.announcements(ctx)
		if err != nil {
			return false, err.Error()
		}
		s, listed := all[id]
		if listed && !s.until.Equal(until) && time.Now().Before(until) {
			w.say(early, fmt.Sprintf("device %s was suspended until %s, and is now until %s", id, until, s.until))
			return true, ""
		}
		return listed && s.until.IsZero(), fmt.Sprintf("device %s is listed: %v, and suspended until %s", id, listed, s.until)
	})
	if err != nil {
		w.say(late, err.Error())
		return
	}
	if again {
		w.tell("device %s is on probation", id)
		w.flaps(ctx, time.Now().Add(2*suspendFor))
	}
}

// flaps has the first device flap until it is suspended, at least until the given time.
func (w *world) flaps(ctx context.Context, least time.Time) (until time.Time, ok bool) {
	m := readMood()
	id := m.id(0)
	m.Flaps = true
	if err := m.write(); err != nil {
		w.say(stuck, err.Error())
		return until, false
	}
	w.tell("device %s flaps", id)
	err := w.eventually(ctx, time.Minute, func() (bool, string) {
		all, err := w.announcements(ctx)
		if err != nil {
			return false, err.Error()
		}
		s := all[id]
		if until = s.until; until.IsZero() {
			return false, "device " + id + " flaps, and is not suspended"
		}
		w.suspended(id, s)
		return true, ""
	})
	m.Flaps = false
	if err := m.write(); err != nil {
		w.say(stuck, err.Error())
		return until, false
	}
	if err == nil && until.Before(least.Truncate(time.Second)) {
		err = fmt.Errorf("device %s is suspended until %s, and should be until %s", id, until, least)
	}
	if err != nil {
		w.say(early, err.Error())
	}
	return until, err == nil
}

// restartAtOnce ends a process, politely or not, and the keeper starts it again.
func (w *world) restartAtOnce(p *cluster.Process, dice *rand.Rand) (string, error) {
	hard := dice.IntN(3) > 0
	return map[bool]string{true: "kill ", false: "stop "}[hard] + p.Name, w.keeper.kill(p, hard, false)
}

// ids returns the names of all devices.
func (m Mood) ids() (all []string) {
	for i := range deviceCount {
		all = append(all, m.id(i))
	}
	slices.Sort(all)
	return all
}
