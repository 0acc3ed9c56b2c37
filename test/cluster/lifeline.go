package cluster

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// The lifeline is a socket between the supervisor and init. Each writes a byte when it is prepared: the supervisor
// when the run's description is complete, init when it can take signals. After that its only meaning is that both
// are alive.

// socketPair makes two connected sockets, which programs started later do not get by accident.
func socketPair() (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "lifeline"), os.NewFile(uintptr(fds[1]), "lifeline"), nil
}

// exchange says that this side is prepared and returns when the other is.
func exchange(lifeline *os.File) error {
	if _, err := lifeline.Write([]byte{1}); err != nil {
		return err
	}
	_, err := io.ReadFull(lifeline, make([]byte, 1))
	return err
}

// endWith ends this process when the other side has gone. The kernel does that too, but not for a supervisor that
// died before the new process could ask for it.
func endWith(lifeline *os.File) {
	_, _ = lifeline.Read(make([]byte, 1))
	os.Exit(exitFailed)
}
