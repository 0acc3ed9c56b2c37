package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/cli/internal/table"
)

// newHistoryCommand returns "devmgrd history".
func newHistoryCommand() *cobra.Command {
	cmd := withAskFlags(&cobra.Command{
		Use:   "history",
		Short: "Show which container had which devices, and when",
		Long: "history shows which container had which devices, and when, including containers that still have devices: all entries, or\n" +
			"those of one device or one pod. The newest 10 000 ended entries are kept, for up to 30 days. Times are UTC.\n\n" +
			"With --actions it shows what was done instead. Operators' commands: changes (cordon, uncordon, drain, forget) and\n" +
			"copies (store backup). Each has the user who logged in, and the process and its user, as the kernel reports them.\n" +
			"And devmgrd's own actions: suspend and resume (a device that fails again and again), busy and free (devices that a\n" +
			"process uses after the end of their pod). The newest 10 000 of both are kept, for up to a year.",
		Example: "  devmgrd history --device vendor.example/gpu/GPU-3\n  devmgrd history --pod default/training-0\n  devmgrd history --since 24h -o json\n" +
			"  devmgrd history --actions --device vendor.example/gpu/GPU-3",
		Args: usage(noArguments),
		RunE: func(cmd *cobra.Command, _ []string) error {
			request, err := historyRequest(cmd)
			if err != nil {
				return err
			}
			actions := flagValue(cmd.Flags().GetBool, "actions")
			switch {
			case actions && request.Name != "":
				return usageError{errors.New("--pod and --actions exclude each other: actions are on devices and resources")}
			case actions:
				return askActions(cmd, request)
			}
			return ask(cmd, adminv1.AdminServiceClient.ListHistory, request, showHistory)
		},
	})
	cmd.Flags().Bool("actions", false, "show what operators, and devmgrd itself, have done instead")
	cmd.Flags().String("device", "", "only this device: RESOURCE/DEVICE")
	cmd.Flags().String("pod", "", "only this pod: NAMESPACE/POD")
	cmd.Flags().Duration("since", 0, "only entries that had not ended this long ago, like 90m or 24h")
	return cmd
}

// historyRequest returns the request that the flags describe.
func historyRequest(cmd *cobra.Command) (*adminv1.ListHistoryRequest, error) {
	request := &adminv1.ListHistoryRequest{}
	if one := flagValue(cmd.Flags().GetString, "device"); one != "" {
		d, err := splitDevice(one)
		if err != nil {
			return nil, err
		}
		request.ResourceName, request.Id = d.ResourceName, d.Id
	}
	if pod := flagValue(cmd.Flags().GetString, "pod"); pod != "" {
		var err error
		request.Namespace, request.Name, err = splitPod(pod)
		if err != nil {
			return nil, err
		}
	}
	since := flagValue(cmd.Flags().GetDuration, "since")
	if since < 0 {
		return nil, usageError{fmt.Errorf("--since %s is in the future; write a positive duration, like 24h", since)}
	}
	if cmd.Flags().Changed("since") {
		request.Since = durationpb.New(since)
	}
	return request, nil
}

// askActions prints operators' commands and devmgrd's own actions.
func askActions(cmd *cobra.Command, of *adminv1.ListHistoryRequest) error {
	request := &adminv1.ListActionsRequest{Since: of.Since}
	if of.Id != "" {
		request.Subject = of.ResourceName + "/" + shown(of.Id)
	}
	return ask(cmd, adminv1.AdminServiceClient.ListActions, request, func(to io.Writer, answer *adminv1.ListActionsResponse, _ time.Time) {
		showActions(to, answer.Actions, userName)
	})
}

func showActions(to io.Writer, actions []*adminv1.Action, userName func(uid uint32) string) {
	t := table.New(to, "TIME", "ACTION", "SUBJECT", "LOGIN", "USER", "PROCESS", "RESULT", "REASON")
	for _, a := range actions {
		login, result := "-", "done"
		if a.LoginUid != nil {
			login = userName(*a.LoginUid)
		}
		if a.Error != "" {
			result = "failed: " + a.Error
		}
		user, process := userName(a.Uid), fmt.Sprintf("%s (%d)", cmp.Or(a.Program, "?"), a.Pid)
		if a.Own {
			user, process = "-", "devmgrd itself"
		}
		t.Row(moment(a.At, false), a.Verb, subjects(a), login, user, process, result, cmp.Or(a.Reason, "-"))
	}
	t.FlushOr("No such action is recorded.")
}

// subjects formats the subjects of an action as one cell. Their names are quoted already.
func subjects(a *adminv1.Action) string {
	few := a.Subjects[:min(len(a.Subjects), table.MaxListed/2)]
	text := strings.Join(few, ",")
	if more := len(a.Subjects) - len(few) + int(a.MoreSubjects); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// userName returns the name of a user of this machine, or the user's ID where there is no name.
func userName(uid uint32) string {
	number := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(number); err == nil {
		return u.Username
	}
	return number
}

func showHistory(to io.Writer, answer *adminv1.ListHistoryResponse, now time.Time) {
	t := table.New(to, "FROM", "UNTIL", "HELD FOR", "POD", "CONTAINER", "RESOURCE", "DEVICES")
	for _, s := range answer.Spans {
		until, end := "-", now
		if s.Until != nil {
			until, end = moment(s.Until, s.UntilApproximate), s.Until.AsTime()
		}
		held := ago(s.From, end)
		if s.FromApproximate || s.UntilApproximate {
			held = "about " + held
		}
		t.Row(moment(s.From, s.FromApproximate), until, held, s.Namespace+"/"+s.Pod, s.Container, s.ResourceName, table.IDs(s.DeviceIds))
	}
	t.FlushOr("No matching entries.")
}

// moment formats a time. With latest, the event happened at that time at the latest.
func moment(t *timestamppb.Timestamp, latest bool) string {
	text := t.AsTime().UTC().Format(time.RFC3339)
	if latest {
		return "by " + text
	}
	return text
}
