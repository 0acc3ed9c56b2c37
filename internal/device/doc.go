// Package device holds the values that all packages of devmgrd share: names, plain structs and arithmetic on them. It uses only
// the standard library and package lists, and no file, socket or clock.
//
//	a plugin offers devices         Offer, an Inventory of Devices and how much to trust it
//	a pod wants devices             PodDemand, one Demand per container that asks for any
//	a plugin answers an allocation  Grant: what a container needs to use the devices
//	a container holds devices       Assignment, one Share per resource
//	a container's devices now       Readiness: of an unknown pod, no devices, ready, pending, or waiting with a Reason
//
// Values are replaced, never edited: a reader of an Inventory, a PodDemand or an Assignment needs no lock, and no package writes
// into its maps and slices after it has been handed over.
package device
