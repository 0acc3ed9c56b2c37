package cli

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/devmgrd/devmgrd/client"
	"github.com/devmgrd/devmgrd/internal/cli/internal/table"
)

// What plugins have said neither steers a terminal nor hides in it: in tables, and in the daemon's errors.
func TestForeignText_IsSeen(t *testing.T) {
	const foreign = "GPU-\u202e0-UPG\u2066\u200b\x1b]0;x\u009b2J\xff"
	const want = "GPU-⟨U+202E⟩0-UPG⟨U+2066⟩⟨U+200B⟩␛]0;x⟨U+009B⟩2J\ufffd"
	var printed, failed bytes.Buffer
	rows := table.New(&printed, "DEVICE")
	rows.Row(foreign)
	rows.End()
	c, err := client.New("/nowhere")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	report(&failed, c.Diagnose(status.Error(codes.NotFound, "there is no device "+foreign)))
	report(&failed, errors.Join(errors.New("one "+foreign), errors.New("two")))
	if got := printed.String(); !strings.Contains(got, want) {
		t.Errorf("the table is %q, want %q in it", got, want)
	}
	if got, want := failed.String(), "devmgrd: there is no device "+want+"\ndevmgrd: one "+want+"\ndevmgrd: two\n"; got != want {
		t.Errorf("the errors are %q, want %q", got, want)
	}
}
