package dra

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/loops"
)

const (
	firstRead, lastRead = 200 * time.Millisecond, time.Minute // pauses between attempts to read a pod's claims
	readLimit           = 5 * time.Second
	lookPause, lastLook = 100 * time.Millisecond, 5 * time.Second // between looks at all pods, for the devices or files that they wait for
	lookShare           = 10                                      // of a look's own time, such a pause
	maxMistake          = 512
)

// A Sink receives the pods of this node. Its methods are quick and never block.
type Sink interface {
	Bind(device.PodDemand)
	Drop(device.PodUID)
	Replace([]device.PodDemand)
}

// Inventory is the devices of this node.
type Inventory interface {
	// Devices returns the devices of one resource in natural order; false: there is no such resource.
	Devices(device.ResourceName) ([]device.DeviceStatus, bool)
	// Updated returns a channel that is closed when they have changed since the call.
	Updated() <-chan struct{}
}

// Plugins are what the device plugins list. They have it before the Inventory does.
type Plugins interface {
	Offers() map[device.ResourceName]device.Offer
	// Revision returns a number above zero, and a higher one once Offers may have changed.
	Revision() uint64
}

// ClaimsConfig is what NewClaims needs.
type ClaimsConfig struct {
	NodeName  string
	Client    rest.Interface // resource.k8s.io/v1
	Sink      Sink
	Inventory Inventory
	Plugins   Plugins
	// Pool returns the name of the pool that has a device.
	Pool func(device.ResourceName, device.ID) string
	// NeedsClaim reports whether a pod that was created at that time may have devices of a resource with a claim only; false: that is not
	// known yet. NodeChanged has a token when the answer may have changed.
	NeedsClaim  func(r device.ResourceName, created time.Time) (needs, known bool)
	NodeChanged <-chan struct{}
	Log         *slog.Logger
}

// Claims find the devices that pods' claims name. They stand between the pods of the API server and the allocator: a pod whose claims have
// not been read yet is bound with a demand that waits for them (Allocating, or ClaimUnknown if they cannot be read).
type Claims struct {
	ClaimsConfig
	kick  chan struct{} // has a token when a claim may have to be read
	again chan struct{} // has a token when a pod waits that the last look at all pods may have missed
	index index

	mu      locks.Mutex[locks.Claims] // guards what follows; held while the Sink is called, never across I/O or while the index is used
	pods    map[device.PodUID]*claimingPod
	changed chan struct{}     // closed when pods has changed
	uses    int               // of devices by containers of all pods
	usesOf  map[string]int    // likewise, of a namespace's pods
	turns   uint64            // of namespaces
	last    map[string]uint64 // each namespace's last turn since no pod was due
}

// A claimingPod is a pod of this node and what is known of its claims.
type claimingPod struct {
	demand   device.PodDemand                       // as the API server has it
	claims   map[string]*claim                      // by name, those that have been read
	unread   []string                               // the names of the others; replaced, never edited
	users    map[string]map[string]device.Container // the first container that uses a request of a claim, by the claim's name and the request
	problem  string                                 // why the rest has not
	tries    loops.Backoff                          // of reading them
	due      time.Time                              // when to read next
	resolved device.PodDemand                       // as the Sink has it
	waits    bool                                   // a device is not known yet, or the Node decides, or there is no room
	uses     int                                    // of devices by containers
}

// A claim is what a ResourceClaim says of devices of this driver. All pods of its namespace that have read the same keep one.
type claim struct {
	uid      device.ClaimUID
	results  []result
	devices  []device.Key // of the results; without a resource until it is listed, and then the same. Claims.mu guards them
	podClaim string       // as the pod's specification names it, if a template has made it; empty otherwise
	implicit bool         // kube-scheduler has made it for a container's requests
	// reserved are the pods for which the claim is reserved, and groups the names of the PodGroups. Pods do not keep them.
	reserved []device.PodUID
	groups   []string
}

// isFor reports whether the claim is reserved for a pod of its namespace. A pod knows only the name of its PodGroup, so that is compared, as
// the kubelet and the scheduler do (resourceclaim.IsReservedForPod).
func (c claim) isFor(d device.PodDemand) bool {
	return slices.Contains(c.reserved, d.Pod.UID) || d.Group != "" && slices.Contains(c.groups, d.Group)
}

