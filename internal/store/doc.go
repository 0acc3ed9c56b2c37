// Package store keeps the daemon's durable data in two bbolt files: the state file, on which assignments depend, and the history,
// on which no assignment depends.
//
// It owns the schemas of both, their versions and migrations, and the lock that keeps a second devmgrd from the same files. It
// decides nothing.
//
// The state file, state.db:
//
//	meta
//	    version             8 bytes, big-endian: the schema's number, raw so that any version can read it
//	    check               4 bytes: CRC-32 of version; every version from 2 on has it
//	    sum                 8 bytes, big-endian: of all records below (sum.go)
//	pods
//	    <pod UID>           JSON of device.PodRecord: the pod's demand and, once assigned, its devices
//	plugins
//	    <resource name>     a bucket
//	        record          JSON of device.PluginRecord: where the plugin listens, in whose quota it counts, whether it has listed its
//	                        devices, the newest date, and since when it is disconnected
//	        devices         a bucket
//	            <device ID> one byte (bit 0: healthy, bit 1: dated), the date as a signed varint, the NUMA nodes as unsigned
//	                        varints
//	cordons                 made with the first cordon
//	    <resource name>     a bucket
//	        <device ID>     JSON of device.Cordon: reason and time
//	declaredCordons         the same, of the cordons that the Node's annotation declares
//	falls                   made with the first device that becomes unhealthy
//	    <resource name>     a bucket
//	        <device ID>     JSON of device.Falls: when it became unhealthy, health.command's objection, and until when it is suspended
//	places                  made with the first device outside the first pool of its resource
//	    <resource name>     a bucket
//	        <device ID>     the number of its pool in ResourceSlices, in decimal digits
//	uncounted               made with the first resource that is offered through claims after the Node has shown it
//	    <resource name>     JSON of uncounting: when devmgrd took it off the Node
//	claims                  made with the first start that offers resources through claims
//	    record              one byte
//	retired                 made with the first resource that is forgotten
//	    <resource name>     one byte, or JSON from an older version: the Node may still show the resource
//
// The history, history.db:
//
//	meta                    as in the state file; its versions are its own
//	open                    spans that have not ended
//	    <key>               JSON of device.Span; the key is its beginning in ns since 1970 and its number, 8 bytes each, big-endian
//	ended                   spans that have ended, the oldest first
//	    <key>               JSON of device.Span; the key is its end and its number, likewise
//	actions                 made with the first one
//	    <key>               JSON of device.Action; the key is its time and a number, likewise
//	ownActions              the same, of what devmgrd itself has done to devices
//
// One pod is one key, so that all of its assignments become durable in one commit or none does, and a release is one
// deletion. One device is one key, so that a change of health among 50 000 writes a few pages and not the whole list.
//
// Promises:
//
//   - When SavePods or SavePlugin returns nil, what it was given is on disk (bbolt syncs each commit), in the file that
//     has the state file's name. If another process removes or replaces that file, saving fails from then on.
//   - Saving a record that is there already writes nothing, unless the write before has failed.
//   - When a commit fails (EIO), SavePods or SavePlugin returns the error, Check has it until a commit succeeds, and the next one writes in any case. bbolt
//     then reads the file again through its mapping: if that fails too, SIGBUS ends the process. At the start a read that fails with EIO is damage; any
//     other EIO ends the start.
//   - Damage is found. The package reads a file as a whole before it opens it, and trusts none of it (pages.go, inspect.go):
//     one flipped bit is found wherever it is, except in unused space.
//   - Open never changes a file that it does not understand: it refuses a file of a newer version, a damaged one and one of
//     another program, with its path, the reason and the remedy.
//   - Recover continues where Open refuses a damaged file: it renames the file to a name with the time, and never deletes or
//     overwrites such a file. It returns the records also if the disk cannot be written.
//   - An unreadable record of a pod is damage. An unreadable record that can be had again (a plugin's, a place), or on which no
//     assignment depends (a fall, a span), is left out. An unreadable cordon stays in force, without its reason.
//   - Two pods with one device are not damage: both records are returned, and device.Conflicts names them.
//   - OpenHistory never fails, and no damage to the history, before its start or in use, touches the state file or ends the
//     process. The two share the lock, and no mutex and no commit.
//   - A second devmgrd is refused with the pid of the first.
package store
