package cdi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/devmgrd/devmgrd/internal/cri"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// Allocator knows which containers have which devices.
type Allocator interface {
	Readiness(device.Container) device.Readiness
	Snapshot() *device.Snapshot
	ChangesSince(revision uint64, most int) ([]device.Change, bool)
	// Updated returns a channel that is closed when any of these has changed since the call.
	Updated() <-chan struct{}
}

// Grants know what a container gets.
type Grants interface {
	// Grants returns what a container gets by each request of a claim, or why it needs devmgrd for that. An error of ctx says nothing of the container.
	Grants(context.Context, device.Readiness) (map[device.ClaimRequest]Grant, error)
}

// Config is what New needs.
type Config struct {
	Dir       string // one of the directories in which the runtime looks for CDI specifications; on a file system in memory
	Boot      string // identifies the boot of the machine
	Allocator Allocator
	Grants    Grants
	// Runtime asks the runtime with this PID for its configuration. found is false if it cannot be asked; an error: not now.
	Runtime func(ctx context.Context, pid int32) (got cri.CDI, found bool, err error)
	Log     *slog.Logger
}

// grantTime bounds the look at the host for one container.
const grantTime = 2 * time.Second

// Files are the CDI files of claims. A file is there from the kubelet's request to prepare its claim until the kubelet does not need that any longer and
// no pod has the devices.
type Files struct {
	Config
	kick chan struct{}

	writing locks.Mutex[locks.CDIFiles] // held while files are written; taken before mu

	mu        locks.Mutex[locks.Leaf] // guards what follows; never held across I/O
	hook      Hook
	all       map[device.ClaimRequest]*File
	prepared  map[device.ClaimUID]bool                   // by the kubelet, as far as devmgrd knows
	users     map[device.ClaimUID]map[device.PodUID]bool // the pods that have devices of a claim
	outdated  map[device.Container]bool                  // what they get may have changed
	used      map[device.ClaimRequest]bool               // files that are written again, so that the runtime reads them again
	stale     bool                                       // the guards are as of another Hook
	unwritten map[device.ClaimRequest]error              // files that could not be written
	runtime   *runtime                                   // replaced, never nil
}

// New returns Files with those of this boot that are in the directory, and removes those of others.
func New(c Config) *Files {
	f := &Files{
		Config: c, kick: make(chan struct{}, 1), runtime: newRuntime(Away, 0), all: map[device.ClaimRequest]*File{}, prepared: map[device.ClaimUID]bool{},
		users: map[device.ClaimUID]map[device.PodUID]bool{}, outdated: map[device.Container]bool{}, used: map[device.ClaimRequest]bool{},
		unwritten: map[device.ClaimRequest]error{},
	}
	f.load()
	return f
}

// SetHook says whether the hook sees the containers that the runtime creates, and which process the runtime is; 0: not known. The guards are written
// again if the first has changed.
func (f *Files) SetHook(now Hook, runtime int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.runtime.left)
	f.runtime = newRuntime(now, runtime)
	if f.hook != now {
		f.hook, f.stale = now, true
		loops.Signal(f.kick)
	}
}

// load reads the files in the directory. Guards are written again: the hook does not see containers yet.
func (f *Files) load() {
	entries, err := os.ReadDir(f.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.Log.Error("cannot read the CDI files of claims", "dir", f.Dir, "err", err)
	}
	for _, e := range entries {
		path := filepath.Join(f.Dir, e.Name())
		of, ours := requestOf(e.Name())
		if !ours {
			if as, metadata := metadataOf(e.Name()); isDraft(e.Name()) || metadata && f.all[as] == nil { // the file with its request would have been read before
				os.Remove(path)
			}
			continue
		}
		var one *File
		read, err := cdi.ReadSpec(path, 0)
		if err == nil {
			one, err = fileOf(of, read.Spec, f.Boot)
		}
		if err == nil && one.Metadata.Path != "" {
			one.Metadata.Text, err = os.ReadFile(filepath.Join(f.Dir, metadataName(of)))
		}
		if err != nil {
			f.Log.Warn("removing CDI file of a claim", "path", path, "err", err)
			if err := os.Remove(path); err != nil {
				f.Log.Error("cannot remove CDI file of a claim", "path", path, "err", err)
			}
			continue
		}
		f.all[of], f.prepared[of.Claim] = one, true
		if one.Guard {
			_ = f.put(one) // or later
		}
	}
}