// same reports whether a claim has been read with the same results.
func (c claim) same(now claim) bool {
	return c.uid == now.uid && c.podClaim == now.podClaim && c.implicit == now.implicit && slices.Equal(c.results, now.results)
}

// lists takes the devices of the results that have not been listed before.
func (c *claim) lists(devices []device.Key) {
	for i, d := range devices {
		if c.devices[i].Resource == "" {
			c.devices[i] = d
		}
	}
}

// unlisted reports whether the device of a result has not been listed yet.
func (c *claim) unlisted() bool {
	return slices.ContainsFunc(c.devices, func(d device.Key) bool { return d.Resource == "" })
}

// has reports whether the scheduler has chosen devices of this driver for a request of the claim; an empty request means any.
func (c claim) has(request string) bool {
	return slices.ContainsFunc(c.results, func(r result) bool { return r.of(request) })
}

// user returns one of a pod's containers by the requests that they use which has devices of the claim. A pod may name any requests.
func (c claim) user(by map[string]device.Container) (one device.Container, uses bool) {
	for _, r := range c.results {
		for _, request := range []string{"", r.base(), r.request} {
			if one, uses = by[request]; uses {
				return one, true
			}
		}
	}
	return one, false
}

// requests returns the requests for which the scheduler has chosen devices of this driver.
func (c claim) requests() (all []device.ClaimRequest) {
	for _, r := range c.results {
		if of := (device.ClaimRequest{Claim: c.uid, Request: r.base()}); !slices.Contains(all, of) {
			all = append(all, of)
		}
	}
	return all
}

// A result is a device that the scheduler has chosen.
type result struct {
	request, pool, device string
	admin                 bool
}

// of reports whether a result is for a request of a claim, or for one of its alternatives (REQUEST/ALTERNATIVE). An empty request
// means all.
func (r result) of(request string) bool {
	return request == "" || r.request == request || strings.HasPrefix(r.request, request+"/")
}

// base returns the name of the request, without that of the alternative.
func (r result) base() string {
	name, _, _ := strings.Cut(r.request, "/")
	return name
}

// NewClaims returns Claims. Run makes them read.
func NewClaims(c ClaimsConfig) *Claims {
	return &Claims{
		ClaimsConfig: c, kick: make(chan struct{}, 1), again: make(chan struct{}, 1), pods: map[device.PodUID]*claimingPod{}, changed: make(chan struct{}),
		index: index{node: c.NodeName, plugins: c.Plugins, pool: c.Pool}, usesOf: map[string]int{}, last: map[string]uint64{},
	}
}

// Bind is part of Sink, as are Drop and Replace.
func (c *Claims) Bind(d device.PodDemand) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pods[d.Pod.UID]
	if p == nil {
		p = newClaimingPod()
		c.pods[d.Pod.UID] = p
	}
	p.take(d)
	c.resolveLocked(p)
	c.Sink.Bind(p.resolved)
	c.changedLocked()
}

func (c *Claims) Drop(uid device.PodUID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pods[uid]; p != nil {
		c.countLocked(p, 0)
		delete(c.pods, uid)
	}
	c.Sink.Drop(uid)
	c.changedLocked()
}

func (c *Claims) Replace(all []device.PodDemand) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.pods
	c.uses, c.usesOf = 0, map[string]int{}
	c.pods = make(map[device.PodUID]*claimingPod, len(all))
	resolved := make([]device.PodDemand, 0, len(all))
	for _, d := range all {
		p := before[d.Pod.UID]
		if p == nil {
			p = newClaimingPod()
		}
		p.uses = 0
		c.pods[d.Pod.UID] = p
		p.take(d)
		c.resolveLocked(p)
		resolved = append(resolved, p.resolved)
	}
	c.Sink.Replace(resolved)
	c.changedLocked()
}

// Changed returns a channel that is closed when more is known of a claim, or a pod is new or gone.
func (c *Claims) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

func newClaimingPod() *claimingPod {
	return &claimingPod{claims: map[string]*claim{}, tries: loops.Backoff{First: firstRead, Last: lastRead}}
}

