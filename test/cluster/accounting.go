package cluster

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// AccountVariable has a run print its processor time at its end, by program.
const AccountVariable = "TESTCLUSTER_ACCOUNT"

// accountPath is the file to which the kernel adds a record when a process of the run ends: acct(5).
func (r Run) accountPath() string { return filepath.Join(r.Dir, "account") }

// account has the kernel keep the run's account. The caller is process 1 of the run's namespace.
func (r Run) account() error {
	if os.Getenv(AccountVariable) == "" {
		return nil
	}
	if err := os.WriteFile(r.accountPath(), nil, 0o600); err != nil {
		return err
	}
	return unix.Acct(r.accountPath())
}

// accountRecord is the kernel's struct acct_v3.
type accountRecord struct {
	Flag, Version                          uint8
	TTY                                    uint16
	ExitCode, UID, GID, PID, PPID, Began   uint32
	Elapsed                                float32
	User, System, Memory, IO, Blocks       accountNumber
	MinorFaults, MajorFaults, PagesSwapped accountNumber
	Program                                [16]byte
}

// accountNumber is the kernel's comp_t: an exponent of three bits, to the base 8, and 13 bits of mantissa.
type accountNumber uint16

func (n accountNumber) time() time.Duration {
	return time.Duration(n&0x1fff) << (3 * (n >> 13)) * (time.Second / 100)
}

// spent is the processor time of the processes of one program.
type spent struct {
	processes int
	time      time.Duration
}

// processorTime describes how the processor time of all processes is divided among programs, the largest share first. The kernel rounds the
// times of a process down to hundredths of a second, so the rest is mostly that of short ones such as runc.
func (r Run) processorTime(all time.Duration) string {
	programs := map[string]spent{}
	rest := all
	content, _ := os.ReadFile(r.accountPath()) // none on a kernel without such accounts
	for file := bytes.NewReader(content); file.Len() > 0; {
		var record accountRecord
		if err := binary.Read(file, binary.NativeEndian, &record); err != nil {
			break
		}
		program := string(bytes.TrimRight(record.Program[:], "\x00"))
		used := record.User.time() + record.System.time()
		s := programs[program]
		programs[program] = spent{s.processes + 1, s.time + used}
		rest -= used
	}
	var text strings.Builder
	fmt.Fprintf(&text, "processor time: %.0f s", all.Seconds())
	for _, program := range slices.SortedFunc(maps.Keys(programs), func(a, b string) int { return cmp.Compare(programs[b].time, programs[a].time) }) {
		if s := programs[program]; s.time > all/100 {
			fmt.Fprintf(&text, ", %s %.1f of %d", program, s.time.Seconds(), s.processes)
		}
	}
	fmt.Fprintf(&text, ", short processes %.1f", rest.Seconds())
	return text.String()
}
