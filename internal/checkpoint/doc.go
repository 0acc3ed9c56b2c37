// Package checkpoint knows the file in which a kubelet's device manager keeps who has which devices
// (kubelet_internal_checkpoint), and what that file means for our state file.
//
//	Decode, File.Encode   the file's bytes and what they say
//	Entry                 the devices of one resource that one container has, with the plugin's answer
//	Of                    our state file, as a kubelet would have written it
//	Adopt                 a kubelet's file, as our state file would have it: moving in
//	Mirror                such a file, kept up to date for those who read the kubelet's
//	Mirrors               one in the common plugin directory, and one in each plugin pod's own
//
// # The format
//
//	{"Data": {
//	    "PodDeviceEntries": [{"PodUID", "ContainerName", "ResourceName",
//	        "DeviceIDs": {NUMA node, -1 for none: [IDs]},   a device near two nodes stands under both
//	        "AllocResp": base64 of a ContainerAllocateResponse}],
//	    "RegisteredDevices": {resource: [IDs that were healthy]}},
//	 "Checksum": n}
//
// The checksum is the FNV-1a hash, 32 bits, of a dump of the Go value under "Data", not of any bytes. The dump holds the
// names of the types and of their package. So checkpointData, PodDevicesEntry and DevicesPerNUMA are called as they are in
// the kubelet, and so is this package. The format has been so since Kubernetes 1.20, and has no version.
//
// # Promises
//
//   - A file whose checksum is wrong is not read: what a kubelet would not believe we do not either.
//   - One entry that makes no sense costs nobody else's: it is told with all others that stand in the way.
//   - What Encode writes is what a kubelet accepts, and Decode gives back. Equal files are equal bytes.
//   - What a file says and means is pure: no file, no clock, no log. Read and Write touch one, and the Mirror alone runs.
//
// # The mirror
//
// Agents that tell which pod has which device watch the kubelet's file, or read it where they find no PodResources socket.
// The Mirror writes one for them: the devices of every pod that has any, whether it still counts as active or not, and the
// healthy ones of each resource that a plugin serves, or has served until a moment ago. It writes when the bytes change,
// once a second at most, and rests for twenty times as long as it has worked. Plugins may exchange the file at any time: it is
// compared through a descriptor, within the length that it should have, and whatever else is at its name is replaced. The Mirror
// never waits for a disk: after a power cut
// the file may be empty or an old one, and the next start makes it good.
//
// # What it does not do
//
// It does not know whether a kubelet runs: that is for whoever reads or writes the file to find out.
package checkpoint
