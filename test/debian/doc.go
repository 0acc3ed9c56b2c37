// Package debian makes Debian systems for tests that boot one: file systems with systemd, by debootstrap, and Debian's kernel. Both are
// kept in test/cluster's cache. It needs root on a Debian, and Debian's archive the first time.
package debian
