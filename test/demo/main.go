// Command demo shows the main job of devmgrd as a story to follow: a real Kubernetes node, Kubernetes' own sample
// device plugin with the manifest that its makers ship, and pods that ask for its devices.
//
//	go run ./test/demo           tell the story and clean up: "make demo"
//	go run ./test/demo --keep    stay at the end, for a look from another terminal: "make demo KEEP=1"
//
// The story runs inside the namespaces of test/cluster (story.go, steps.go). Around it a second process waits outside
// and looks, when all is over, whether anything is left (outside.go).
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
)

func main() {
	keep := flag.Bool("keep", false, "stay after the last step, until Ctrl-C")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "usage: go run ./test/demo [--keep]\n\n"+
			"Shows devmgrd at work on a real one-node Kubernetes that is made for it. Needs root.\n\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "demo: there is no argument %q; see --help\n", flag.Arg(0))
		os.Exit(2)
	}
	if os.Getenv(noteVariable) == "" {
		os.Exit(outside())
	}
	cluster.Main(func() int { return inside(*keep) }, announce, node.Build)
}

// announce says what may take a while.
func announce(context.Context) error {
	fmt.Println("The programs of the cluster are built. Building devmgrd from this checkout.")
	return nil
}
