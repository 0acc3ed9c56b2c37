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
	"sync"
	"sync/atomic"
	"time"

	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
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
	// Grants returns what a container gets by each request of a claim, or why it needs devmgrd for that.
	Grants(context.Context, device.Readiness) (map[device.ClaimRequest]Grant, error)
}

// Config is what New needs.
type Config struct {
	Dir       string // one of the directories in which the runtime looks for CDI specifications; on a file system in memory
	Boot      string // identifies the boot of the machine
	Allocator Allocator
	Grants    Grants
	Log       *slog.Logger
}

// grantTime bounds the look at the host for one container.
const grantTime = 2 * time.Second

// Files are the CDI files of claims.
type Files struct {
	Config
	pid  atomic.Int64 // by which the runtime knows this process; 0: it does not see it, as far as devmgrd knows
	lib  *cdi.Cache
	kick chan struct{}

	writing sync.Mutex // held while files are written; taken before mu

	mu        sync.Mutex // guards what follows; never held across I/O
	all       map[device.ClaimRequest]*File
	users     map[device.ClaimUID]map[device.PodUID]bool // the pods that have, or had, devices of a claim
	outdated  map[device.Container]bool                  // what they get may have changed
	stale     bool                                       // the guards name another process
	used      map[device.ClaimRequest]bool               // files that are written again, so that the runtime reads them again
	unwritten map[device.ClaimRequest]bool               // files that could not be written
	failure   error                                      // why; nil: all are
}

// New returns Files with those of this boot that are in the directory, and removes those of others.
func New(c Config) (*Files, error) {
	lib, err := cdi.NewCache(cdi.WithSpecDirs(c.Dir), cdi.WithAutoRefresh(false))
	if err != nil {
		return nil, err
	}
	f := &Files{Config: c, lib: lib, kick: make(chan struct{}, 1),
		all: map[device.ClaimRequest]*File{}, users: map[device.ClaimUID]map[device.PodUID]bool{}, outdated: map[device.Container]bool{}, unwritten: map[device.ClaimRequest]bool{}, used: map[device.ClaimRequest]bool{}}
	f.load()
	return f, nil
}

// RuntimeSees reports whether the runtime sees this process under its PID, and not if devmgrd runs in a container with PIDs of its own. The guards are
// written again if that has changed.
func (f *Files) RuntimeSees(same bool) {
	pid := int64(0)
	if same {
		pid = int64(os.Getpid())
	}
	if f.pid.Swap(pid) != pid {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.stale = true
		f.wake()
	}
}

// load reads the files in the directory, and writes the guards again, which name a former process.
func (f *Files) load() {
	entries, err := os.ReadDir(f.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.fail(err)
	}
	for _, e := range entries {
		of, ours := requestOf(e.Name())
		if !ours {
			continue
		}
		path := filepath.Join(f.Dir, e.Name())
		var one *File
		read, err := cdi.ReadSpec(path, 0)
		if err == nil {
			one, err = fileOf(of, read.Spec, f.Boot)
		}
		if err == nil && one.Guard {
			err = f.write(one)
		}
		if err != nil {
			f.Log.Warn("removing CDI file of a claim", "path", path, "err", err)
			if err := os.Remove(path); err != nil {
				f.fail(err)
			}
			continue
		}
		f.all[of] = one
	}
}

// Check returns nil while all files are written, and otherwise the reason why not.
func (f *Files) Check() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failure
}

func (f *Files) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failure = err
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
	f.wake()
}

// Used has files written again whose device nodes the runtime remembers.
func (f *Files) Used(all ...device.ClaimRequest) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, of := range all {
		f.used[of] = true
	}
	f.wake()
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
			if err := f.put(&one); err != nil {
				f.Log.Error("cannot write CDI file of a claim", "err", err)
			}
		}
	}
}

