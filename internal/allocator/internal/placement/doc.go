// Package placement chooses the devices of a pod's containers. It is pure: it has no clock, no log and no I/O, and reads the ledger without
// changing it. The allocator calls it under its lock, and carries out the choice.
//
//	Plan        choose devices for all containers of a pod, or return why it waits        plan.go, draft.go
//	selections  the devices that the pod's patterns select                                selection.go
//	Order       which of several equal devices come first: lowest, pack, spread, oldest   order.go
//	search      find the smallest sets of NUMA nodes with enough devices                  topology.go
//	Preference  what a plugin is asked, and whether its answer matches                    preference.go
//
// A plan goes through the pod's containers in order and takes devices from one draft for each resource: devices that the
// container already has, devices of the pod's init containers, then free devices. A draft shares the ledger's set of free devices until the
// plan takes the first of them. A bounded search over counts chooses the NUMA nodes. Strict policies try one set of nodes after the other, until all
// containers fit.
//
// A second, slow planner (twin_test.go) must agree with Plan on random input.
//
// # Near
//
// Plugins report the NUMA nodes near each device: one, several or none. For all resources of a container together, or of the pod (Topology.Scope), the search looks
// for the smallest set of nodes with enough devices, counting those that are certain. Sets of one size come in the order of their nodes: by number, as
// in the kubelet's topology manager, or by free devices where pack or spread counts NUMA nodes.
//
//	best-effort       prefers such a set, and fills up from elsewhere
//	single-numa-node  requires one node
//	restricted        requires as few nodes as would suffice if all listed devices were free
//
// The last two are strict: without such a set the pod waits with TopologyMismatch. A shortage of devices is reported before any mismatch. Devices without
// NUMA nodes suit any set. The cost depends on the number of distinct lists of nodes, not on the number of devices, and has a bound for the
// whole plan (maxWork, docs/decisions/0011).
//
// # Preference
//
// A plugin with GetPreferredAllocation is asked where there is a choice: which of the near devices or, if all of those are needed, which further
// ones. must_include names the certain devices. A plan takes the valid part of an answer, and fills up as without it.
//
// # Exceptions
//
// An app container or sidecar keeps the devices of an earlier init container that it is assigned too. A later init container that is assigned such devices
// does not keep them from the containers after it. A
// device that a claim names (Demand.Fixed) belongs to the containers with that claim, and no container of the pod gets it by number. A pod's patterns
// (Demand.Select) limit each step.
package placement
