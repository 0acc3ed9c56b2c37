//go:build e2e

package upstream

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/lockfile"
)

var (
	sideFlag  = flag.String("side", "", "run one side only: kubelet or devmgrd")
	focusFlag = flag.String("focus", "", "run only specs whose names match this regular expression")
	lastFlag  = flag.Bool("last", false, "run nothing: compare the reports of the last run with expected.yaml")
)

// table is what TestUpstream has found. It is printed after the outcome, as what a person reads last.
var table string

func TestMain(m *testing.M) {
	flag.Parse()
	if side := os.Getenv(sideVariable); side != "" {
		runSide(side)
	}
	if !*lastFlag {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		if err := build(ctx, sides()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		stop()
	}
	status := m.Run()
	fmt.Print(table)
	os.Exit(status)
}

// sides are those that -side chooses.
func sides() []string {
	if *sideFlag != "" {
		return []string{*sideFlag}
	}
	return Sides
}

// TestUpstream runs the suite on both sides at the same time, and compares the outcomes with the expected ones.
func TestUpstream(t *testing.T) {
	files, err := Expected()
	if err != nil {
		t.Fatal(err)
	}
	focus, err := regexp.Compile(*focusFlag)
	if err != nil {
		t.Fatal(err)
	}
	names := make([]string, len(files))
	for i, f := range files {
		names[i] = f.File
	}
	results := map[string][]Result{}
	var mu sync.Mutex
	t.Run("sides", func(t *testing.T) {
		for _, side := range sides() {
			t.Run(side, func(t *testing.T) {
				t.Parallel()
				dir, turn, err := resultsDir(t.Context(), side)
				if err != nil {
					t.Fatal(err)
				}
				defer turn.Close()
				if !*lastFlag {
					if err := play(t.Context(), side, dir); err != nil {
						t.Fatal(err)
					}
				}
				got, err := ReadReport(filepath.Join(dir, reportFile), names)
				if err != nil {
					t.Fatal(err)
				}
				if len(got) == 0 {
					t.Fatalf("no spec's name matches %q", *focusFlag)
				}
				mu.Lock()
				defer mu.Unlock()
				results[side] = got
			})
		}
	})
	here := Machine{CPUs: runtime.NumCPU(), NUMA: numaNodes()}
	for _, side := range sides() {
		got, played := results[side]
		if !played {
			continue // it has failed as a whole
		}
		for _, difference := range Compare(side, files, got, focus, here) {
			t.Errorf("%s: %s", side, difference)
		}
	}
	table = Table(files, results)
}

// play runs a side in a process of its own, which boots a machine and leaves its report and logs in dir.
func play(ctx context.Context, side, dir string) error {
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return err
	}
	self := exec.CommandContext(ctx, "/proc/self/exe", os.Args[1:]...)
	self.Cancel = func() error { return self.Process.Signal(syscall.SIGTERM) }
	self.Env = append(os.Environ(), sideVariable+"="+side, resultsVariable+"="+dir)
	// The kernel ends the side when the thread that has started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	self.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := self.StderrPipe()
	if err != nil {
		return err
	}
	self.Stdout = self.Stderr // the same pipe
	if err := self.Start(); err != nil {
		return err
	}
	prefix(os.Stderr, side, out)
	if err := self.Wait(); err != nil {
		return fmt.Errorf("the suite with %s: %w; logs are in %s", side, err, dir)
	}
	return nil
}

// prefix copies lines, each with the side that it is of.
func prefix(to io.Writer, side string, from io.Reader) {
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		fmt.Fprintf(to, "%s: %s\n", side, lines.Text())
	}
}

// resultsDir returns the directory of the report and the logs, and takes the lock on it: another run with the same side and
// focus waits. The directory stays until the next run.
func resultsDir(ctx context.Context, side string) (dir string, turn *os.File, err error) {
	cache, err := cluster.CacheDir()
	if err != nil {
		return "", nil, err
	}
	name := side
	if *focusFlag != "" {
		name += "-" + regexp.MustCompile(`[^A-Za-z0-9]+`).ReplaceAllString(*focusFlag, "-")
	}
	dir = filepath.Join(cache, "upstream", name)
	if turn, err = lockfile.Take(ctx, dir+".lock", nil); err != nil {
		return "", nil, err
	}
	return dir, turn, nil
}

func numaNodes() int {
	nodes, _ := filepath.Glob("/sys/devices/system/node/node[0-9]*")
	return max(1, len(nodes))
}
