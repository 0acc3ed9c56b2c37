//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/internal/loops/dirwatch"
	"github.com/devmgrd/devmgrd/test/cluster/images/report"
	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// checkpointed is what readers of the kubelet's file know of it. Multus reads it where it finds no PodResources socket.
type checkpointed struct {
	Data struct {
		PodDeviceEntries []struct {
			PodUID        types.UID
			ContainerName string
			ResourceName  string
			DeviceIDs     map[int64][]string
			AllocResp     []byte
		}
		RegisteredDevices map[string][]string
	}
	Checksum uint64
}

// readCheckpoint reads the file as such readers do, and believes no other than a kubelet would.
func readCheckpoint(path string) (checkpointed, error) {
	var c checkpointed
	data, err := os.ReadFile(path)
	if err != nil {
		return c, err
	}
	if _, err := checkpoint.Decode(data); err != nil {
		return c, fmt.Errorf("a kubelet would not read it: %w\n%s", err, data)
	}
	return c, json.Unmarshal(data, &c)
}

// of returns a pod's devices of one resource, whatever node they are near.
func (c checkpointed) of(pod types.UID, resource string) []string {
	var ids []string
	for _, e := range c.Data.PodDeviceEntries {
		if e.PodUID != pod || e.ResourceName != resource {
			continue
		}
		for _, some := range e.DeviceIDs {
			ids = append(ids, some...)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// Readers of the kubelet's file find one in the directory that plugins see, with what pods have. It is never half written,
// and is replaced by another, which those wait for who watch the directory.
func TestPodResources_CheckpointMirror_IsNeverHalfWritten(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 4, func(p *plugintest.Plugin) {
		p.Set(plugintest.Dev("gpu-0", plugintest.Healthy, 0), plugintest.Dev("gpu-1", plugintest.Healthy, 0, 1),
			plugintest.Dev("gpu-2", plugintest.Healthy), plugintest.Dev("gpu-3", plugintest.Healthy, 1))
	})
	path := filepath.Join(node.SocketDir, checkpoint.Name)

	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	var work sync.WaitGroup
	work.Go(func() { // a reader that comes at any moment
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for there := false; ctx.Err() == nil; <-tick.C {
			switch _, err := readCheckpoint(path); {
			case err == nil:
				there = true
			case there || !errors.Is(err, fs.ErrNotExist):
				t.Errorf("the file cannot be read: %v", err)
				return
			}
		}
	})
	w, err := dirwatch.Start()
	r.must(err)
	r.must(w.AddPath(node.SocketDir))
	replaced := 0
	work.Go(func() {
		for e := range w.Events {
			switch {
			case e.Name != path:
			case e.Has(dirwatch.Create):
				replaced++
			case e.Has(dirwatch.Write):
				t.Errorf("the file was written in place: %v", e)
			}
		}
	})

	has := map[string][]string{}
	for i, name := range []string{"a", "b", "c"} {
		seen := r.run(name, gpu, []int{1, 2, 1}[i])
		has[name] = ids(seen)
	}
	entries := func() bool {
		c, err := readCheckpoint(path)
		if err != nil {
			return false
		}
		for name, want := range has {
			if !slices.Equal(c.of(r.uid(name), gpu), want) {
				return false
			}
		}
		return len(c.Data.RegisteredDevices[gpu]) == 4
	}
	r.until("each pod is in the file with its devices", entries)
	r.must(r.Delete(r.ctx, "b"))
	delete(has, "b")
	has["d"] = ids(r.run("d", gpu, 2))
	r.until("so it is with the next one", entries)

	// What is there before devmgrd comes back is what it was, and stays in place.
	r.must(r.Devmgrd.Kill())
	if !entries() {
		t.Error("without devmgrd the file does not say what pods have")
	}
	r.must(r.StartDevmgrd(r.soon()))
	r.until("devmgrd keeps it", entries)

	cancel()
	r.must(w.Close())
	work.Wait()
	if replaced < 2 {
		t.Errorf("who watches the directory was told of the file %d times", replaced)
	}
	t.Logf("the file was replaced %d times", replaced)
}

// ids returns the devices that a container sees, ascending.
func ids(seen report.Report) []string {
	all := strings.Split(seen.Env["DEVICES"], ",")
	slices.Sort(all)
	return all
}
