package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
)

// The trials of a sequence are faults that come in some sequences, each with dice of its own: the other faults of a seed are the same with them
// and without. nil: the sequence has none of it.
type trials struct {
	ways    *rand.Rand // pods ask for devices in several ways at once
	surge   *rand.Rand // a second plugin of the resource
	free    *rand.Rand // a plugin that lists only free devices
	rival   *rand.Rand // another writer of the Node's number
	blocks  *rand.Rand // slices that cannot be written
	long    *rand.Rand // another resource through DRA, whose name is longer than an attribute's value may be
	network *rand.Rand // deletions of pods' networks that hang
}

// newTrials draws the trials of a seed.
func newTrials(seed uint64, p plan, kubelet bool) trials {
	draw := func(stream uint64, one, of int, possible bool) *rand.Rand {
		dice := rand.New(rand.NewPCG(seed, stream))
		if dice.IntN(of) < one && possible {
			return dice
		}
		return nil
	}
	return trials{
		ways: draw(4, 2, 3, p.claims), surge: draw(5, 1, 3, true), free: draw(6, 1, 4, true), rival: draw(7, 1, 4, true),
		blocks: draw(8, 1, 2, p.claims), long: draw(9, 1, 3, p.claims), network: draw(10, 1, 3, true),
	}
}

// step returns the dice for how the pods of the next step ask for devices.
func (t trials) step() *rand.Rand {
	if t.ways == nil {
		return nil
	}
	return rand.New(rand.NewPCG(t.ways.Uint64(), 0))
}

// try plays the trials after a step.
func (w *world) try(ctx context.Context) {
	for _, one := range []struct {
		dice *rand.Rand
		of   int // one in so many steps
		do   func(context.Context, *world, *rand.Rand) (string, error)
	}{
		{w.trials.surge, 2, surge},
		{w.trials.free, 3, listFree},
		{w.trials.rival, 2, rival},
		{w.trials.blocks, 5, block},
		{w.trials.network, 3, hangNetworks},
	} {
		if one.dice == nil {
			continue
		}
		own := rand.New(rand.NewPCG(one.dice.Uint64(), 0))
		if own.IntN(one.of) > 0 {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, 8*time.Second)
		w.did(one.do(ctx, w, own))
		cancel()
	}
}

// surge starts a second plugin of the resource, if there is none, and ends one of the two, or neither.
func surge(ctx context.Context, w *world, dice *rand.Rand) (string, error) {
	second, d, fate, hard := w.second, time.Duration(dice.IntN(1500))*time.Millisecond, dice.IntN(5), dice.IntN(2) == 0
	if dice.IntN(3) == 0 {
		second = w.mute
	}
	what := fmt.Sprintf("a second plugin registers, %s", second.Name)
	if err := w.keeper.start(ctx, second); err != nil {
		return what, err
	}
	w.surged = true
	return after(ctx, what, d, func() (string, error) {
		switch fate {
		case 0:
			return "the first ends for a moment", w.keeper.kill(w.plugin, hard, false)
		case 1:
			return "the first ends", w.keeper.kill(w.plugin, hard, true)
		case 2, 3:
			return "the second ends", w.keeper.kill(second, hard, true)
		}
		return "both live on", nil
	})
}

// listFree restarts the plugin, which lists only devices then that no container has, as plugins of network cards do.
func listFree(_ context.Context, w *world, dice *rand.Rand) (string, error) {
	m := readMood()
	m.Free = true
	return "the plugin restarts, and lists only free devices", errors.Join(m.write(), w.keeper.kill(w.plugin, dice.IntN(2) == 0, false))
}

// firstLook is how long a devmgrd may take until it has seen the Node. What it finds there it takes for the number of the devmgrd before it,
// which falls like any other.
const firstLook = 5 * time.Second

// rivalLimit is how long what another writer has written may stay.
const rivalLimit = 3 * time.Second

// rival has another writer set the Node's number, and waits until it is set right. The number is never too low for the pods, which the
// kubelet would fail for it, and none is written that the scheduler might bind pods by while the resource is offered through DRA. In the
// first 30 s of a devmgrd, and after an outage of the API server, no number rises (decision 0002): then a lower one may stay.
func rival(ctx context.Context, w *world, dice *rand.Rand) (string, error) {
	at := dice.IntN(1000)
	what := "another writer sets the number"
	if !w.awake() || runsFor(w.publisher()) < firstLook || runsFor(w.APIServer) < reconnect+firstLook {
		return what + ": not now, the one who sets it right is away or has just started", nil
	}
	pods, err := w.Client().CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err != nil {
		return what, err
	}
	asked, pending := int64(0), false
	for _, p := range pods.Items {
		asked += limit(&p)
		pending = pending || p.Spec.NodeName == ""
	}
	v := &apiView{cluster: w.Cluster}
	before, there, err := v.shown(ctx)
	if err != nil {
		return what, err
	}
	least, most := min(asked, deviceCount), int64(2*deviceCount)
	if pending {
		most = deviceCount // else the scheduler binds more pods than there are devices
	}
	number := least + int64(at)%(most-least+1)
	if number == before && there || there == w.offered || w.offered && pending {
		return what + ": not now", nil
	}
	mayStay := there && number < before && (runsFor(w.publisher()) < standstill+rivalLimit || w.cut)
	w.rivals++
	began, pid := time.Now(), w.publisher().Pid()
	what = fmt.Sprintf("another writer sets the number to %d", number)
	if err := w.setNumber(ctx, &number); err != nil {
		return what, err
	}
	for {
		switch now, is, err := v.shown(ctx); {
		case err != nil: // nothing can be said: what was there is put back
		case now != number || !is:
			return fmt.Sprintf("%s, for %s", what, time.Since(began).Round(time.Millisecond)), nil
		case time.Since(began) < rivalLimit && w.awake() && pid == w.publisher().Pid():
			time.Sleep(20 * time.Millisecond)
			continue
		case w.awake() && pid == w.publisher().Pid() && !mayStay && number != int64(readMood().usable()): // devmgrd's own number may have become this one
			w.say(rivalled, what)
		}
		back := &before
		if !there {
			back = nil
		}
		return what + ", and back", w.setNumber(ctx, back)
	}
}