func (c *Claims) changedLocked() {
	close(c.changed)
	c.changed = make(chan struct{})
	loops.Signal(c.kick)
}

// Run reads the claims of pods, and follows their devices, until ctx ends, which is not an error.
func (c *Claims) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { c.readInTurn(ctx); return nil })
	group.Go(func() error { c.follow(ctx); return nil })
	return group.Wait()
}

// readInTurn reads the claims of one pod after the other.
func (c *Claims) readInTurn(ctx context.Context) {
	for ctx.Err() == nil {
		pod, names, next := c.turn(time.Now())
		if len(names) > 0 {
			c.readPod(ctx, pod, names)
			continue
		}
		c.index.drop() // it may be large
		due := loops.At(next)
		select {
		case <-ctx.Done():
		case <-c.kick:
		case <-due:
		}
	}
}

// turn returns the pod whose claims are read next, and their names, or when to come again; zero: when a pod is bound. Namespaces take turns, so that a
// tenant with many pods delays another one by one read. In a namespace new pods come first, and then those that have been due for longest.
func (c *Claims) turn(now time.Time) (pod device.PodDemand, names []string, next time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var first *claimingPod
	for _, p := range c.pods {
		switch {
		case len(p.unread) == 0:
		case p.due.After(now):
			next = loops.Earliest(next, p.due)
		case first == nil || c.compareLocked(p, first) < 0:
			first = p
		}
	}
	if first == nil {
		clear(c.last)
		return device.PodDemand{}, nil, next
	}
	c.turns++
	c.last[first.demand.Pod.Namespace] = c.turns
	return first.demand, first.unread, time.Time{}
}

// compareLocked orders pods that are due.
func (c *Claims) compareLocked(a, b *claimingPod) int {
	of, than := a.demand.Pod.Namespace, b.demand.Pod.Namespace
	return cmp.Or(cmp.Compare(c.last[of], c.last[than]), cmp.Compare(of, than), a.due.Compare(b.due))
}

