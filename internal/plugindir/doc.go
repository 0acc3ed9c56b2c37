// Package plugindir keeps the directories of plugin pods on disk. It is a base package, next to shareddir.
//
// Each plugin pod has its own directory, with devmgrd's kubelet.sock and the pod's own sockets. So the directory of a
// registration identifies the plugin's pod, and no plugin sees another plugin's sockets:
//
//	ROOT/                    root only; runDir/plugins
//	  POD-UID/               root only
//	    owner.json           the pod
//	    device-plugins/      mounted into the pod's containers in place of the kubelet's
//	    plugins_registry/    likewise
//
// The pod's processes write the two lowest directories, so all access to them goes through package shareddir. Only devmgrd
// writes the directories above.
//
// A directory counts when it has owner.json, which is created last. The directories date from the current boot: no
// container outlives a boot.
package plugindir
