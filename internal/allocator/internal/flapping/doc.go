// Package flapping follows the devices of one resource that become unhealthy again and again, and suspends them: no pod is assigned a
// suspended device. It is pure: callers hand in the time, and keep the records on disk.
//
//	good         the device has fallen (become unhealthy) fewer than 3 times within an hour
//	suspended    after the third fall, for an hour or as configured, whatever its plugin says meanwhile; and while health.command objects
//	on probation after that for as long, and for an hour at least: the next fall suspends the device again, for twice as
//	             long as before, up to a day
//
// A restart of the plugin or of devmgrd changes none of this: a device that recovers because its plugin has been restarted has
// recovered, and its falls stay on the record.
package flapping
