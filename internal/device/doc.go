// Package device holds the words that every other package of devmgrd speaks: names, plain values and the
// arithmetic on them. It knows no library but the standard one, no file, no socket and no clock.
//
//	a plugin offers devices         Offer, an Inventory of Devices and how much to trust it
//	a pod wants devices             PodDemand, one Demand per container that asks for any
//	a plugin answers an allocation  Grant: what a container needs to use the devices
//	a container holds devices       Assignment, one Share per resource
//	what a container may do now     Standing: pass, inject, wait or be refused with a Reason
//
// Values are replaced, never edited: whoever holds an Inventory, a PodDemand or an Assignment may go on reading it
// without a lock, and nobody writes into its maps and slices once it has been handed over.
package device
