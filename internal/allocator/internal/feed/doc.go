// Package feed keeps the latest changes of the pods' allocations for readers, who follow them from a revision on. It is pure
// except for the channel that wakes readers: the allocator guards a Feed with its lock, and hands in the time of each change.
//
// A Feed is a ring: it keeps the newest changes up to a number and a weight, the estimate of their memory, so that a watch can resume. A reader who has
// fallen behind takes a new snapshot: free while nothing changes, and otherwise one pointer for each pod. Values are immutable, so readers and the feed
// share them. The next change closes the channel that wakes readers. No reader can block a writer.
package feed
