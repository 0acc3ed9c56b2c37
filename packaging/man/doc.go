// Command man writes devmgrd's manual pages: one for each command by cobra's own writer, and devmgrd.yaml(5) from the reference of
// the configuration. It is a module of its own, so that the daemon's binary has no Markdown parser.
//
//	SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) go -C packaging/man run . /tmp/pages
package main
