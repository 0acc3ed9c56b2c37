// Package systemd holds the unit under which devmgrd runs, and its tests. There is no code in it.
package systemd
