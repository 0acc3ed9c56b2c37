// Command devmgrd manages the devices of a Kubernetes node in place of the kubelet. Device plugins register with devmgrd,
// which assigns devices to containers, records the assignments and injects the devices.
//
// internal/cli has the commands, and internal/daemon what "devmgrd run" runs.
package main

import (
	"os"

	"github.com/devmgrd/devmgrd/internal/cli"
)

func main() {
	os.Exit(cli.Run(os.Args[1:], os.Stdout, os.Stderr))
}
