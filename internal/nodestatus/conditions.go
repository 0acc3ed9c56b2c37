package nodestatus

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devmgrd/devmgrd/internal/loops"
)

const (
	// componentsLook is how often the components are asked whether they are ready. They answer from memory.
	componentsLook = 10 * time.Second
	// How long a problem must last before a condition is false. Plugins list nothing for a moment after each start. Components
	// try to reconnect every 5 s at most.
	devicesPatience    = 5 * time.Second
	componentsPatience = 15 * time.Second
	// recovery is how long there must be no problem before the condition is true again. A device that flaps is unhealthy.
	recovery = 30 * time.Second
	// betweenConditions is the least time between two writes of conditions.
	betweenConditions = 10 * time.Second
	// betweenJudgements bounds the work while pods come and go.
	betweenJudgements = time.Second
)

// A moderator decides when the Node shows a condition. It reads no clock: its caller passes the time, which never runs backwards.
type moderator struct {
	spells map[string]*spell // by type; missing: there has been no problem for the recovery time
	wrote  time.Time
}

// A spell is a problem, until there has been none for the recovery time.
type spell struct {
	lasted time.Duration // how long there has been a problem in all
	bad    bool          // there was one at the last judgement
	last   time.Time     // when it was last seen
	worst  condition     // as last seen
}

func newModerator() *moderator { return &moderator{spells: map[string]*spell{}} }

// next returns the conditions to write now, and when to ask again if nothing changes; zero: never. shown are the Node's.
func (m *moderator) next(now []condition, shown map[string]shownCondition, at time.Time) (write []condition, again time.Time) {
	for _, c := range now {
		wanted, due := m.moderate(c, at)
		again = loops.Earliest(again, due)
		if is, known := shown[c.Type]; wanted != (condition{}) && (!known || is.condition != wanted) {
			write = append(write, wanted)
		}
	}
	if soonest := m.wrote.Add(betweenConditions); len(write) > 0 && at.Before(soonest) {
		return nil, soonest
	}
	return write, again
}

// moderate returns what the Node has to show of a condition, or nothing: whatever it shows. due is when this may change.
func (m *moderator) moderate(c condition, at time.Time) (wanted condition, due time.Time) {
	s := m.spells[c.Type]
	switch {
	case s == nil && c.True, s != nil && c.True && !s.bad && at.Sub(s.last) >= recovery:
		delete(m.spells, c.Type)
		return c, time.Time{}
	case s == nil:
		s = &spell{}
		m.spells[c.Type] = s
	case s.bad:
		s.lasted += at.Sub(s.last)
	}
	s.bad = !c.True
	if s.bad {
		s.last, s.worst = at, c
	}
	switch lasting := s.lasted >= patienceOf(c.Type); {
	case lasting && s.bad:
		return s.worst, time.Time{}
	case lasting:
		return s.worst, s.last.Add(recovery)
	case s.bad:
		return condition{}, at.Add(betweenJudgements) // soon: nothing may signal its end
	}
	return c, time.Time{}
}

// patienceOf returns how long a problem must last before a condition is false.
func patienceOf(name string) time.Duration {
	if name == deviceManagerReady {
		return componentsPatience
	}
	return devicesPatience
}

// interrupt reports that for a while nothing is judged. Problems that have not lasted yet are forgotten.
func (m *moderator) interrupt() {
	for name, s := range m.spells {
		if s.lasted < patienceOf(name) {
			delete(m.spells, name)
		}
		s.bad = false
	}
}

// written records that a write has succeeded.
func (m *moderator) written(at time.Time) { m.wrote = at }

// A shownCondition is one of devmgrd's conditions on the Node.
type shownCondition struct {
	condition
	since time.Time // of its status
}

// conditionsOf returns devmgrd's conditions of a Node.
func conditionsOf(n *corev1.Node) map[string]shownCondition {
	all := map[string]shownCondition{}
	for _, c := range n.Status.Conditions {
		if c.Type == devicesHealthy || c.Type == deviceManagerReady {
			all[string(c.Type)] = shownCondition{condition{string(c.Type), c.Status == corev1.ConditionTrue, c.Reason, c.Message}, c.LastTransitionTime.Time}
		}
	}
	return all
}

// publishConditions keeps the Node's conditions up to date until ctx ends. It leaves them as they are: nothing distinguishes
// a restart from an end. It judges nothing while the API server is away, which is the API server's problem, and not the Node's.
func (p *Publisher) publishConditions(ctx context.Context) {
	changed := p.store.follow()
	look := time.NewTicker(componentsLook)
	defer look.Stop()
	retry := loops.Backoff{First: betweenConditions, Last: time.Minute}
	m, failing := newModerator(), false
	for ctx.Err() == nil {
		updated := p.cfg.View.Updated() // before anything is read
		var again time.Time
		if node, known := p.store.now(); known && node.there && p.watch.Check() == nil {
			var write []condition
			judged := []condition{judgeComponents(p.cfg.Components()), judgeDevices(p.cfg.View.Resources(), p.cfg.Expected)}
			if write, again = m.next(judged, node.conditions, time.Now()); len(write) > 0 {
				err := p.writeConditions(ctx, write, node.conditions)
				if err != nil {
					if !failing && ctx.Err() == nil {
						p.cfg.Log.Warn("cannot publish node conditions", "err", err)
					}
					failing = true
					p.pause(ctx, retry.Next(), nil)
					continue
				}
				retry.Reset()
				failing = false
				m.written(time.Now())
			}
		} else {
			m.interrupt()
		}
		p.pause(ctx, betweenJudgements, nil)
		due := loops.At(again)
		select {
		case <-updated:
		case <-changed:
		case <-look.C:
		case <-due:
		case <-ctx.Done():
		}
	}
}

// writeConditions writes conditions in one patch, and uses the answer as the newest state of the Node.
func (p *Publisher) writeConditions(ctx context.Context, all []condition, shown map[string]shownCondition) error {
	body, err := conditionsPatch(all, shown, time.Now())
	if err != nil {
		return err
	}
	if err := p.send(ctx, partConditions, types.StrategicMergePatchType, body, nil); err != nil {
		return err
	}
	for _, c := range all {
		p.cfg.Log.Info("published node condition", "condition", c.Type, "status", statusOf(c), "reason", c.Reason)
	}
	return nil
}

// conditionsPatch returns a strategic merge patch, which knows conditions by their types.
func conditionsPatch(all []condition, shown map[string]shownCondition, now time.Time) ([]byte, error) {
	list := make([]corev1.NodeCondition, 0, len(all))
	for _, c := range all {
		since := now
		if was, known := shown[c.Type]; known && was.True == c.True {
			since = was.since
		}
		list = append(list, corev1.NodeCondition{
			Type: corev1.NodeConditionType(c.Type), Status: statusOf(c), Reason: c.Reason, Message: c.Message,
			LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(since),
		})
	}
	body, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": list}})
	if err != nil {
		return nil, fmt.Errorf("writing a patch: %w", err)
	}
	return body, nil
}

func statusOf(c condition) corev1.ConditionStatus {
	if c.True {
		return corev1.ConditionTrue
	}
	return corev1.ConditionFalse
}
