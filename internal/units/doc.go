// Package units runs commands as transient units of systemd: each in a control group of its own, with its output in the journal, and
// stopped with all its processes when its time is over. They run with the rights of a system service, and outside of devmgrd's sandbox.
//
// A command has ended when systemd says so. Its unit, of type oneshot with RemainAfterExit, keeps the result until it has been read:
//
//	activating     the command runs
//	active         it has succeeded; devmgrd has the unit stopped, which ends the processes that the command has left
//	deactivating   systemd ends the unit's processes
//	failed         the command has failed; Result and ExecMainStatus say how, unless the machine shuts down
//	inactive       the unit has been stopped, or systemd has forgotten it: what has come of the command is not known
//
// A process that hangs in the kernel survives SIGKILL. systemd then says that the unit has failed; devmgrd asks once a second whether the unit still has
// processes, and the command has ended when it has none.
//
// At a shutdown systemd ends all units, devmgrd later than the commands: devmgrd has to wait for the kubelet. How a command has failed then, by a signal,
// an exit code or a time limit, says nothing of what it is for, and is an error.
//
// systemd reports each change as a signal on the connection. A connection ends when systemd executes itself again, as at each upgrade of
// its package; devmgrd then connects again, asks for the state, and waits for signals as before. So Run returns too late rather than too
// early: while systemd does not answer, the command counts as running, and a result that is lost is an error and never a verdict.
package units
