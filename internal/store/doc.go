// Package store keeps devmgrd's durable data in two bbolt files: the state file, on which assignments depend, and the
// history, on which none does.
//
// It owns the schemas of both files, their versions and migrations, and the lock that keeps a second devmgrd from them. It
// makes no decisions: the allocator decides what a pod holds, the registry what a plugin offers, and the recorder what to keep.
//
// The state file, state.db:
//
//	meta
//	    version             8 bytes, big-endian: the schema's number, raw so that every version can read it
//	    check               4 bytes: CRC-32 of version; every version from 2 on has it
//	    sum                 8 bytes, big-endian: of all records below (sum.go)
//	pods
//	    <pod UID>           JSON of device.PodRecord: the pod's demand and, once settled, its assignments
//	plugins
//	    <resource name>     a bucket
//	        record          JSON of pluginRecord: the plugin's socket, whether it has listed its devices, and since
//	                        when it has been away
//	        devices         a bucket
//	            <device ID> one byte (bit 0: healthy, bit 1: dated), the date as a signed varint, the NUMA nodes as unsigned
//	                        varints
//	cordons                 created with the first cordon
//	    <resource name>     a bucket
//	        <device ID>     JSON of device.Cordon: reason and time
//	retired                 created with the first forgotten resource
//	    <resource name>     JSON of retirement: time; the Node may still show the resource
//	history                 of older versions; OpenHistory moves its open and ended to the history
//
// The history, history.db:
//
//	meta                    as in the state file; its versions are independent
//	open                    open spans
//	    <key>               JSON of spanRecord; the key is its beginning in ns since 1970 and its number, 8 bytes each, big-endian
//	ended                   spans that have ended, the oldest first
//	    <key>               JSON of spanRecord; the key is its end and its number, likewise
//	actions                 created with the first action
//	    <key>               JSON of actionRecord; the key is its time and a number, likewise
//
// One pod is one key, so all of its assignments become durable in one commit or none does, and a release is one deletion.
// One device is one key, so a change of health among 50 000 devices writes a few pages and not the whole list.
//
// Promises:
//
//   - When SavePods or SavePlugin returns nil, the records are on disk (bbolt syncs each commit), in the file that has the
//     state file's name. If that file is removed or replaced, every later save fails.
//   - Saving an equal record writes nothing, unless the previous write has failed.
//   - Reads return only data that was written. The store reads the whole file before it opens it, without trusting any of it
//     (pages.go, inspect.go): a flipped bit is either detected or in an unused part of the file.
//   - Open never changes a file that it does not understand. It refuses a file that is newer, damaged or another program's
//     with path, reason and remedy.
//   - Recover continues where Open fails because of damage: it sets the file aside under a name with the time, and never
//     deletes or overwrites one. It returns the readable content even if the disk cannot be written.
//   - An unreadable pod record is damage. An unreadable plugin record is left out, because the plugin sends it again. An
//     unreadable span is left out too, because no assignment depends on it.
//   - Two pods with one device are not damage: both records are returned, and State.Contradictions names them.
//   - OpenHistory never fails. No damage to the history, before its start or in use, touches the state file or ends the
//     process. The two files share the lock, but no mutex and no commit.
//   - A second devmgrd is refused with the pid of the first.
package store
