// Command matrix plays the tests of package matrix in its cells and writes results.yaml. It needs root, and exits with 1 if a test has
// failed.
package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/yaml"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/gobuild"
	"github.com/devmgrd/devmgrd/test/matrix"
)

const resultsFile = "test/matrix/results.yaml"

func main() {
	only := flag.String("cells", "", "only the cells whose names this regular expression matches")
	tests := flag.String("tests", "", "only the tests that this regular expression matches; writes no results")
	logs := flag.String("logs", filepath.Join(os.TempDir(), "devmgrd-matrix"), "directory for each cell's output")
	together := flag.Int("together", 2, "cells that run at the same time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	failed, err := play(ctx, *only, *tests, *logs, *together)
	if err != nil {
		fmt.Fprintln(os.Stderr, "matrix:", err)
		os.Exit(2)
	}
	if failed {
		os.Exit(1)
	}
}

func play(ctx context.Context, only, tests, logs string, together int) (failed bool, err error) {
	chosen, err := chosen(tests)
	if err != nil {
		return false, err
	}
	want, err := regexp.Compile(only)
	if err != nil {
		return false, err
	}
	all, err := cells()
	if err != nil {
		return false, err
	}
	played := slices.DeleteFunc(slices.Clone(all), func(c matrix.Cell) bool { return !want.MatchString(c.Name()) })
	if len(played) == 0 {
		return false, fmt.Errorf("no cell's name matches %q", only)
	}
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return false, err
	}
	broken, err := build(ctx, played, chosen)
	if err != nil {
		return false, err
	}
	var written sync.Mutex
	var work errgroup.Group // a cell that cannot be played does not end the others
	work.SetLimit(together)
	for i := range played {
		work.Go(func() error {
			c := &played[i]
			broken[i] = cmp.Or(broken[i], ctx.Err())
			if broken[i] != nil {
				return nil
			}
			log := filepath.Join(logs, strings.NewReplacer(" ", "-", ",", "").Replace(c.Name())+".log")
			fmt.Printf("%s: begins; its output is in %s\n", c.Name(), log)
			began := time.Now()
			outcomes, err := run(ctx, *c, chosen, log)
			if err != nil {
				broken[i] = fmt.Errorf("%s: %w", c.Name(), err)
				return nil
			}
			c.Outcomes = outcomes
			c.Date = time.Now().UTC().Format(time.DateOnly)
			fmt.Printf("%s: over after %s\n", c.Name(), time.Since(began).Round(time.Second))
			if tests != "" {
				return nil
			}
			written.Lock()
			defer written.Unlock()
			broken[i] = write(all, *c)
			return nil
		})
	}
	_ = work.Wait()
	fmt.Print("\n", matrix.Table(played))
	for _, c := range played {
		for _, t := range chosen {
			failed = failed || !c.Outcomes[t.Name].Passed
		}
	}
	if tests == "" {
		fmt.Printf("\n%s is written. Write the documents again: go test ./test/rules -update\n", resultsFile)
	}
	return failed, errors.Join(broken...)
}

// build builds the tests, and what they run in each cell, before the first test runs. A cell that cannot be played has an error.
func build(ctx context.Context, played []matrix.Cell, tests []matrix.Test) (broken []error, err error) {
	broken = make([]error, len(played))
	for pkg := range byPackage(tests) {
		err := gobuild.Run(ctx, os.Stderr, gobuild.Build{
			Title: "the tests of test/" + pkg, Kind: gobuild.Tests, Flags: []string{"-race", "-tags=e2e"},
			Output: []string{"-o", "bin/" + pkg + ".test"}, Packages: []string{"./test/" + pkg},
		})
		if err != nil {
			return nil, fmt.Errorf("building the tests: %w", err)
		}
		for i, c := range played {
			fmt.Printf("%s: building what the tests of test/%s run\n", c.Name(), pkg)
			cmd := command(ctx, c, pkg, nil, "-test.list=^$") // runs no test
			cmd.Stderr = os.Stderr                            // the progress
			if err := cmd.Run(); err != nil {
				broken[i] = errors.Join(broken[i], fmt.Errorf("%s: building what the tests of test/%s run: %w", c.Name(), pkg, err))
			}
		}
	}
	return broken, nil
}

// byPackage yields the packages of tests, with the names of their tests.
func byPackage(tests []matrix.Test) iter.Seq2[string, []string] {
	return func(yield func(string, []string) bool) {
		for _, pkg := range []string{matrix.E2E, matrix.MainJob} {
			var names []string
			for _, t := range tests {
				if t.Package == pkg {
					names = append(names, t.Name)
				}
			}
			if names != nil && !yield(pkg, names) {
				return
			}
		}
	}
}