// Check returns nil while all files are written and the runtime reads them, as far as it is known, and otherwise the reason why not.
func (f *Files) Check() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, err := range f.unwritten {
		return err
	}
	fault, _ := f.runtime.verdict()
	return fault
}

// File returns what the file of a request says.
func (f *Files) File(of device.ClaimRequest) (File, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if one := f.all[of]; one != nil {
		return *one, true
	}
	return File{}, false
}

// Devices returns the devices of CDI devices, by the files.
func (f *Files) Devices(names []string) map[device.ResourceName][]device.ID {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := map[device.ResourceName][]device.ID{}
	for _, name := range names {
		of, _ := Request(name)
		if one := f.all[of]; one != nil {
			for r, ids := range one.devices {
				all[r] = append(all[r], ids...)
			}
		}
	}
	for r, ids := range all {
		slices.SortFunc(ids, device.CompareIDs)
		all[r] = slices.Compact(ids)
	}
	return all
}

// Outdated has a container's files compared with what it gets now.
func (f *Files) Outdated(c device.Container) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.outdated[c] = true
	loops.Signal(f.kick)
}

// Used has files written again whose device nodes the runtime remembers.
func (f *Files) Used(all ...device.ClaimRequest) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, of := range all {
		f.used[of] = true
	}
	loops.Signal(f.kick)
}

// A Claim is a claim that the kubelet asks to prepare.
type Claim struct {
	UID     device.ClaimUID
	Devices []Device           // in the order of the claim
	Users   []device.Container // of pods of this node that may have their devices
	// Metadata are what the containers of a request read of its devices, by the request.
	Metadata map[string]Metadata
	// Untold: the kubelet is not told what Prepare returns. It prepared the claim earlier.
	Untold bool
}

// A Device is one that the scheduler has chosen for a claim.
type Device struct {
	Request  string // without the name of an alternative
	Name     string // in the ResourceSlice
	Resource device.ResourceName
	ID       device.ID
}

// Prepare writes the files of a claim, and returns the CDI devices for each of its devices. It returns when the files are there.
func (f *Files) Prepare(ctx context.Context, c Claim) ([][]string, error) {
	want, err := f.plan(ctx, c)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.prepared[c.UID] = true
	f.mu.Unlock()
	f.writing.Lock()
	defer f.writing.Unlock()
	for _, one := range want {
		if err := f.replace(one); err != nil {
			return nil, err
		}
	}
	return f.answer(c), nil
}

