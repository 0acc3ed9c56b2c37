// Package selinux holds the sources of the SELinux module of the service, and its tests. There is no code in it.
package selinux