// chosen returns those of the matrix's tests whose names an expression matches.
func chosen(expression string) (tests []matrix.Test, err error) {
	want, err := regexp.Compile(expression)
	if err != nil {
		return nil, err
	}
	for _, t := range matrix.Tests {
		if want.MatchString(t.Name) {
			tests = append(tests, t)
		}
	}
	if tests == nil {
		return nil, fmt.Errorf("no test of the matrix matches %q", expression)
	}
	return tests, nil
}

// cells returns the cells that can be played here, newest first.
func cells() (all []matrix.Cell, err error) {
	containerds, err := cluster.Releases("containerd")
	if err != nil {
		return nil, err
	}
	kubernetes, err := cluster.Releases("k8s")
	if err != nil {
		return nil, err
	}
	cell := func(c, k cluster.Release) {
		all = append(all, matrix.Cell{Containerd: c.Name, Kubernetes: k.Name, Runtime: "containerd " + c.Version, Version: k.Version})
	}
	if cluster.UsesCRIO() {
		version, err := cluster.CRIOVersion()
		if err != nil {
			return nil, err
		}
		all = append(all, matrix.Cell{CRIO: true, Runtime: "CRI-O " + version, Version: kubernetes[0].Version})
	}
	for _, c := range containerds {
		cell(c, kubernetes[0])
	}
	for _, k := range kubernetes[1:] {
		cell(containerds[0], k)
	}
	cell(containerds[len(containerds)-1], kubernetes[len(kubernetes)-1])
	return all, nil
}

// run plays the tests in a cell and returns their outcomes.
func run(ctx context.Context, c matrix.Cell, tests []matrix.Test, log string) (map[string]matrix.Outcome, error) {
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	outcomes := map[string]matrix.Outcome{}
	for pkg, names := range byPackage(tests) {
		cmd := command(ctx, c, pkg, []string{"go", "tool", "test2json"}, "-test.v=test2json", "-test.timeout=60m", "-test.run=^("+strings.Join(names, "|")+")$")
		cmd.Stderr = out
		events, err := cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		err = read(events, out, outcomes)
		_ = cmd.Wait() // tests that fail are outcomes
		if err != nil {
			return nil, err
		}
	}
	for _, t := range tests {
		if _, ran := outcomes[t.Name]; !ran {
			return nil, fmt.Errorf("%s has no outcome: see %s", t.Name, log)
		}
	}
	return outcomes, nil
}

// command runs the tests of a package in a cell, under another command if there is one.
func command(ctx context.Context, c matrix.Cell, pkg string, under []string, args ...string) *exec.Cmd {
	words := slices.Concat(under, []string{"../../bin/" + pkg + ".test"}, args)
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Dir = "test/" + pkg
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, cluster.CRIOVariable+"=") && !c.CRIO })
	cmd.Env = append(cmd.Env, cluster.ContainerdVariable+"="+c.Containerd, cluster.KubernetesVariable+"="+c.Kubernetes)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // test2json hands no signal on
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	return cmd
}

// read reads test2json's events, adds outcomes and copies the tests' output.
func read(events io.Reader, out io.Writer, outcomes map[string]matrix.Outcome) error {
	lacks := map[string][]cluster.Feature{}
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e struct{ Action, Test, Output string }
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Fprintln(out, lines.Text()) // what a build says before the tests begin
			continue
		}
		test, _, sub := strings.Cut(e.Test, "/")
		switch e.Action {
		case "output":
			_, _ = io.WriteString(out, e.Output)
			if _, feature, noted := strings.Cut(e.Output, ": LACKS "); noted {
				lacks[test] = append(lacks[test], cluster.Feature(strings.TrimSpace(feature)))
			}
		case "pass", "fail":
			if test != "" && !sub {
				slices.Sort(lacks[test])
				outcomes[test] = matrix.Outcome{Passed: e.Action == "pass", Lacks: slices.Compact(lacks[test])}
			}
		}
	}
	return lines.Err()
}

// write puts a played cell into results.yaml, in the order of all cells, between those that were played before.
func write(all []matrix.Cell, played matrix.Cell) error {
	text, err := os.ReadFile(resultsFile)
	if err != nil {
		return err
	}
	before, err := matrix.Parse(text)
	if err != nil {
		return err
	}
	known := append([]matrix.Cell{played}, before...) // the first of the same releases counts
	var kept []matrix.Cell
	for _, c := range append(slices.Clone(all), matrix.Cell{CRIO: true}) {
		if i := slices.IndexFunc(known, c.Same); i >= 0 && !slices.ContainsFunc(kept, c.Same) {
			kept = append(kept, known[i])
		}
	}
	if text, err = yaml.Marshal(kept); err != nil {
		return err
	}
	header := "# The outcomes of the last run of each cell, written by make matrix. docs/compatibility.md and README.md show them.\n"
	return os.WriteFile(resultsFile, append([]byte(header), text...), 0o644)
}