// plan returns the files of a claim as they should be.
func (f *Files) plan(ctx context.Context, c Claim) (map[device.ClaimRequest]*File, error) {
	want := map[device.ClaimRequest]*File{}
	first := map[device.ResourceName]*File{}
	for _, d := range c.Devices {
		of := device.ClaimRequest{Claim: c.UID, Request: d.Request}
		if err := checkName(of); err != nil {
			return nil, err
		}
		one := want[of]
		if one == nil {
			one = &File{Request: of, Metadata: c.Metadata[d.Request], devices: map[device.ResourceName][]device.ID{}}
			want[of] = one
		}
		if !slices.Contains(one.names, d.Name) { // devices of two resources may have one name
			one.names = append(one.names, d.Name)
		}
		if d.Resource == "" {
			continue
		}
		one.devices[d.Resource] = append(one.devices[d.Resource], d.ID)
		// A plugin is asked for all devices of its resource that a container has. Some container may use both requests, also one of a later pod.
		if other := first[d.Resource]; other != nil && other != one {
			one.Guard, other.Guard = true, true
		}
		first[d.Resource] = one
	}
	used := map[device.ClaimRequest]bool{}
	for _, container := range c.Users {
		st := f.use(container, c.UID)
		if st.State != device.Ready {
			continue
		}
		got, err := f.grants(ctx, container, st)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		for _, of := range st.Demand.ClaimRequests() {
			one := want[of]
			switch {
			case one == nil:
			case err != nil:
				one.Guard = true
			case !used[of]:
				one.Grant = got[of]
			case !one.Grant.Equal(got[of]):
				one.Guard = true
			}
			used[of] = true
		}
	}
	for of, one := range want {
		one.Guard = one.Guard || !used[of] || c.Untold && len(one.Grant.Names) > 0 || !f.readable(one)
		if one.Guard {
			one.Grant = Grant{}
		}
	}
	return want, nil
}

// answer returns the CDI devices of a claim's devices, which are in the files. Those that the plugin names stand with the first device of a request.
func (f *Files) answer(c Claim) (all [][]string) {
	told := map[device.ClaimRequest]bool{}
	for _, d := range c.Devices {
		of := device.ClaimRequest{Claim: c.UID, Request: d.Request}
		names := []string{DeviceName(of, d.Name)}
		if one, _ := f.File(of); !told[of] {
			names = append(names, one.Grant.Names...)
		}
		told[of] = true
		all = append(all, names)
	}
	return all
}

// replace writes a file, unless it is there. One that says something else becomes a guard.
func (f *Files) replace(next *File) error {
	if before, there := f.File(next.Request); there {
		if slices.Equal(before.names, next.names) && (before.Guard || !next.Guard && before.Grant.Equal(next.Grant)) {
			next = &before
			if f.written(next) {
				return nil
			}
		} else {
			next.Guard, next.Grant = true, Grant{Names: before.Grant.Names}
		}
	}
	return f.put(next)
}

// grants asks what a container gets.
func (f *Files) grants(ctx context.Context, c device.Container, st device.Readiness) (map[device.ClaimRequest]Grant, error) {
	ctx, cancel := context.WithTimeout(ctx, grantTime)
	defer cancel()
	got, err := f.Grants.Grants(ctx, st)
	if err != nil {
		f.Log.Debug("container needs devmgrd for its devices", "uid", c.Pod, "container", c.Name, "why", err)
	}
	return got, err
}

// use records that a container's pod has devices of claims, and returns the container's readiness. The pod is recorded first: one that ends
// meanwhile is forgotten afterwards, or is not known any longer.
func (f *Files) use(c device.Container, claims ...device.ClaimUID) device.Readiness {
	f.mu.Lock()
	for _, claim := range claims {
		lists.Inner(f.users, claim)[c.Pod] = true
	}
	f.mu.Unlock()
	st := f.Allocator.Readiness(c)
	if st.State == device.Unknown {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, claim := range claims {
			f.unuseLocked(claim, c.Pod)
		}
	}
	return st
}

// unuseLocked forgets that a pod has devices of a claim.
func (f *Files) unuseLocked(claim device.ClaimUID, pod device.PodUID) {
	delete(f.users[claim], pod)
	if len(f.users[claim]) == 0 {
		delete(f.users, claim)
	}
}

// Missing reports whether the file of one of these requests is not there. The kubelet may have prepared its claim.
func (f *Files) Missing(all []device.ClaimRequest) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(all, func(of device.ClaimRequest) bool { return f.all[of] == nil })
}

// Unprepared reports that the kubelet does not need a claim any longer. Its files stay until the devices are free.
func (f *Files) Unprepared(claim device.ClaimUID) {
	f.mu.Lock()
	delete(f.prepared, claim)
	f.mu.Unlock()
	f.remove(claim)
}

