// Package device defines the vocabulary of devmgrd's packages: names, plain values and the arithmetic on them. It imports
// only the standard library, and uses no file, socket or clock.
//
//	a plugin offers devices         Offer, an Inventory of Devices and how far to trust it
//	a pod requests devices          PodDemand, one Demand per container that requests any
//	a plugin answers an allocation  Grant: what a container needs to use the devices
//	a container holds devices       Assignment, one Share per resource
//	a container may start or waits  Readiness, with a Reason to wait
//
// Values are replaced, never edited. A holder of an Inventory, a PodDemand or an Assignment may read it without a lock; no
// package writes into its maps and slices after handing the value over.
package device
