// Package page is the status page: what devmgrd knows of its node, on one page for people, at / of metrics.listen. It shows the
// answers that commands get (devmgrd.admin.v1) in the same words, and changes nothing.
//
//	page.go      the paths and the headers
//	look.go      one rendering for all who look, and when it is too old
//	stream.go    tells a browser that something has moved
//	gather.go    the questions, and the limits of what is shown
//	model.go     answers into what the template shows: pure
//	grid.go      the devices' part of that
//	text.go      words and times; foreign text made harmless: pure
//	page.html    the template, page.css and page.js, which go into it
//
// Promises:
//
//   - Without anybody who looks it costs nothing: no goroutine, no timer, no memory but the last page.
//   - However many look, and however fast things move, there is one rendering at a time, one a second at most, and a twentieth of
//     the time at most. No lock is held while a client is written to, or while a question is asked.
//   - Nothing is asked of anybody but this daemon: style, script and pictures are in the page, and its policy forbids all else.
//   - The size of the page has a limit, whatever plugins list. What is left out is said, with the command that shows it.
//   - What is true is on the page without the script; the script only saves the reader the reloading.
//
// # How it stays up to date
//
// The browser opens the stream /events. It gets the tag of the newest page whenever that is another one, and a beat every few
// seconds. If it has not got that page yet it fetches / again, and changes in its document what is different, element by element:
// scroll position, focus and open details stay. Parts of the daemon do not say when their readiness changes, so a page is made
// anew at each beat. A browser whose page is in the background closes its stream. One that gets no stream, because there
// are too many, fetches the page every few seconds. Where there is no script the page reloads itself.
//
// # Who may look
//
// Whoever reaches the address: there is no login, as for /metrics beside it, and names of pods and devices are on the page. By
// default that is 127.0.0.1. The server checks which names of the host a request may have, for the page as for the other paths.
package page