// gone forgets a pod, and removes the files of claims that neither the kubelet nor another pod needs.
func (f *Files) gone(pod device.PodUID) {
	var left []device.ClaimUID
	f.mu.Lock()
	for claim, users := range f.users {
		if users[pod] {
			f.unuseLocked(claim, pod)
			left = append(left, claim)
		}
	}
	f.mu.Unlock()
	for _, claim := range left {
		f.remove(claim)
	}
}

// sorted returns the requests of files that match.
func (f *Files) sorted(match func(device.ClaimRequest) bool) (all []device.ClaimRequest) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for of := range f.all {
		if match(of) {
			all = append(all, of)
		}
	}
	slices.SortFunc(all, device.ClaimRequest.Compare)
	return all
}

// remove removes the files of a claim, if nothing needs them.
func (f *Files) remove(claim device.ClaimUID) {
	f.writing.Lock()
	defer f.writing.Unlock()
	f.mu.Lock()
	needed := f.prepared[claim] || len(f.users[claim]) > 0
	f.mu.Unlock()
	if needed {
		return
	}
	for _, of := range f.sorted(func(of device.ClaimRequest) bool { return of.Claim == claim }) {
		if err := f.erase(of); err != nil {
			f.Log.Warn("cannot remove CDI file of a claim", "claim_uid", of.Claim, "request", of.Request, "err", err)
			continue
		}
		f.mu.Lock()
		delete(f.all, of)
		delete(f.unwritten, of)
		f.mu.Unlock()
	}
}

// compare compares the files of a container with what it gets now. A file that says something else becomes a guard.
func (f *Files) compare(ctx context.Context, c device.Container) {
	requests := f.Allocator.Readiness(c).Demand.ClaimRequests()
	if len(requests) == 0 {
		return
	}
	st := f.use(c, lists.Map(requests, func(of device.ClaimRequest) device.ClaimUID { return of.Claim })...)
	if st.State != device.Ready {
		return
	}
	got, err := f.grants(ctx, c, st)
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return // the hook asks again
	}
	f.writing.Lock()
	defer f.writing.Unlock()
	for _, of := range requests {
		before, there := f.File(of)
		if !there || before.Guard || err == nil && before.Grant.Equal(got[of]) {
			continue
		}
		why := "a container gets something else now"
		if err != nil {
			why = err.Error()
		}
		f.Log.Info("containers of a claim need devmgrd from now on", "claim_uid", of.Claim, "request", of.Request, "uid", c.Pod, "container", c.Name, "why", why)
		before.Guard, before.Grant.Edits = true, Edits{}
		_ = f.put(&before)
	}
}

// refresh writes the used files again.
func (f *Files) refresh() {
	f.mu.Lock()
	all := slices.Collect(maps.Keys(f.used))
	clear(f.used)
	f.mu.Unlock()
	f.writing.Lock()
	defer f.writing.Unlock()
	for _, of := range all {
		if one, there := f.File(of); there {
			_ = f.put(&one)
		}
	}
}

// put writes a file. Where it replaces one, the hook follows it before the file is there: it refuses a container that is created with the former one.
// A file that cannot be written is tried again, unless it is new: then the caller does that.
func (f *Files) put(one *File) error {
	f.mu.Lock()
	before := f.all[one.Request]
	f.all[one.Request] = one
	f.mu.Unlock()
	err := f.write(one)
	if err != nil {
		err = fmt.Errorf("CDI file of a claim in %s (dra.cdiDir): %w", f.Dir, err)
		f.Log.Error("cannot write CDI file of a claim", "claim_uid", one.Request.Claim, "request", one.Request.Request, "err", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil:
		delete(f.unwritten, one.Request)
		return nil
	case before == nil:
		delete(f.all, one.Request)
	default:
		f.unwritten[one.Request] = err
		loops.Signal(f.kick)
	}
	return err
}