// readPod reads claims of a pod, and binds it again.
func (c *Claims) readPod(ctx context.Context, pod device.PodDemand, names []string) {
	got, err := c.readAll(ctx, pod, names)
	for name, one := range got {
		one.devices = c.index.find(one.results)
		got[name] = one
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pods[pod.Pod.UID]
	if p == nil {
		return
	}
	p.problem = ""
	if err != nil {
		p.problem, p.due = err.Error(), time.Now().Add(p.tries.Next())
	}
	kept := map[string]*claim{}
	for name, one := range got {
		kept[name] = c.keptLocked(pod.Pod.Namespace, name, one)
	}
	c.learnLocked(p, kept)
}

// keptLocked returns a claim that has been read as pods keep it.
func (c *Claims) keptLocked(namespace, name string, now claim) *claim {
	for _, p := range c.pods {
		if kept := p.claims[name]; kept != nil && p.demand.Pod.Namespace == namespace && kept.same(now) {
			kept.lists(now.devices)
			return kept
		}
	}
	now.reserved, now.groups = nil, nil
	return &now
}

// learnLocked has a pod keep claims, and binds it again. The lists may have changed since their devices were looked for.
func (c *Claims) learnLocked(p *claimingPod, kept map[string]*claim) {
	p.learn(kept)
	c.rebindLocked(p)
	if p.waits {
		loops.Signal(c.again)
	}
}

// follow looks again for devices that pods wait for.
func (c *Claims) follow(ctx context.Context) {
	for ctx.Err() == nil {
		updated := c.Inventory.Updated() // before anything is looked up
		began := time.Now()
		c.look()
		pause := afterLook(began)
		select {
		case <-ctx.Done():
		case <-updated:
		case <-c.again:
		case <-c.NodeChanged:
		}
		select {
		case <-ctx.Done():
		case <-pause:
		}
	}
}

// afterLook returns a channel that delivers when the pause after a look at all pods is over.
func afterLook(began time.Time) <-chan time.Time {
	return time.After(min(max(lookPause, lookShare*time.Since(began)), lastLook))
}

// look looks for the devices of each pod that waits. The lock is free between two pods: the watch of the pods, and with it the runtime's requests, wait
// for it.
func (c *Claims) look() {
	c.mu.Lock()
	var waiting []device.PodUID
	unlisted := map[*claim][]device.Key{}
	for uid, p := range c.pods {
		if !p.waits {
			continue
		}
		waiting = append(waiting, uid)
		for _, one := range p.claims {
			if one.unlisted() {
				unlisted[one] = nil
			}
		}
	}
	c.mu.Unlock()
	for one := range unlisted {
		unlisted[one] = c.index.find(one.results)
	}
	c.index.drop()
	c.mu.Lock()
	for one, devices := range unlisted {
		one.lists(devices)
	}
	c.mu.Unlock()
	for _, uid := range waiting {
		c.mu.Lock()
		if p := c.pods[uid]; p != nil && p.waits {
			c.rebindLocked(p)
		}
		c.mu.Unlock()
	}
}

// rebindLocked binds a pod again if more is known of its claims.
func (c *Claims) rebindLocked(p *claimingPod) {
	before := p.resolved
	c.resolveLocked(p)
	if !before.Equal(p.resolved) {
		c.Sink.Bind(p.resolved)
		close(c.changed)
		c.changed = make(chan struct{})
	}
}

// take takes a pod's demand.
func (p *claimingPod) take(d device.PodDemand) {
	p.demand, p.unread, p.users = d, nil, map[string]map[string]device.Container{}
	seen := map[string]bool{"": true} // it has not been made yet
	for _, of := range d.Demands {
		for _, use := range of.Claims {
			if _, read := p.claims[use.Claim]; !read && !seen[use.Claim] {
				p.unread = append(p.unread, use.Claim)
			}
			seen[use.Claim] = true
			if p.users[use.Claim] == nil {
				p.users[use.Claim] = map[string]device.Container{}
			}
			if _, used := p.users[use.Claim][use.Request]; !used {
				p.users[use.Claim][use.Request] = of.Container
			}
		}
	}
}

// learn takes claims that have been read.
func (p *claimingPod) learn(kept map[string]*claim) {
	maps.Copy(p.claims, kept)
	p.unread = slices.DeleteFunc(slices.Clone(p.unread), func(name string) bool { _, read := p.claims[name]; return read })
}

// readAll reads a pod's claims until one cannot be used, and returns those before it and why: a pod that was bound past the scheduler may
// name thousands that do not exist.
func (c *Claims) readAll(ctx context.Context, pod device.PodDemand, names []string) (all map[string]claim, err error) {
	all = map[string]claim{}
	for _, name := range names {
		got, err := c.read(ctx, pod.Pod.Namespace, name)
		if err == nil && !got.isFor(pod) {
			err = fmt.Errorf("reading ResourceClaim %s/%s: %w", pod.Pod.Namespace, name, errNotReserved)
		}
		if err != nil {
			return all, err
		}
		all[name] = got
	}
	return all, nil
}

var (
	errNotAllocated = errors.New("it is not allocated") // the scheduler has not chosen devices, or not any longer
	errNotReserved  = errors.New("it is not reserved for the pod")
)

// read reads one claim.
func (c *Claims) read(ctx context.Context, namespace, name string) (claim, error) {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	object := &resourceapi.ResourceClaim{}
	err := c.Client.Get().Namespace(namespace).Resource("resourceclaims").Name(name).Do(ctx).Into(object)
	switch {
	case apierrors.IsNotFound(err):
		err = errors.New("it does not exist")
	case err == nil && object.Status.Allocation == nil:
		err = errNotAllocated
	}
	if err != nil {
		return claim{}, fmt.Errorf("reading ResourceClaim %s/%s: %w", namespace, name, err)
	}
	got := claim{uid: device.ClaimUID(object.UID), implicit: object.Annotations[resourceapi.ExtendedResourceClaimAnnotation] == "true"}
	if by := object.Annotations[resourceapi.PodResourceClaimAnnotation]; isLabel(by) { // as in a pod's specification; the author of the claim may write any text
		got.podClaim = by
	}
	for _, r := range object.Status.Allocation.Devices.Results {
		if r.Driver == Driver {
			got.results = append(got.results, result{r.Request, r.Pool, r.Device, r.AdminAccess != nil && *r.AdminAccess})
		}
	}
	for _, by := range object.Status.ReservedFor {
		switch {
		case by.APIGroup == "" && by.Resource == "pods":
			got.reserved = append(got.reserved, device.PodUID(by.UID))
		case by.APIGroup == "scheduling.k8s.io" && by.Resource == "podgroups":
			got.groups = append(got.groups, by.Name)
		}
	}
	return got, nil
}

// renew takes a claim that the kubelet's request has had read: a pod that waits for its turn has it at once, and one that had it has the new one if it has
// been created again or its devices have been chosen again.
func (c *Claims) renew(namespace, name string, now claim) {
	c.mu.Lock()
	needed := len(c.lackingLocked(namespace, name, now)) > 0
	c.mu.Unlock()
	if !needed {
		return
	}
	now.devices = c.index.find(now.results)
	c.index.drop()
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := map[string]*claim{name: c.keptLocked(namespace, name, now)}
	for _, p := range c.lackingLocked(namespace, name, now) {
		c.learnLocked(p, kept)
	}
}

// lackingLocked returns the pods for which a claim is reserved and that have not read it, or have read another one or other results.
func (c *Claims) lackingLocked(namespace, name string, now claim) (all []*claimingPod) {
	for _, p := range c.pods {
		if p.demand.Pod.Namespace != namespace || !now.isFor(p.demand) {
			continue
		}
		if before := p.claims[name]; before == nil && slices.Contains(p.unread, name) || before != nil && !before.same(now) {
			all = append(all, p)
		}
	}
	return all
}

// devices returns the devices of a claim in its order, as its pods have them. Those that no plugin has listed have no resource.
func (c *Claims) devices(namespace, name string, of claim) []device.DeviceStatus {
	all := make([]device.DeviceStatus, len(of.results))
	c.mu.Lock()
	for _, p := range c.pods {
		if kept := p.claims[name]; kept != nil && p.demand.Pod.Namespace == namespace && kept.same(of) {
			for i, d := range kept.devices {
				all[i].Resource, all[i].ID = d.Resource, d.ID
			}
			break
		}
	}
	c.mu.Unlock()
	offers := c.Plugins.Offers()
	for i, d := range all {
		list := offers[d.Resource].Inventory.Devices
		if at, listed := slices.BinarySearchFunc(list, d.ID, func(d device.Device, id device.ID) int { return device.CompareIDs(d.ID, id) }); listed {
			all[i].Device = list[at]
		}
	}
	return all
}

// known returns the claims that pods keep, with their namespaces and names, each reserved for these pods.
func (c *Claims) known() map[device.ClaimUID]namedClaim {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[device.ClaimUID]namedClaim{}
	for uid, p := range c.pods {
		for name, kept := range p.claims {
			if len(kept.results) == 0 {
				continue
			}
			one, there := all[kept.uid]
			if !there {
				one = namedClaim{*kept, p.demand.Pod.Namespace, name}
			}
			one.reserved = append(one.reserved, uid)
			all[kept.uid] = one
		}
	}
	return all
}

// A namedClaim is a claim with its namespace and name.
type namedClaim struct {
	claim
	namespace, name string
}

// users returns a container of each of this node's pods that use devices of a claim. unused is a pod for which the claim is reserved and of which no
// container does, as far as devmgrd knows; empty: there is none. It is asked at each change, by each claim that waits.
func (c *Claims) users(namespace, name string, of claim) (users []device.Container, unused device.Pod, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pods {
		if p.demand.Pod.Namespace != namespace || !of.isFor(p.demand) {
			continue
		}
		if by, uses := of.user(p.users[name]); uses {
			users = append(users, by)
		} else {
			unused = p.demand.Pod
		}
	}
	return users, unused, c.changed
}

// containers returns the containers of this node's pods that use devices of a claim.
func (c *Claims) containers(namespace, name string, of claim) (all []device.Container) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pods {
		if p.demand.Pod.Namespace != namespace || p.users[name] == nil || !of.isFor(p.demand) {
			continue
		}
		for _, d := range p.demand.Demands {
			if slices.ContainsFunc(d.Claims, func(use device.ClaimUse) bool { return use.Claim == name && of.has(use.Request) }) {
				all = append(all, d.Container)
			}
		}
	}
	return all
}
