// Package history remembers which container had which devices, from when to when.
//
//	journal.go     records what devmgrd does to devices on its own
//	recorder.go    follows the assignments, and writes spans
//	spans.go       the open spans, and those that are not written yet: plain data
//
// A span begins with the change that adds an assignment, and ends with the change that releases its devices: it stays open until
// the devices of an ended pod are proved free. If devmgrd was down or the recorder was behind, the time is that at which the
// recorder noticed the change, and is marked approximate.
//
// Promises:
//
//   - No allocation waits for the history: the recorder follows the allocator's feed, and writes at most once a second.
//   - A crash loses at most that second. The state file has the current assignments, so the next start repairs open spans: a span
//     continues if its container still has the same devices, and is ended otherwise. No span is recorded twice. Of ended spans a start reads
//     only the keys.
//   - The history is bounded: MaxEnded ended spans, none older than MaxAge, about maxBytes together. The oldest are deleted first,
//     in the commit that adds new ones.
//   - The cost of a write depends on the changes, not on the size of the history, which is read only for a request.
//   - While the disk cannot be written, changes wait in memory, within the same bounds. If the file cannot be read at the start,
//     its spans are added when it can be.
//
// Run's goroutine is the only one of a Recorder, and of a Journal. Package admin writes operators' actions to the same file.
package history