// runsFor returns how long ago a process started.
func runsFor(p *cluster.Process) time.Duration {
	var up float64
	text, err := os.ReadFile("/proc/uptime")
	if err == nil {
		_, err = fmt.Sscan(string(text), &up)
	}
	ticks, failure := strconv.ParseFloat(startOf(p.Pid()), 64)
	if err != nil || failure != nil {
		return 0
	}
	return time.Duration((up - ticks/ticksPerSecond) * float64(time.Second))
}

// ticksPerSecond is the kernel's unit of times in /proc, on all machines in use.
const ticksPerSecond = 100

// setNumber writes the Node's number; nil: there is none.
func (w *world) setNumber(ctx context.Context, n *int64) error {
	value := "null"
	if n != nil {
		value = fmt.Sprintf("%q", fmt.Sprint(*n))
	}
	patch := fmt.Sprintf(`{"status":{"capacity":{%q:%s},"allocatable":{%q:%s}}}`, resourceName, value, resourceName, value)
	_, err := w.Client().CoreV1().Nodes().Patch(ctx, w.NodeName(), types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	return err
}

// overbooked reports whether pods are bound that ask for more devices than there are, because another writer has set the number. Then some
// wait rightly.
func (w *world) overbooked(pods []corev1.Pod) bool {
	sum, counted := int64(0), map[string]bool{}
	for _, p := range pods {
		if p.Spec.NodeName == "" || p.Status.Phase == corev1.PodFailed {
			continue
		}
		sum += w.takes(&p, counted)
		if claim := w.claimOf(p.Name); claim != "" {
			counted[claim] = true
		}
	}
	return w.rivals > 0 && sum > deviceCount
}

const noSlices = "chaos-no-slices"

// addBlock creates the policy by which slices cannot be written. It has no effect without its binding.
func (w *world) addBlock(ctx context.Context) error {
	_, err := w.Client().AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(ctx, &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: noSlices},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
				Rule:       admissionv1.Rule{APIGroups: []string{resourceapi.GroupName}, APIVersions: []string{"*"}, Resources: []string{"resourceslices"}},
			}}}},
			Validations: []admissionv1.Validation{{Expression: "false", Message: noSlices}},
		},
	}, metav1.CreateOptions{})
	return err
}

// block has the API server refuse to write slices for some seconds.
func block(ctx context.Context, w *world, dice *rand.Rand) (string, error) {
	d := time.Duration(2000+dice.IntN(14000)) * time.Millisecond
	what := fmt.Sprintf("slices cannot be written for %s", d)
	if w.blocked {
		return what + ": they cannot be already", nil
	}
	w.blocked = true
	w.unwritable.Store(true)
	api := w.Client().AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	_, err := api.Create(ctx, &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: noSlices},
		Spec:       admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: noSlices, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return what, err
	}
	if err := w.eventually(ctx, 3*time.Second, func() (bool, string) { return w.refusesSlices(ctx) }); err != nil {
		return what, err
	}
	if _, there, err := (&apiView{cluster: w.Cluster}).shown(ctx); err == nil && there && !w.offered {
		w.pinned.Store(true) // until slices can be written, the number has to stay
	}
	w.later.Go(func() {
		w.lasts(d, nil)
		w.pinned.Store(false)
		_ = w.unblock(context.Background()) // if it fails, world.repair does it
	})
	return what, nil
}

// refusesSlices reports whether the API server refuses to write a slice.
func (w *world) refusesSlices(ctx context.Context) (bool, string) {
	node := w.NodeName()
	_, err := w.Client().ResourceV1().ResourceSlices().Create(ctx, &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: noSlices},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: "chaos.example", NodeName: &node, Pool: resourceapi.ResourcePool{Name: "chaos", Generation: 1, ResourceSliceCount: 1},
		},
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err != nil && apierrors.IsInvalid(err), fmt.Sprintf("slices can be written: %v", err)
}

// unblock lets slices be written.
func (w *world) unblock(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	err := w.Client().AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(ctx, noSlices, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// createLong creates a pod that requests the resource with the long name.
func (w *world) createLong(ctx context.Context) (name string, err error) {
	w.named++
	name = fmt.Sprintf("pod-%d", w.named)
	pod := node.Pod(name, longName, 1, "sleep")
	limits := pod.Spec.Containers[0].Resources
	shape{containers: []way{{name: 1}}}.shapes(pod)
	pod.Spec.Containers[0].Resources = limits
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	_, err = w.Client().CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	return name, err
}

// longRuns looks whether a pod runs that requests the resource with the long name.
func (w *world) longRuns(ctx context.Context) {
	name, err := w.createLong(ctx)
	if err == nil {
		err = w.scheduled(ctx, settleLimit, func() (bool, string) {
			p, err := w.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			return ready(p), lament(p)
		})
	}
	if err != nil {
		w.say(stuck, err.Error())
		w.explain(ctx)
	}
	w.clear(ctx)
}
