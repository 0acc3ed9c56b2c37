// Package statuspage serves the status page: the state of the node on one page, at / of metrics.listen. It shows the answers of
// the admin API (devmgrd.admin.v1) in the same words as the commands, and changes nothing.
//
//	page.go      the paths and the headers
//	rendering.go one rendering for all readers, and when it expires
//	stream.go    tells a browser that there is a newer page
//	gather.go    the calls, and the limits of the page
//	model.go     turns answers into the template's values: pure
//	grid.go      the devices of these values
//	text.go      words and times; escapes foreign text: pure
//	page.html    the template, page.css and page.js, which go into it
//
// Promises:
//
//   - Without readers it costs nothing: no goroutine, no timer, no memory but the last page.
//   - For any number of readers and changes there is one rendering at a time, at most one a second, and at most a twentieth of
//     the time. No lock is held while the server writes to a client or calls the admin API.
//   - The browser loads nothing from elsewhere: style, script and pictures are in the page, and its policy forbids all else.
//   - The size of the page has a limit, whatever plugins list, and so has the memory that a rendering takes: it reads devices one by
//     one and keeps those that it shows. The page names what it leaves out, with the command that shows it.
//   - The page is complete without the script; the script only updates it.
//
// # How it stays up to date
//
// The browser opens the stream /events. The server sends the tag of each newer page, and a beat every few seconds. If the browser does not
// have that page yet, it fetches / again and changes the elements that differ: scroll position, focus and open details stay.
// Components do not signal changes of their readiness, so a page is rendered at each beat. A browser closes the stream of a page
// in the background. If there are too many streams, the browser fetches the page every few seconds. Without the script the page
// reloads itself.
//
// # Access
//
// Every client that reaches the address can read the page: it has no login, like /metrics at the same address, and shows names of
// pods and devices. The default address is 127.0.0.1. The server checks the Host header of each request.
package statuspage
