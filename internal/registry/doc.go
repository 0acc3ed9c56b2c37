// Package registry knows who offers devices.
//
// It serves the Registration service of the device plugin API (v1beta1), calls plugins that wait for that in a directory
// (pluginregistration/v1), follows each plugin that has registered, and keeps the latest inventory of each resource. It
// also carries the calls to plugins: Allocate, GetPreferredAllocation and PreStartContainer.
//
// # The parts
//
//	Registry       the public door; one mutex over the supplies            registry.go, calls.go
//	supply         what is known of one resource: inventory, state, link   supply.go
//	link           one registration, supervised: serves, dials back, ends  link.go
//	session        one connection to a plugin, used once                   session.go
//	lister         turns one stream's messages into inventories            inventory.go
//	roster         an inventory, and since when each device is listed      roster.go
//	budget         what the lists of all plugins may cost together         budget.go
//	room           forgets a lost resource when another needs its place     room.go
//	directory      where plugins register: the common one, a pod's own     directory.go
//	home           its paths; where a plugin serves, checked               endpoint.go
//	sweep          removes dead sockets of plugins                         sweep.go
//	socket         kubelet.sock: bound, shown, watched, put back           socket.go, watch.go
//	pluginWatcher  a registry directory, and a candidate per socket        pluginwatcher.go
//	candidate      one plugin that waits to be called: asked, told         candidate.go, info.go
//	callers        in which directory it is dialled; bounds, and a line    callers.go
//
// # The order of events
//
// A plugin listens on a socket of its own in the socket directory and calls Register. Its name, its endpoint and its
// socket are checked, a session is opened (connect, then GetDevicePluginOptions once) and only then is the link put in
// place of its predecessor and Register answered. ListAndWatch starts afterwards. Each message is the plugin's full
// word: it replaces the inventory. Until the first one arrives the predecessor's inventory stays, so a plugin's
// roll-out leaves no gap.
//
// A plugin that is connected and has not listed its devices yet counts as up. What was offered before it connected counts
// as it did, and is Lost after the grace period.
//
// When the stream ends the offer is Stale at once and Lost after the grace period. Meanwhile the link dials back: with
// a growing pause (two minutes for a plugin that has never listed and ends the stream itself), or a moment after the plugin's socket file is made anew. Where there is no file, or nobody has
// listened behind it until the offer was Lost, it waits for that file alone.
//
// What the store remembers (Config.Known) is dialled at the start, which is how plugins that never register twice survive
// a restart of devmgrd. Until such a plugin lists its devices its offer is Lost if it was Lost before the restart, and
// Stale otherwise. The grace period of a plugin that was away goes on where it was, though the plugin has at least
// dialTime to be found. So no restart of devmgrd makes a published number rise.
//
// # The directories
//
// Plugins of the host register in the common directory (Config.SocketDir). Each plugin pod has one of its own, below
// Config.PluginsDir: the hook asks for it (Directory) before the pod's first container has its mounts. It has the same two parts, a
// kubelet.sock, and a watch. A registration belongs to the pod in whose directory it was made, and an endpoint leads nowhere
// else. The directory goes when the pod has no sandbox any more (PodGone, PodsPresent), and with it the sockets of the pod's plugins:
// their resources are Stale and then Lost, until another pod registers them.
//
// # The registry directory
//
// Some plugins do not call. They put a socket into Config.RegistryDir, or up to four directories below it, and wait to be
// asked who they are (GetInfo). From there on it is as with Register, but that they are told what comes of it
// (NotifyRegistrationStatus): that they are registered, just before they are put in place. One that does not hear it is not,
// and whoever serves goes on serving. What fails is tried again, after half a second at first and two minutes at last, for
// as long as the socket is the same file. A plugin of another type is told to stay with the kubelet, once. Where several
// wait at the start, the one with the newest socket wins.
//
// The socket is the registration: when it is removed, or made anew, the link that came through it goes, and none that came
// another way. What becomes of the stream is no concern of the socket, though: the link dials back, as all do. A plugin that
// was replaced is called once more if its successor is withdrawn.
//
// The endpoint is a path as the plugin's container has it, with our directories in the place of the kubelet's. It is turned
// into the path here, spelled in one way only, and never a link. After a restart of ours, a remembered plugin that came
// this way, as the path shows, is not dialled before the sockets that are there have been called: it would have two
// streams, one after the other.
//
// # Hostile directories
//
// Plugins write in the socket directory and in the registry directory. Names there are opened through package shareddir, and
// what is dialled is the descriptor that was checked. A file, link or directory at kubelet.sock is replaced and told; a socket on
// which another process listens is left alone. A process that removes kubelet.sock in a loop has it back 20 times at once, then
// once a second.
//
// # Sockets and resources
//
// A socket belongs to one resource. If another resource is registered there, its former owner loses it and is Stale,
// then Lost, until a plugin registers it again.
//
// Where plugins.maxResources is reached, the resource that has been Lost for the longest time is forgotten for a new one,
// as "devmgrd forget" would do it: with all that is known of it and its number on the Node. One that a pod has or wants,
// or that has a cordoned device, stays.
//
// # Promises
//
//   - A refused registration changes nothing, and none is refused for a passing reason.
//   - Only the current link is heard. What an older stream still sends, and its end, touch nothing.
//   - No stream is heard under two resources, except from the moment that a plugin serves another resource on its old
//     socket until it registers it: the API does not say on a stream whose it is.
//   - Inventories are sorted, without doubles, immutable, and shared between readers.
//   - A device that the plugin begins to list later is dated (Device.Added), one that it left out for a
//     while keeps its date unless the plugin has listed a new one meanwhile. Dates survive restarts and never go back.
//   - A list that brings nothing new is not decoded, not signalled and not saved.
//   - A plugin is asked one thing at a time, as the kubelet does; plugins do not wait for each other.
//   - Nothing polls at rest, unless a directory cannot be watched, a plugin's socket is where no watch sees it (behind a
//     link, or in neither directory), or one in the registry directory waits to be called and cannot be taken up.
//   - The mutex is never held across a call, a file access or a save. When Run returns, every goroutine has ended.
//
// # Leaving kubelet.sock behind
//
// A clean stop leaves the socket's file where it is. A plugin that dials it is refused at once either way, but its
// removal is an order to many plugins: those built on the common plugin managers stop serving when it vanishes, and
// others exit. Left alone they go on serving, and the next start finds them by dialling. That start renames a fresh
// socket over the dead one, which every watcher takes for the creation it waits for.
//
// Sockets of plugins stay: the kubelet deletes all of them at each start, and loses every plugin that watches nothing.
// Only those that refuse a connection, belong to no resource and are some minutes old are removed, at the start and, at
// most once in ten minutes, when a file is made in the socket directory.
//
// # What it does not do
//
// It does not choose devices, judge what a plugin prefers, know who holds them, publish numbers or keep files: it says what
// is offered, and that something has changed.
package registry
