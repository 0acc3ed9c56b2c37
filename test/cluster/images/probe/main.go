// Command probe is the program that pods in tests run. It says what its container looks like, or does one thing
// to one device.
//
//	probe report [--open PATH]... [--then-sleep | --then-exit N | -- ANYTHING...]
//	                                              print a report.Report as one line of JSON; --open tries to open a
//	                                              file for reading, writing and both, and reports what came of it
//	probe open PATH r|w|rw                        open a file and close it again
//	probe sleep                                   wait for SIGTERM, then exit 0
//	probe hold DIR                                lock a file in DIR for each device that the variable DEVICES names, and wait
//	                                              for SIGTERM; exit 1 at once if another container has one locked
//	probe wait-file PATH                          wait until PATH exists, then exit 0
//	probe exit N                                  exit with status N
//
// A failed open exits with status 1, a wrong command line with 2.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	os.Exit(probe(os.Args[1:]))
}

func probe(args []string) int {
	if len(args) == 0 {
		return usage("no subcommand")
	}
	switch verb, args := args[0], args[1:]; verb {
	case "report":
		return printReport(args)
	case "open":
		return open(args)
	case "sleep":
		return sleep()
	case "hold":
		return hold(args)
	case "wait-file":
		return waitFile(args)
	case "exit":
		return exit(args)
	default:
		return usage("unknown subcommand " + strconv.Quote(verb))
	}
}

func printReport(args []string) int {
	var paths []string
	for len(args) >= 2 && args[0] == "--open" {
		paths, args = append(paths, args[1]), args[2:]
	}
	document, err := json.Marshal(describe(paths))
	if err != nil {
		return failed(err)
	}
	fmt.Println(string(document))
	switch {
	case len(args) == 0 || args[0] == "--":
		return 0
	case len(args) == 1 && args[0] == "--then-sleep":
		return sleep()
	case len(args) == 2 && args[0] == "--then-exit":
		return exit(args[1:])
	}
	return usage("report takes --open PATH any number of times, then --then-sleep, --then-exit N or -- with anything")
}

// modes are the ways to open a file, by name.
var modes = map[string]int{"r": os.O_RDONLY, "w": os.O_WRONLY, "rw": os.O_RDWR}

func open(args []string) int {
	if len(args) != 2 {
		return usage("open takes PATH and r, w or rw")
	}
	mode, known := modes[args[1]]
	if !known {
		return usage("open takes r, w or rw, not " + strconv.Quote(args[1]))
	}
	if err := openOnce(args[0], mode); err != nil {
		return failed(err)
	}
	fmt.Printf("opened %s %s\n", args[0], args[1])
	return 0
}

func openOnce(path string, mode int) error {
	f, err := os.OpenFile(path, mode|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

func sleep() int {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	<-stop
	return 0
}

func hold(args []string) int {
	if len(args) != 1 {
		return usage("hold takes DIR")
	}
	for id := range strings.SplitSeq(os.Getenv("DEVICES"), ",") {
		f, err := os.OpenFile(filepath.Join(args[0], id), os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			return failed(err)
		}
		defer f.Close()
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			return failed(fmt.Errorf("another container has device %s: %w", id, err))
		}
	}
	return sleep()
}

func waitFile(args []string) int {
	if len(args) != 1 {
		return usage("wait-file takes PATH")
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Lstat(args[0]); err == nil {
			return 0
		}
		select {
		case <-stop:
			return 1
		case <-tick.C:
		}
	}
}

func exit(args []string) int {
	if len(args) != 1 {
		return usage("exit takes a status")
	}
	status, err := strconv.Atoi(args[0])
	if err != nil {
		return usage("exit takes a status, not " + strconv.Quote(args[0]))
	}
	return status
}

func failed(err error) int {
	fmt.Fprintln(os.Stderr, "probe:", err)
	return 1
}

func usage(problem string) int {
	fmt.Fprintln(os.Stderr, "probe:", problem)
	return 2
}
