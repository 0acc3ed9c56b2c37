// Package history records which container had which devices, with beginning and end.
//
//	recorder.go    follows the allocator's changes and writes them
//	spans.go       the open spans and the unwritten ones: plain data
//
// A span begins with the change that publishes an assignment and ends with the change that frees the devices. While a
// container of an ended pod still lives, the span continues. If devmgrd did not see a beginning or an end, because it was away
// or the recorder has fallen behind, the span has the time at which devmgrd noticed, and is marked so.
//
// Promises:
//
//   - An allocation never waits for the recorder: it follows the allocator's feed like any reader, and writes at most once a
//     second.
//   - A crash loses at most that second. At its start the recorder compares the open spans with the allocations: a span
//     continues if its container still has the same devices, and ends otherwise. No span is recorded twice.
//   - The history is bounded: MaxEnded ended spans, none older than MaxAge, of about maxBytes in total. The oldest spans go
//     first, in the same commit as the new ones.
//   - A write costs as much as the changes and not as the history, which is read only for queries.
//   - While the disk cannot be written, due records wait in memory, within the same bounds. If the file cannot be read at the
//     start, its spans are loaded when it becomes readable.
//
// Run's goroutine is the only one, and the only writer.
package history
