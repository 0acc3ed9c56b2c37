// Package ledger records which pod has which device. It has no I/O, and no lock but the one of what a Listing remembers. It belongs to the
// allocator, which knows the pods and decides when devices are held and released. Package placement plans with it.
//
// A Ledger has one Resource for each resource. Only methods of the Ledger change which pod has a device: the exported methods of a Resource and of
// its Listing read, and a plan that changed the ledger would not compile.
//
//	state        the device is                                          enters by           leaves by
//	free         listed, usable, not taken, not withheld                what follows        Hold → held
//	held         set aside for a pod whose attempt is under way         Hold                EndHold → free, quarantined; a commit → assigned
//	assigned     a pod's by the state file                              a commit, Recall    Releasing → releasing; Release, EndHold → free
//	releasing    an ended pod's, and the proof that it is free is due   Releasing           Release → free; Releasing → busy, assigned
//	busy         likewise, and the proof has failed, or is late           Releasing           Release → free; Releasing → releasing, assigned
//	quarantined  that of a container that runs, without an assignment   Quarantine          EndQuarantine → free; Hold of its pod → held
//	withheld     perhaps one in use under an ID that is not listed      Withhold            Withhold → free
//	unusable     unhealthy or cordoned                                  Accept, SetListing  Accept, SetListing → free
//
// Taken are held, assigned, releasing, busy and quarantined devices. When its pod leaves, a taken device becomes free only if it is also usable, listed
// and not withheld. Where several pods have a device by one claim, all of them have to leave. The Ledger does not distinguish held
// from assigned, as the allocator does: a hold whose commit has failed lasts until a later commit, for instance.
//
// A container may run with a device that another pod has. Then the two are in dispute (Conflicting): the device stays the other pod's, and is
// quarantined when the other pod has released it.
//
//	hold     set a chosen device aside until the attempt has ended
//	release  take devices from a pod that has ended, once they are proved free
//	refused  lately, by the plugin, so that it is chosen last. One that is refused again and again is out of service for a while
//
// The files:
//
//	ledger.go                    the Ledger and its methods
//	quarantine.go, withheld.go   quarantined devices and disputes; withheld devices
//	refusals.go                  what the plugin has refused or granted
//	resource.go                  the Resource: its offer, and what pods request
//	holders.go, free.go          its taken devices; the index of its free devices, and the order of releases
//	capacity.go                  its Capacity, and other figures
//	listing.go                   a plugin's list of devices, prepared for look-ups: by ID, NUMA nodes, group and pods' patterns
//	status.go                    the state of each device, for queries
//	check.go                     compares the index with the devices, after each test
package ledger
