package cdi

import (
	"fmt"
	"strings"

	"github.com/devmgrd/devmgrd/internal/device"
)

// Kind is the kind of the CDI devices of claims: VENDOR/CLASS.
const Kind = "devmgrd.io/claim"

// separator stands between the parts of a device's name. Neither a UID nor a request, which is a DNS label, has one.
const separator = "_"

// DeviceName returns the CDI device of a device that the scheduler has chosen for a request. name is the device's name in its ResourceSlice. The kubelet
// shows it in the pod's status as the ID of the device.
func DeviceName(of device.ClaimRequest, name string) string {
	return Kind + "=" + deviceName(of, name)
}

func deviceName(of device.ClaimRequest, name string) string {
	return joined(of) + separator + name
}

// joined returns what stands for a request in names.
func joined(of device.ClaimRequest) string { return string(of.Claim) + separator + of.Request }

// between returns the request that stands between the two ends of a name; false: it is no such name.
func between(prefix, name, suffix string) (device.ClaimRequest, bool) {
	name, begins := strings.CutPrefix(name, prefix)
	name, ends := strings.CutSuffix(name, suffix)
	claim, request, whole := strings.Cut(name, separator)
	return device.ClaimRequest{Claim: device.ClaimUID(claim), Request: request}, begins && ends && whole
}

// Request returns the request of a CDI device; false: it is not a device of a claim.
func Request(qualified string) (device.ClaimRequest, bool) {
	name, ours := strings.CutPrefix(qualified, Kind+"=")
	parts := strings.SplitN(name, separator, 3)
	if !ours || len(parts) != 3 {
		return device.ClaimRequest{}, false
	}
	return device.ClaimRequest{Claim: device.ClaimUID(parts[0]), Request: parts[1]}, true
}

const (
	filePrefix     = "devmgrd.io-claim_"
	fileSuffix     = ".json"
	metadataSuffix = ".metadata" // runtimes read .json and .yaml
)

// fileName returns the name of a request's file.
func fileName(of device.ClaimRequest) string { return filePrefix + joined(of) + fileSuffix }

// IsFile reports whether a name is that of a file of a claim.
func IsFile(name string) bool {
	_, is := requestOf(name)
	return is
}

// requestOf returns the request of a file; false: it is not one of these files.
func requestOf(file string) (device.ClaimRequest, bool) {
	return between(filePrefix, file, fileSuffix)
}

// metadataName returns the name of the file with a request's metadata.
func metadataName(of device.ClaimRequest) string { return filePrefix + joined(of) + metadataSuffix }

// metadataOf returns the request of a file with metadata; false: it is not one of these files.
func metadataOf(file string) (device.ClaimRequest, bool) {
	return between(filePrefix, file, metadataSuffix)
}

// guardDir is where the mounts of guards are in a container. The hook removes them.
const guardDir = "/.devmgrd-guard/"

// guardSource does not exist on a host: the kernel has no name for a process 0. It says in the runtime's error what is amiss.
const guardSource = "/proc/0/devmgrd-is-away-and-this-container-needs-it"

// GuardPath returns where the mount of a request's guard is in a container.
func GuardPath(of device.ClaimRequest) string { return guardDir + joined(of) }

// Guarded returns the request of a guard's mount; false: the path is none of a guard.
func Guarded(path string) (device.ClaimRequest, bool) {
	return between(guardDir, path, "")
}

// checkName returns an error if a request cannot be part of a name: both parts are from the API server.
func checkName(of device.ClaimRequest) error {
	for _, part := range []string{string(of.Claim), of.Request} {
		if part == "" || strings.Trim(part, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			return fmt.Errorf("request %q of the claim with UID %q cannot be named as a CDI device", of.Request, of.Claim)
		}
	}
	return nil
}
