// Package systemd holds the units under which devmgrd runs, and their tests. There is no code in it.
package systemd
