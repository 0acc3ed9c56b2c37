// Package registry knows the device plugins and the devices that they offer.
//
// It serves the Registration service of the device plugin API (v1beta1), calls plugins that wait for that in a directory
// (pluginregistration/v1), follows each registered plugin, and keeps the latest inventory of each resource. It also makes the
// calls to plugins: Allocate, GetPreferredAllocation and PreStartContainer.
//
// # The parts
//
//	Registry       the public API; one mutex over the resources           registry.go, calls.go
//	resourceState  one resource: inventory, state, registration           resource.go
//	registration   one registration, supervised: serve, dial back, end    registration.go
//	               further plugins of a resource, in reserve              instances.go
//	session        one connection to a plugin, used once                  session.go
//	intake         what a plugin's message takes before it is whole       intake.go
//	lister         turns a stream's messages into inventories             inventory.go
//	messages       a stream's lists, without repetitions                  messages.go
//	deviceList     an inventory, with the time each device was added      devicelist.go
//	budget         the memory of all plugins' lists together              budget.go
//	quota          a plugin pod's part of all names and lists             quota.go
//	restarts       limits the log lines of a plugin that keeps crashing   restarts.go
//	room           forgets a lost resource when another needs its place   room.go
//	directory      where plugins register: the common one, a pod's own    directory.go
//	location       its paths; checks a plugin's endpoint                  endpoint.go
//	sweep          removes dead sockets of plugins                        sweep.go
//	socket         kubelet.sock: bind, publish, watch, restore            socket.go, watch.go
//	pluginWatcher  a registry directory, with a watchedSocket for each    pluginwatcher.go
//	watchedSocket  one plugin that waits to be called: ask, notify        watchedsocket.go, info.go
//	server         the Registration service on kubelet.sock               server.go
//	saver          writes plugins' records, at most once a second         saver.go
//	callers        which directory a caller dialled; turns of clients     callers.go
//
// # The order of events
//
// A plugin listens on its own socket in the socket directory and calls Register. The registry checks the resource name, the
// endpoint and the socket, opens a session (connect, then GetDevicePluginOptions once), and only then accepts the
// registration and answers Register. ListAndWatch starts afterwards. Each message is the plugin's full list and replaces the
// inventory. If another plugin serves the resource, it goes on until the newer one sends its first list, and then waits in reserve (instances.go). With
// plugins.onDuplicate: reject the registry refuses the newer one until the former is Stale.
//
// A plugin that is connected and has not listed its devices yet counts as up. The resource's former state stays, and
// becomes Lost after the grace period.
//
// When the stream ends, the offer is Stale at once and Lost after the grace period. The registration dials back after 0.1 s, then after
// pauses that double up to 5 s (two minutes for a list that has no room or a plugin that a rule refuses, or that ends its first stream without a list), or a moment after the plugin's
// socket file is recreated. It waits for the file alone if there is no file, or if no process has listened there until the
// offer was Lost.
//
// At the start the registry dials the plugins of the state file (Config.Known), first the current one of each resource, then those
// in reserve: plugins that register once in their life survive a restart of devmgrd. Until such a plugin lists its devices, the
// offer is Lost if it was Lost before the restart, and Stale otherwise. The grace period of a disconnected plugin continues
// by the wall clock, from the machine's boot at the earliest, with at least dialTime to reach it. So no restart of devmgrd raises node capacity.
//
// # The directories
//
// Host plugins register in the common directory (Config.SocketDir). Each plugin pod has a directory of its own below
// Config.PluginsDir: the NRI hook asks for it (Directory) before the pod's first container gets its mounts. Both have the same
// two subdirectories, a kubelet.sock, and a watch. A registration belongs to the pod in whose directory it was made, and an
// endpoint never leads outside. The directory is removed when the pod has no sandbox left (PodGone, PodsPresent), with the
// sockets of the pod's plugins: their resources are Stale and then Lost, until another pod registers them.
//
// # The registry directory
//
// Some plugins do not call Register. They put a socket into Config.RegistryDir, or up to four directories below it, and wait
// for GetInfo. From there on they are handled like Register, except that the registry tells them the result
// (NotifyRegistrationStatus) just before it installs the registration. If the notification fails, the plugin is not
// registered and the current plugin keeps the resource. A failed attempt is retried after 0.5 s, doubling to two minutes, as
// long as the socket is the same file. devmgrd tells a plugin of another type once to stay with the kubelet. If several plugins wait
// at the start, the one with the newest socket wins.
//
// The socket is the registration: when it is removed or recreated, the registration that came from it ends. The end of the
// stream does not end the registration, which dials back as any other. A replaced plugin is called once more if its successor
// is withdrawn.
//
// The plugin reports its endpoint as seen inside its container. The registry maps it to one canonical host path and rejects
// symbolic links. After a restart of devmgrd a recorded plugin of this kind, known by its path, is not dialled before the
// sockets that are present have been called: it would have two streams, one after the other.
//
// # Hostile directories
//
// Plugins write in the socket directory and in the registry directory. The registry opens names there through package
// shareddir, and dials the descriptor that it has checked. It replaces a file, link or directory at kubelet.sock and logs that; it
// leaves alone a socket on which another process listens, and tries again until that process is gone; in the common directory, at the start, devmgrd ends instead (Listen). If a process keeps removing kubelet.sock, the registry restores it 20
// times at once, then once a second. A scan of a registry directory reads a limited number of files. A pause of 20 times its CPU time,
// and of the time of the calls that it leads to, follows, 25 s at most: a plugin that changes a large directory all the time, or replaces
// its sockets, delays the plugins of that directory alone.
//
// # Sockets and resources
//
// A socket belongs to one resource. If another resource is registered there, the former one loses the socket and is Stale,
// then Lost, until a plugin registers it again.
//
// At plugins.maxResources or plugins.maxTotalBytes, or a pod's quota of these (quota.go, decision 0034), the registry forgets the resource that has been Lost for
// the longest time, as "devmgrd forget" would: its records and its capacity on the Node. Some are kept (room.go).
//
// Where there is no room for the devices that a plugin adds to its list, these are left out; the others stay, and so does the stream. They are taken when there
// is room, unless the list is longer than 16 KiB: then with the plugin's next list.
//
// # Promises
//
//   - A refused registration changes nothing.
//   - Only the current registration counts. Messages of another stream, and its end, change only what its plugin has in reserve.
//   - No stream feeds two resources. Known gap: a stream does not name its resource, so a plugin that serves another resource on its old socket
//     feeds the former one until it registers the other.
//   - Inventories are sorted, without duplicates, immutable, and shared between readers.
//   - A device that the plugin begins to list later is dated (Device.Added). A device that the plugin leaves out for a while
//     keeps its date, unless a new one was listed meanwhile. Dates survive restarts and never go back, nor does
//     the newest one (Offer.Newest). A grant with a later date is from a list that was lost.
//   - A list without changes is not decoded, not signalled and not saved.
//   - Each plugin gets one call at a time, as from the kubelet; plugins do not wait for each other.
//   - At rest only what is refused or out of sight is tried again, after pauses: a directory that cannot be watched, a socket out of sight of the
//     watches (behind a link, or in neither directory), a socket in the registry directory that cannot be registered, a plugin whose list is refused,
//     and devices that are left out of a list.
//   - The mutex is never held across a call, a file access or a save. When Run returns, all goroutines of Registry.work have ended.
//
// # Leaving kubelet.sock behind
//
// A clean stop leaves the socket's file in place. A plugin that dials it is refused either way, but many plugins take its removal
// for an order: those built on the common plugin managers stop serving, and some exit. If the file stays, they go on serving,
// and the next start dials them. That start renames a new socket over the old one, which every watching plugin sees as the
// creation that it waits for.
//
// Sockets of plugins stay as well: the kubelet deletes all of them at each start, and so loses every plugin that does not watch.
// The registry removes only sockets that refuse a connection, belong to no resource and are some minutes old: at the start and,
// at most once in ten minutes, when a file is created in the socket directory.
//
// # Limits of the package
//
// It does not choose devices, judge a plugin's preference, know which pod holds them, publish capacity or write files.
package registry
