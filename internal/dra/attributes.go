package dra

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/devmgrd/devmgrd/internal/device"
)

// Names of attributes. Those without a domain are in the driver's: CEL reads device.attributes["devmgrd.io"].id. The others are names
// that the Kubernetes project defines for all drivers.
const (
	attributeResource resourceapi.QualifiedName = "resource" // see value
	attributeID       resourceapi.QualifiedName = "id"       // likewise
	attributeIDHash   resourceapi.QualifiedName = "idHash"   // the first 64 bits of the ID's SHA-256
	attributeOwnNUMA  resourceapi.QualifiedName = "numaNode"
	attributeNUMA     resourceapi.QualifiedName = "resource.kubernetes.io/numaNode"
	attributePCIBusID resourceapi.QualifiedName = "resource.kubernetes.io/pciBusID"
	attributePCIeRoot resourceapi.QualifiedName = "resource.kubernetes.io/pcieRoot"
)

// maxValue is the length of a string that the API accepts as the value of an attribute.
const maxValue = resourceapi.DeviceAttributeMaxValueLength

// value returns a text as the value of an attribute: itself, where the API accepts that. Otherwise it is the beginning and 16 digits of its
// SHA-256. It is never left out: an expression of CEL that reads an attribute which a device lacks is an error, and kube-scheduler then
// places the pod on no node.
func value(text string) string {
	if len(text) <= maxValue && utf8.ValidString(text) {
		return text
	}
	end := "-" + digits(text, 16)
	begin := strings.ToValidUTF8(text, "?")
	for len(begin) > maxValue-len(end) {
		_, last := utf8.DecodeLastRuneInString(begin)
		begin = begin[:len(begin)-last]
	}
	return begin + end
}

type attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute

// pciAddress is a PCI address as sysfs writes it: domain, bus, device and function.
var pciAddress = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[0-1][0-9a-f]\.[0-7]$`)

// A describer returns what the slices say of devices. It reads files when it first sees a device, and again when the device or its
// plugin has been away. It is for one goroutine.
type describer struct {
	sysfs, procfs string // where these are mounted

	known map[device.ResourceName]map[device.ID]description
	gpus  map[string]string // what nvidiaGPUs returned for the present lists; nil: it has not been called
}

// A description is what the slices say of a device with these NUMA nodes.
type description struct {
	numa []int
	all  attributes
}

// newDescriber returns a describer; empty: /sys and /proc.
func newDescriber(sysfs, procfs string) *describer {
	return &describer{sysfs: cmp.Or(sysfs, "/sys"), procfs: cmp.Or(procfs, "/proc"), known: map[device.ResourceName]map[device.ID]description{}}
}

// relist records that a resource has another list: it forgets the devices that are not listed, or all of them if afresh.
func (s *describer) relist(r device.ResourceName, devices []device.DeviceStatus, afresh bool) {
	before := s.known[r]
	s.known[r], s.gpus = make(map[device.ID]description, len(devices)), nil
	for _, d := range devices {
		if was, known := before[d.ID]; known && d.Listed && !afresh {
			s.known[r][d.ID] = was
		}
	}
}

// forget forgets a resource.
func (s *describer) forget(r device.ResourceName) { delete(s.known, r) }

// of returns the attributes of a device whose resource has been listed. They are shared, and never changed.
func (s *describer) of(d device.DeviceStatus) attributes {
	is, known := s.known[d.Resource][d.ID]
	if known && slices.Equal(is.numa, d.NUMA) {
		return is.all
	}
	is = description{d.NUMA, s.once(d)}
	s.known[d.Resource][d.ID] = is
	return is.all
}

// once returns the attributes of a device, and remembers nothing of it.
func (s *describer) once(d device.DeviceStatus) attributes {
	if s.gpus == nil {
		s.gpus = s.nvidiaGPUs()
	}
	all := attributes{}
	text := func(name resourceapi.QualifiedName, value string) {
		all[name] = resourceapi.DeviceAttribute{StringValue: &value}
	}
	text(attributeResource, value(string(d.Resource)))
	text(attributeID, value(string(d.ID)))
	text(attributeIDHash, digits(string(d.ID), 16))
	if len(d.NUMA) == 1 {
		node := int64(d.NUMA[0])
		all[attributeOwnNUMA] = resourceapi.DeviceAttribute{IntValue: &node}
		all[attributeNUMA] = resourceapi.DeviceAttribute{IntValue: &node}
	}
	address, known := s.gpus[string(d.ID)]
	if !known {
		address = string(d.ID)
	}
	if root, there := s.pcieRoot(address); there {
		text(attributePCIBusID, normal(address))
		if root != "" {
			text(attributePCIeRoot, root)
		}
	}
	return all
}

// normal returns a PCI address as sysfs writes it: in lower case, with four digits of the domain. Anything else comes back as it is.
func normal(address string) string {
	address = strings.ToLower(address)
	switch strings.Count(address, ":") {
	case 1: // without a domain, as lspci writes it
		return "0000:" + address
	case 2: // NVIDIA's tools write eight digits of the domain
		if domain, rest, _ := strings.Cut(address, ":"); len(domain) == 8 && strings.HasPrefix(domain, "0000") {
			return domain[4:] + ":" + rest
		}
	}
	return address
}

// pcieRoot returns the PCIe root complex of a device, such as pci0000:3a; empty: sysfs does not show it. there is false if sysfs has no
// such device.
func (s *describer) pcieRoot(address string) (root string, there bool) {
	address = normal(address)
	if !pciAddress.MatchString(address) {
		return "", false
	}
	dir := filepath.Join("bus", "pci", "devices")
	target, err := os.Readlink(filepath.Join(s.sysfs, dir, address))
	if err != nil {
		return "", false
	}
	path := filepath.Join(dir, target) // relative to sysfs, as its links are
	parts := strings.Split(path, "/")
	if len(parts) > 2 && parts[0] == "devices" && strings.HasPrefix(parts[1], "pci") && parts[len(parts)-1] == address {
		return parts[1], true
	}
	return "", true
}

// nvidiaGPUs returns the PCI addresses of NVIDIA's GPUs by UUID, as the driver reports them. It is never nil.
func (s *describer) nvidiaGPUs() map[string]string {
	all := map[string]string{}
	files, _ := filepath.Glob(filepath.Join(s.procfs, "driver", "nvidia", "gpus", "*", "information"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the driver has removed the GPU meanwhile
		}
		for line := range strings.Lines(string(text)) {
			if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "GPU UUID" {
				all[strings.TrimSpace(value)] = filepath.Base(filepath.Dir(file))
			}
		}
	}
	return all
}
