// Package page renders the status page: devmgrd's view of its node, on one page for people, at / of metrics.listen. It shows the
// answers of the commands (devmgrd.admin.v1) in the same words, and changes nothing.
//
//	page.go      the paths and the headers
//	rendering.go one rendering for all browsers, and its expiry
//	stream.go    notifies browsers of changes
//	gather.go    the calls, and the limits of the page's content
//	model.go     answers into the template's model: pure
//	grid.go      the devices in that model
//	text.go      words and times; escapes foreign text: pure
//	page.html    the template, with page.css and page.js
//
// Promises:
//
//   - Without browsers the page costs nothing: no goroutine, no timer, no memory but the last page.
//   - With any number of browsers and any rate of change, there is one rendering at a time, one a second at most, and rendering
//     takes a twentieth of the time at most. No lock is held during a write to a client, or during a call.
//   - A browser contacts only this daemon: style, script and pictures are in the page, and its policy forbids all else.
//   - The size of the page has a limit, whatever plugins list. The page names what it omits, and the command that shows it.
//   - The page is complete without the script; the script only replaces reloading.
//
// # How it stays up to date
//
// The browser opens the stream /events. It receives the tag of each new page, and a beat every few seconds. For a new tag the
// script fetches / again, and changes its document only where the pages differ, element by element: scroll position, focus and
// open details stay. Components of the daemon do not signal changes of their readiness, so the page is rendered again at each
// beat. A browser with the page in the background closes its stream. A browser without a stream, because there are too many,
// fetches the page every few seconds. Without a script the page reloads.
//
// # Access
//
// Any client that reaches the address can read the page: there is no login, as for /metrics, and the page has names of pods and
// devices. The default address is 127.0.0.1. The server checks the host name of a request, for the page as for the other paths.
package page
