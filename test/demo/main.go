// Command demo shows the main job of devmgrd as a story in two acts, with Kubernetes' own sample device plugin, unchanged. Act one
// (containers.go) takes containerd and runc alone. Act two (steps.go) takes a real Kubernetes node and the manifest that the plugin's
// makers ship.
//
//	go run ./test/demo           tell the story and clean up: "make demo"
//	go run ./test/demo --act=1   tell the first act only: "make demo ACT=1"
//	go run ./test/demo --keep    stay at the end, for a look from another terminal: "make demo KEEP=1"
//
// Each act runs inside the namespaces of test/cluster. Around it a second process waits outside and looks, when all is over, whether
// anything is left (outside.go). What an act needs is built before it begins, so that act one begins long before Kubernetes is built.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
)

func main() {
	keep := flag.Bool("keep", false, "stay after the last step, until Ctrl-C")
	act := flag.Int("act", 0, "tell `one` act only, 1 or 2")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "usage: go run ./test/demo [--act=1] [--keep]\n\n"+
			"Shows devmgrd at work on a real containerd, and on a real one-node Kubernetes that is made for it. Needs root.\n\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() > 0 || *act < 0 || *act > 2 {
		fmt.Fprintf(os.Stderr, "demo: there is no argument %q, or no such act; see --help\n", flag.Args())
		os.Exit(2)
	}
	switch os.Getenv(actVariable) {
	case "1":
		cluster.Main(func() int { return inside(actOne, *keep && *act == 1) }, node.BuildDevmgrd, cluster.Needs(cluster.Containers))
	case "2":
		cluster.Main(func() int { return inside(actTwo, *keep) }, node.Build, cluster.Needs(cluster.Kubernetes))
	default:
		os.Exit(outside(*act))
	}
}
