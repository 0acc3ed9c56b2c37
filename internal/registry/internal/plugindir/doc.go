// Package plugindir keeps the directories of plugin pods on disk. It is a base package, next to shareddir.
//
// Each plugin pod has a directory of its own, in which devmgrd's kubelet.sock and the pod's own sockets are. So the directory in
// which a plugin registers identifies its pod, and no plugin sees the sockets of another one:
//
//	ROOT/                    root's alone; runDir/plugins
//	  POD-UID/               root's alone
//	    owner.json           which pod it is
//	    device-plugins/      mounted into the pod's containers in the place of the kubelet's
//	    plugins_registry/    likewise
//
// The two at the bottom are written by the pod's processes, so whatever is done in them goes through package shareddir. What is
// above is devmgrd's alone.
//
// A directory counts when owner.json is there, which is made last. The directories are as old as the machine's boot: no
// container outlives it.
package plugindir
