// Package holdings records which pod holds which device: free, held or assigned, quarantined for a container that runs with it, or
// withheld because it may be in use under another ID. It has no lock and no I/O. It belongs to the allocator, which knows the pods
// and decides when devices are held and released.
package holdings
