// Package feed keeps the latest changes of the pods' allocations for readers, who follow them from a revision on. It is pure
// except for the channel that wakes readers: the allocator guards a Feed with its lock, and hands in the time of each change.
//
// A Feed is a ring: it keeps the newest changes up to a number and a weight, the estimate of their memory. A reader who has
// fallen behind takes a new snapshot. Values are immutable, so readers and the feed share them.
package feed
