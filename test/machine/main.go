package machine

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/devmgrd/devmgrd/test/cluster"
)

// diskVariable carries the disk that is made outside to the program inside.
const diskVariable = "TESTMACHINE_DISK"

// Main runs the calling program in namespaces where [Start] can start a machine with the system, and exits with what run returns. Call
// it like cluster.Main, first of all: the functions in before run outside, where the network is.
func Main(system System, run func() int, before ...func(context.Context) error) {
	share := func(ctx context.Context) error {
		d, err := prepare(ctx, system)
		if err != nil {
			return err
		}
		text, err := json.Marshal(d)
		if err != nil {
			return err
		}
		return os.Setenv(diskVariable, string(text))
	}
	cluster.Main(run, append([]func(context.Context) error{cluster.Needs(cluster.Kubernetes), share}, before...)...)
}

func sharedDisk() (disk, error) {
	var d disk
	if err := json.Unmarshal([]byte(os.Getenv(diskVariable)), &d); err != nil {
		return disk{}, fmt.Errorf("not inside the namespaces of a run: call machine.Main first, for instance in TestMain: %w", err)
	}
	return d, nil
}
