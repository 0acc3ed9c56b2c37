// Package locks has the order in which a goroutine takes locks: each of devmgrd's mutexes has a place, and a goroutine that holds one takes only locks whose places
// come later. With the race detector, as in the unit tests and the main job's devmgrd, each Lock is checked, and a wrong one panics with both places. Without it, a Mutex is a sync.Mutex.
// It is a base package.
//
//	locks.go   the places, in order
//	mutex.go   without the race detector
//	check.go   with it; goroutine_*.s tell it who takes a lock
package locks

// A place is a lock's position in the order. All locks with one place are equal: a goroutine holds one of them at a time.
type place interface{ place() int }

// The places, in the order in which locks are taken. The comments say what is called with the lock held.
type (
	RuntimeReports  struct{} // of nri's connection: its reports to the allocator, the registry, the notifier and cdi.Files
	HistoryRecorder struct{} // history.Recorder.mu: it looks at the allocator
	Index           struct{} // dra.index.mu: devices' names are computed; never taken with a pod's lock held
	PodsStore       struct{} // pods.store.mu: the Sink
	Claims          struct{} // dra.Claims.mu: the Sink
	CommitPods      struct{} // allocator.commitMu: the Store
	Offers          struct{} // allocator.offersMu: it takes over offers
	CommitPlugins   struct{} // registry.saver.commitMu: the Store
	PluginDirectory struct{} // registry.making: a directory is made
	Allocator       struct{} // allocator.mu
	Registry        struct{} // registry.mu
	Publisher       struct{} // nodestatus.Publisher.mu
	CDIFiles        struct{} // cdi.Files.writing: files are written
	HistoryFile     struct{} // store.History.guard: the file is used
	StateFile       struct{} // store.file.writing: a commit is made
	Proofs          struct{} // reclaim.Gate.mu: what the runtime shows of a pod's networks
	// Leaf is the place of each lock under which no other is taken.
	Leaf struct{}
)

func (RuntimeReports) place() int  { return 1 }
func (HistoryRecorder) place() int { return 2 }
func (Index) place() int           { return 3 }
func (PodsStore) place() int       { return 4 }
func (Claims) place() int          { return 5 }
func (CommitPods) place() int      { return 6 }
func (Offers) place() int          { return 7 }
func (CommitPlugins) place() int   { return 8 }
func (PluginDirectory) place() int { return 9 }
func (Allocator) place() int       { return 10 }
func (Registry) place() int        { return 11 }
func (Publisher) place() int       { return 12 }
func (CDIFiles) place() int        { return 13 }
func (HistoryFile) place() int     { return 14 }
func (StateFile) place() int       { return 15 }
func (Proofs) place() int          { return 16 }
func (Leaf) place() int            { return 17 }
