// Package migrate moves a node from the kubelet's device manager to devmgrd, and back, with its pods running.
//
//	import.go     takes over the kubelet's checkpoint into the state file
//	aside.go      moves the kubelet's directory aside, so that the kubelet claims none of the devices
//	export.go     writes the state file as a checkpoint for the kubelet
//	migrate.go    what both need
//
// Neither the kubelet nor devmgrd runs meanwhile. Nothing is written before everything has been checked, and a run that was
// interrupted can be repeated. internal/checkpoint has the file and its conversion.
package migrate