func (f *Files) wake() {
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

// A Claim is a claim that the kubelet asks to prepare.
type Claim struct {
	UID     device.ClaimUID
	Devices []Device           // in the order of the claim
	Users   []device.Container // of pods of this node that have their devices
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
	want := map[device.ClaimRequest]*File{}
	for _, d := range c.Devices {
		of := device.ClaimRequest{Claim: c.UID, Request: d.Request}
		if err := checkName(of); err != nil {
			return nil, err
		}
		one := want[of]
		if one == nil {
			one = &File{Request: of, devices: map[device.ResourceName][]device.ID{}}
			want[of] = one
		}
		one.names = append(one.names, d.Name)
		if d.Resource != "" {
			one.devices[d.Resource] = append(one.devices[d.Resource], d.ID)
		}
	}
	used := map[device.ClaimRequest]bool{}
	for _, container := range c.Users {
		st := f.use(container, c.UID)
		if st.State != device.Ready {
			continue
		}
		got, err := f.grants(ctx, container, st)
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
	f.writing.Lock()
	defer f.writing.Unlock()
	for of, one := range want {
		one.Guard = one.Guard || !used[of]
		if one.Guard {
			one.Grant = Grant{}
		}
		if err := f.replace(one); err != nil {
			return nil, err
		}
	}
	return f.answer(c), nil
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
		same := slices.Equal(before.names, next.names)
		switch {
		case same && (before.Guard || !next.Guard && before.Grant.Equal(next.Grant)):
			next = &before
			if _, err := os.Stat(filepath.Join(f.Dir, fileName(next.Request))); err == nil {
				return nil
			}
		default:
			next.Guard, next.Grant = true, Grant{Names: before.Grant.Names}
		}
	}
	return f.put(next)
}

// put writes a file. Where it replaces one, the hook follows it before the file is there: it refuses a container that is created with the former one.
func (f *Files) put(one *File) error {
	f.mu.Lock()
	before := f.all[one.Request]
	f.all[one.Request] = one
	f.mu.Unlock()
	err := f.write(one)
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil:
		delete(f.unwritten, one.Request)
	case before == nil:
		delete(f.all, one.Request) // the kubelet asks again
	default:
		f.unwritten[one.Request] = true
		f.wake()
	}
	f.failure = err
	return err
}

func (f *Files) write(one *File) error {
	s, err := one.spec(f.Boot, f.pid.Load())
	if err == nil {
		err = f.lib.WriteSpec(s, fileName(one.Request))
	}
	if err != nil {
		return fmt.Errorf("CDI file of a claim in %s (dra.cdiDir): %w", f.Dir, err)
	}
	return nil
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
		if f.users[claim] == nil {
			f.users[claim] = map[device.PodUID]bool{}
		}
		f.users[claim][c.Pod] = true
	}
	f.mu.Unlock()
	st := f.Allocator.Readiness(c)
	if st.State == device.Unknown {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, claim := range claims {
			delete(f.users[claim], c.Pod)
		}
	}
	return st
}

// Has reports whether the files of a claim are there.
func (f *Files) Has(claim device.ClaimUID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for of := range f.all {
		if of.Claim == claim {
			return true
		}
	}
	return false
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

// Unprepared reports that the kubelet does not need a claim any longer. Its files stay until the devices are free.
func (f *Files) Unprepared(claim device.ClaimUID) {
	f.mu.Lock()
	used := len(f.users[claim]) > 0
	f.mu.Unlock()
	if !used {
		f.remove(claim)
	}
}

// gone forgets a pod, and removes the files of claims that no other pod has.
func (f *Files) gone(pod device.PodUID) {
	var free []device.ClaimUID
	f.mu.Lock()
	for claim, users := range f.users {
		if users[pod] {
			if delete(users, pod); len(users) == 0 {
				free = append(free, claim)
			}
		}
	}
	f.mu.Unlock()
	for _, claim := range free {
		f.remove(claim)
	}
}

// remove removes the files of a claim.
func (f *Files) remove(claim device.ClaimUID) {
	f.writing.Lock()
	defer f.writing.Unlock()
	for _, of := range f.sorted(func(of device.ClaimRequest) bool { return of.Claim == claim }) {
		path := filepath.Join(f.Dir, fileName(of))
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			f.Log.Warn("cannot remove CDI file of a claim", "path", path, "err", err)
			continue
		}
		f.mu.Lock()
		delete(f.all, of)
		delete(f.unwritten, of)
		f.mu.Unlock()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.users[claim]) == 0 {
		delete(f.users, claim)
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
		if err := f.put(&before); err != nil {
			f.Log.Error("cannot write CDI file of a claim", "err", err)
		}
	}
}
