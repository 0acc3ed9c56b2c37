// Package apparmor holds the AppArmor profile of the service, and its tests. There is no code in it.
package apparmor
