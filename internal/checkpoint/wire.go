package checkpoint

import (
	"encoding/json"
	"fmt"
	"hash/fnv"

	"k8s.io/utils/dump"
)

// The kubelet's types. Their names, their fields and the fields' order are part of the checksum.
type (
	// DevicesPerNUMA are IDs by NUMA node.
	DevicesPerNUMA map[int64][]string

	// PodDevicesEntry is one Entry.
	PodDevicesEntry struct {
		PodUID        string
		ContainerName string
		ResourceName  string
		DeviceIDs     DevicesPerNUMA
		AllocResp     []byte
	}

	checkpointData struct {
		PodDeviceEntries  []PodDevicesEntry
		RegisteredDevices map[string][]string
	}
)

// nowhere is the NUMA node of devices without one.
const nowhere = -1

// wire is the file in JSON.
type wire struct {
	Data     checkpointData
	Checksum uint64
}

// A CorruptError reports that a file is not as its kubelet wrote it.
type CorruptError struct {
	Err error
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("the file is corrupt: %v; a kubelet would load no assignments from it", e.Err)
}

// Unwrap returns the cause.
func (e *CorruptError) Unwrap() error { return e.Err }

func unmarshal(data []byte) (checkpointData, error) {
	var w wire
	if err := json.Unmarshal(data, &w); err != nil {
		return checkpointData{}, &CorruptError{err}
	}
	if sum := checksum(w.Data); sum != w.Checksum {
		return checkpointData{}, &CorruptError{fmt.Errorf("its checksum is %d, and its content has %d", w.Checksum, sum)}
	}
	return w.Data, nil
}

func marshal(d checkpointData) ([]byte, error) { return json.Marshal(wire{d, checksum(d)}) }

// checksum is pkg/kubelet/checkpointmanager/checksum.New in Kubernetes.
func checksum(d checkpointData) uint64 {
	h := fnv.New32a()
	fmt.Fprintf(h, "%v", dump.ForHash(d))
	return uint64(h.Sum32())
}
