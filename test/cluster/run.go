package cluster

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/test/lockfile"
)

// A Run is one use of [Main]: a set of namespaces, and what had to be made outside of them.
type Run struct {
	ID      string    `json:"id"`
	Dir     string    `json:"dir"`     // the run's directory, below the cache; removed with the run
	Program string    `json:"program"` // who called Main
	Began   time.Time `json:"began"`

	Supervisor int    `json:"supervisor"` // the process that called Main, outside
	Init       int    `json:"init"`       // the first process inside, seen from outside; its namespaces are the run's
	InitStart  string `json:"initStart"`  // when the kernel started it: process IDs are used again

	// API is the address, outside, from which connections are forwarded to the API server inside.
	API string `json:"api"`
}

// runVariable tells the processes inside which run they are in: the run's directory.
const runVariable = "TESTCLUSTER_RUN"

// Runs lists the runs of this user's cache that are alive, oldest first.
func Runs() ([]Run, error) {
	all, err := allRuns()
	if err != nil {
		return nil, err
	}
	var alive []Run
	for _, r := range all {
		if r.Alive() {
			alive = append(alive, r)
		}
	}
	return alive, nil
}

// CurrentRun is the run that the caller is inside of.
func CurrentRun() (Run, error) {
	dir := os.Getenv(runVariable)
	if dir == "" {
		return Run{}, errors.New("not inside the namespaces of a run: call cluster.Main first, for instance in TestMain")
	}
	return readRun(dir)
}

// Alive says whether the run goes on: its supervisor holds the run's lock.
func (r Run) Alive() bool { return lockfile.Held(r.lockPath()) }

// Kubeconfig is the file with which programs outside reach the cluster of this run as its administrator. It is
// there from when the cluster is ready.
func (r Run) Kubeconfig() string { return filepath.Join(r.Dir, "kubeconfig") }

// Leftovers says what of the run is still on the machine. There is nothing left of a run that is over.
func (r Run) Leftovers() []string {
	var left []string
	for _, pid := range r.processes() {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		left = append(left, fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(string(name))))
	}
	for _, dir := range cgroupDirs(r.cgroup()) {
		if _, err := os.Stat(dir); err == nil {
			left = append(left, "cgroup "+dir)
		}
	}
	if _, err := os.Stat(r.Dir); err == nil {
		left = append(left, "directory "+r.Dir)
	}
	return left
}

// Over reports whether nothing is left of the run. It costs little while its processes live: the kernel lets init end last of all.
func (r Run) Over() bool { return !r.initAlive() && len(r.Leftovers()) == 0 }

// cgroup is the path, in every hierarchy, below which the run's containers are.
func (r Run) cgroup() string { return "/devmgrd-" + r.ID }

func (r Run) logDir() string { return filepath.Join(r.Dir, "logs") }

func (r Run) lockPath() string { return filepath.Join(r.Dir, "lock") }

// processes finds who is of the run: programs that its own started, by their environment, and what its containers run,
// by their cgroup. Its namespaces would not tell: the kernel reuses the number of one that is gone.
func (r Run) processes() []int {
	marker, group := []byte(runVariable+"="+r.Dir+"\x00"), []byte(r.cgroup()+"/")
	var found []int
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if _, alive := startOf(pid); !alive {
			continue
		}
		environment, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		groups, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if bytes.Contains(environment, marker) || bytes.Contains(groups, group) {
			found = append(found, pid)
		}
	}
	return found
}

// initAlive says whether init has not ended yet. The kernel lets it end last of all in its process namespace.
func (r Run) initAlive() bool {
	start, alive := startOf(r.Init)
	return alive && start == r.InitStart
}

// startOf is the start time of a process, in the kernel's own unit, and whether it lives: exists and is no zombie.
// The first thread of a process can be a zombie while another is still ending, which for init takes as long as the
// rest of its namespace does.
func startOf(pid int) (start string, alive bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", false
	}
	afterName := string(stat)[strings.LastIndexByte(string(stat), ')')+1:] // a name may hold anything
	fields := strings.Fields(afterName)                                    // the third field and those that follow
	if len(fields) < 20 {
		return "", false
	}
	threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	return fields[19], len(threads) > 1 || fields[0] != "Z" && fields[0] != "X"
}

// planRun names a run that nothing has been made of yet.
func planRun() (Run, error) {
	dir, err := runsDir()
	if err != nil {
		return Run{}, err
	}
	id := strings.ToLower(rand.Text()[:8])
	return Run{
		ID: id, Dir: filepath.Join(dir, id),
		Program: filepath.Base(os.Args[0]), Began: time.Now(), Supervisor: os.Getpid(),
	}, nil
}

// begin makes the run's directory and takes the run's lock, which the returned file holds, after it has removed what
// dead runs have left.
func (r Run) begin() (*os.File, error) {
	// Without this lock, another program's sweep could take a directory that has no lock yet for a dead run's.
	sweeping, err := lockfile.Take(context.Background(), filepath.Dir(r.Dir)+".lock", nil)
	if err != nil {
		return nil, err
	}
	defer sweeping.Close()
	sweep()

	if err := os.MkdirAll(r.logDir(), 0o755); err != nil {
		return nil, err
	}
	held, err := lockfile.Try(r.lockPath())
	if err != nil {
		return nil, err
	}
	return held, r.write()
}

// write replaces the run's description, so that a reader finds the old one or the new one.
func (r Run) write() error {
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(r.Dir, "run.json")
	if err := os.WriteFile(path+".new", append(content, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func readRun(dir string) (Run, error) {
	content, err := os.ReadFile(filepath.Join(dir, "run.json"))
	if err != nil {
		return Run{}, fmt.Errorf("read the description of a run: %w", err)
	}
	var r Run
	if err := json.Unmarshal(content, &r); err != nil {
		return Run{}, fmt.Errorf("read the description of a run in %s: %w", dir, err)
	}
	return r, nil
}

func runsDir() (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "runs"), nil
}

// runAt is the run of a directory. If that has no description, the run begins or ends this moment, or died as it
// began; its name says what there may be to remove.
func runAt(dir string) Run {
	r, err := readRun(dir)
	if err != nil {
		return Run{ID: filepath.Base(dir), Dir: dir}
	}
	return r
}

// allRuns lists the runs that have left a directory, in the order of their beginning.
func allRuns() ([]Run, error) {
	dir, err := runsDir()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, err
	}
	var runs []Run
	for _, entry := range entries {
		runs = append(runs, runAt(filepath.Join(dir, entry.Name())))
	}
	slices.SortFunc(runs, func(a, b Run) int { return a.Began.Compare(b.Began) })
	return runs, nil
}
