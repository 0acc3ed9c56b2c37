// Package containers keeps the container runtime's containers, as far as the runtime has reported them, and the devices that
// containers have and the state file does not assign to them. It has no lock, no clock and no I/O. It belongs to the allocator.
package containers
