// Package registry registers device plugins and follows their devices.
//
// It serves the Registration service of the device plugin API (v1beta1), calls plugins that wait for a call in a directory
// (pluginregistration/v1), follows each registered plugin, and keeps the latest inventory of each resource. It also makes
// the calls to plugins: Allocate, GetPreferredAllocation and PreStartContainer.
//
// # Components
//
//	Registry            the API; one mutex over the resources                    registry.go, calls.go
//	resourceState       one resource: inventory, state, registration             resource.go
//	registration        one plugin's registration: serves, dials back, ends      registration.go
//	session             one connection to a plugin, used once                    session.go
//	lister              converts one stream's messages to inventories            inventory.go
//	deviceList          an inventory with the age of each device                 devicelist.go
//	budget              the memory of all plugins' lists together                budget.go
//	room                forgets a lost resource for a new one                    room.go
//	directory           a registration directory: the common one, or a pod's     directory.go
//	home                its paths, and the checks of plugins' endpoints          endpoint.go
//	sweep               removes dead sockets of plugins                          sweep.go
//	socket              kubelet.sock: bound, watched, restored                   socket.go, watch.go
//	pluginWatcher       the registry directory, with a watchedSocket per socket  pluginwatcher.go
//	watchedSocket       one plugin that waits for a call                         watchedsocket.go, info.go
//	registrationServer  serves kubelet.sock, with bounds and queues              callers.go
//
// # Order of events
//
// A plugin listens on its own socket in the socket directory and calls Register. The registry checks its name, endpoint and
// socket and opens a session (connect, then GetDevicePluginOptions once). Only then does the registration replace its
// predecessor, and Register returns. ListAndWatch starts afterwards. Each message is complete: it replaces the inventory.
// Until the first message the predecessor's inventory stays, so a plugin's roll-out leaves no gap.
//
// A plugin that is connected and has not listed its devices yet counts as up. The earlier offer keeps its state, and is Lost
// after the grace period.
//
// When the stream ends the offer is Stale at once and Lost after the grace period. Meanwhile the registration dials back:
// with a growing pause (two minutes for a plugin that has never listed and ends the stream itself), or a moment after the
// plugin's socket is recreated. Without a file, or with a file on which no process listened until the offer was Lost, the
// registration only waits for a new file.
//
// At its start the registry dials recorded plugins (Config.Known), so plugins that never register twice survive a restart of
// devmgrd. Until such a plugin lists its devices its offer is Lost if it was Lost before the restart, and Stale otherwise.
// The grace period of an absent plugin continues over the restart, but the plugin has at least dialTime. So no restart of
// devmgrd increases published capacity.
//
// # Directories
//
// Plugins of the host register in the common directory (Config.SocketDir). Each plugin pod has its own directory, below
// Config.PluginsDir: the NRI hook requests it (Directory) before the pod's first container has its mounts. It has the same
// two subdirectories, a kubelet.sock, and a watch. A registration belongs to the pod of its directory, and an endpoint leads
// to no other directory. The directory is removed with the pod's last sandbox (PodGone, PodsPresent), and with it the sockets
// of the pod's plugins: their resources are Stale and then Lost, until another pod registers them.
//
// # Registry directory
//
// Some plugins do not call Register. They put a socket into Config.RegistryDir, or up to four directories below it, and wait
// for GetInfo. The rest is as with Register, except that NotifyRegistrationStatus reports the result: success is reported
// just before the registration is accepted. If the plugin does not answer, it is not registered, and the serving plugin
// continues. A failed call is repeated, first after half a second and finally every two minutes, as long as the socket is
// the same file. A plugin of another type is told once to stay with the kubelet. Of several plugins of one resource at the
// start, the one with the newest socket wins.
//
// The socket is the registration: when the socket is removed or recreated, the registration that came through it ends, and
// no other. The end of a stream does not end the registration, which dials back, as all do. A replaced plugin is called
// once more if its successor is withdrawn.
//
// The endpoint is a path in the plugin's container, with devmgrd's directories in the place of the kubelet's. The registry
// converts it to the path on the host, in one spelling only, and never a link. After a restart of devmgrd, a recorded plugin
// with such a path is not dialled before the existing sockets have been called: otherwise it would have two streams, one after
// the other.
//
// # Hostile directories
//
// Plugins write in the socket directory and in the registry directory. The registry opens names there through package
// shareddir, and dials the descriptor that it has checked. It replaces a file, link or directory at kubelet.sock, and logs
// that; it leaves a socket alone on which another process listens. If a process removes kubelet.sock in a loop, the registry
// restores it 20 times at once, then once a second.
//
// # Sockets and resources
//
// A socket belongs to one resource. If another resource is registered there, the former one loses the socket and is Stale,
// then Lost, until a plugin registers it again.
//
// When plugins.maxResources is reached, the registry forgets the resource that has been Lost for the longest time, as
// "devmgrd forget" does: with its records and its capacity on the Node. A resource that a pod has or requests, or that has
// a cordoned device, stays.
//
// # Promises
//
//   - A refused registration changes nothing, and no registration is refused for a temporary reason.
//   - Only the current registration counts. Later messages of an older stream, and its end, change nothing.
//   - No stream counts for two resources, except from the moment that a plugin serves another resource on its old socket
//     until it registers that resource: a stream does not name its resource.
//   - Inventories are sorted, without duplicates, immutable, and shared between readers.
//   - A device that the plugin begins to list later has a date (Device.Added). A device that the plugin omitted for a while
//     keeps its date unless the plugin has listed a new one meanwhile. Dates survive restarts and never decrease.
//   - An unchanged list is not decoded, not signalled and not saved.
//   - A plugin gets one call at a time, as with the kubelet; plugins do not wait for each other.
//   - Nothing polls at rest, unless a directory cannot be watched, no watch covers a plugin's socket (behind a link, or in
//     neither directory), or a plugin in the registry directory cannot be registered.
//   - The mutex is never held across a call, a file access or a save. When Run returns, every goroutine has ended.
//
// # Leaving kubelet.sock behind
//
// A clean stop leaves the socket's file in place. Dialling fails at once either way, but many plugins react to its removal:
// plugins built on the common plugin managers stop serving, and others exit. With the file in place they continue to serve,
// and the next start finds them by dialling. That start renames a fresh socket over the dead one, which every watcher
// notices as a creation.
//
// Sockets of plugins stay: the kubelet deletes all of them at each start, and loses every plugin that watches nothing.
// Only sockets that refuse a connection, belong to no resource and are some minutes old are removed, at the start and, at
// most once in ten minutes, when a file is created in the socket directory.
//
// # Non-goals
//
// The package does not choose devices, judge plugins' preferences, track assignments, publish capacity or keep files. It
// publishes offers, and signals changes.
package registry
