// Package history remembers which container had which devices, from when to when.
//
//	recorder.go    follows who has what, and writes it down
//	spans.go       the spans that are open, and those that are not written yet: plain data
//
// A span begins with the change that shows an assignment, and ends with the one in which the devices are free again: of a pod
// that is over, but of which a container still lives, it goes on. What nobody saw happen, because devmgrd was away or the
// recorder has fallen behind, has the time at which it was noticed, and says so.
//
// Promises:
//
//   - An allocation never waits for it: it follows the board, as anybody may, and writes at most once a second.
//   - What a crash loses is that second. The history file knows who has what now, so the next start makes spans good that are open:
//     one goes on if its container still has the same devices, and is ended otherwise. None is there twice.
//   - It is bounded: MaxEnded spans that have ended, of which none is older than MaxAge and which take about maxBytes. The oldest
//     go first, in the same commit as what is new.
//   - A write costs what has changed and not what is remembered, which is read only when somebody asks.
//   - While the disk cannot be written, what is due waits in memory, within the same bounds. Spans in a file that cannot be read
//     at the start are taken up when it can be.
//
// Run's goroutine is the only one, and the only one that writes.
package history
