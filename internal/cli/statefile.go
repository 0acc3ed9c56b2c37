package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
	"github.com/devmgrd/devmgrd/internal/store"
	"github.com/devmgrd/devmgrd/internal/visible"
)

// newStoreCommand returns "devmgrd store".
func newStoreCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:     "store",
		Short:   "Verify, print or copy the state file and the history",
		Long:    "store verifies, prints or copies the files with devmgrd's current and past assignments.",
		Example: "  devmgrd store backup /root/state.db\n  devmgrd store verify --state /root/state.db",
	}, newVerifyCommand(), newDumpCommand(), newBackupCommand())
}

// withFileFlags adds the flags that name a state file and a history.
func withFileFlags(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().String("state", "/var/lib/devmgrd/"+store.FileName, "the state file, or a copy of one")
	cmd.Flags().String("history", "", "the history, or a copy of one (default "+store.HistoryName+" next to the state file, if there is one)")
	return cmd
}

// look reads the state file that the flag names.
func look(cmd *cobra.Command) (path string, b store.State, version uint64, err error) {
	path = flagValue(cmd.Flags().GetString, "state")
	b, version, err = store.ReadFile(path, warnings(cmd))
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("there is no state file %s; name it with --state", path)
	}
	return path, b, version, orCopy(err)
}

// lookHistory reads the history that the flag names, or the one next to the state file. Without one, path is empty.
func lookHistory(cmd *cobra.Command) (path string, past store.HistoryContent, err error) {
	path = flagValue(cmd.Flags().GetString, "history")
	named := path != ""
	if !named {
		path = filepath.Join(filepath.Dir(flagValue(cmd.Flags().GetString, "state")), store.HistoryName)
	}
	past, err = store.ReadHistoryFile(path, warnings(cmd))
	if errors.Is(err, fs.ErrNotExist) {
		if !named {
			return "", past, nil
		}
		err = fmt.Errorf("there is no history file %s", path)
	}
	return path, past, orCopy(err)
}

// orCopy adds a remedy for a file in use.
func orCopy(err error) error {
	if errors.As(err, new(*store.InUseError)) {
		return fmt.Errorf("%w; or make a copy with devmgrd store backup, and read the copy", err)
	}
	return err
}

func newVerifyCommand() *cobra.Command {
	return withFileFlags(&cobra.Command{
		Use:   "verify",
		Short: "Verify that the state file and the history are intact",
		Long: "verify checks each file as a whole: its pages, its records, and the checksum over all of them. It detects one flipped bit. In\n" +
			"the state file it also looks for devices that several pods have, which only a disk that has failed to write can cause. While\n" +
			"devmgrd runs, make a copy with store backup, and verify the copy.",
		Example: "  devmgrd store verify\n  devmgrd store verify --state /root/state.db",
		Args:    usage(noArguments),
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := verifyState(cmd)
			path, past, broken := lookHistory(cmd)
			if broken == nil && path != "" {
				fmt.Fprintf(cmd.OutOrStdout(), "%s is sound: schema version %d, %d spans, %d actions\n", path, past.Version, len(past.Spans), len(past.Actions))
			}
			return errors.Join(err, broken)
		},
	})
}

func verifyState(cmd *cobra.Command) error {
	path, b, version, err := look(cmd)
	if err != nil {
		return err
	}
	held := 0
	for _, p := range b.Pods {
		if len(p.Assignments) > 0 {
			held++
		}
	}
	counts := fmt.Sprintf("schema version %d, %d pods (%d with devices), %d resources, %d cordons", version, len(b.Pods), held, len(b.Plugins), len(b.Cordons))
	all := device.Conflicts(b.Pods)
	if len(all) == 0 {
		fmt.Fprintf(cmd.OutOrStdout(), "%s is sound: %s\n", path, counts)
		return nil
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s is intact, but contradicts itself: %s\n", path, counts)
	for _, c := range all {
		pods := lists.Map(c.Pods, func(p device.Pod) string { return fmt.Sprintf("%s (UID %s)", p, p.UID) })
		fmt.Fprintf(cmd.OutOrStdout(), "device %s of %s is assigned to %s\n", visible.Text(string(c.ID)), visible.Text(string(c.Resource)), visible.Text(strings.Join(pods, " and ")))
	}
	return fmt.Errorf("%s assigns %d devices to several pods; keep one pod of each, and delete the others", path, len(all))
}

func newDumpCommand() *cobra.Command {
	return withFileFlags(&cobra.Command{
		Use:   "dump",
		Short: "Print the state file and the history as JSON",
		Long: "dump verifies both files and prints their contents, including the environment variables that plugins have granted to\n" +
			"containers.",
		Example: "  devmgrd store dump --state /root/state.db | less",
		Args:    usage(noArguments),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, b, _, err := look(cmd)
			if err != nil {
				return err
			}
			_, past, broken := lookHistory(cmd)
			e := json.NewEncoder(cmd.OutOrStdout())
			e.SetIndent("", "  ")
			return errors.Join(e.Encode(dumped(b, past)), broken)
		},
	})
}

// dumped adds to the records what is a key, or the name of a bucket, in their files.
func dumped(b store.State, past store.HistoryContent) any {
	type of struct {
		Resource device.ResourceName `json:"resource"`
		ID       device.ID           `json:"id"`
	}
	type plugin struct {
		Resource device.ResourceName `json:"resource"`
		device.PluginRecord
		Devices []device.Device `json:"devices"`
	}
	type cordon struct {
		of
		device.Cordon
		Declared bool `json:"declared,omitempty"`
	}
	type falls struct {
		of
		device.Falls
	}
	type span struct {
		Number uint64 `json:"number"`
		device.Span
	}
	type action struct {
		At  time.Time `json:"at"`
		Own bool      `json:"own,omitempty"`
		device.Action
	}
	return struct {
		store.State
		Plugins []plugin
		Cordons []cordon
		Falls   []falls
		Spans   []span
		Actions []action
	}{
		b,
		lists.Map(b.Plugins, func(r device.PluginRecord) plugin { return plugin{r.Resource, r, r.Devices} }),
		lists.Map(b.Cordons, func(c device.Cordon) cordon { return cordon{of{c.Resource, c.ID}, c, c.Declared} }),
		lists.Map(b.Falls, func(r device.Falls) falls { return falls{of{r.Resource, r.ID}, r} }),
		lists.Map(past.Spans, func(s device.Span) span { return span{s.Number, s} }),
		lists.Map(past.Actions, func(a device.Action) action { return action{a.At, a.Own, a} }),
	}
}

func newBackupCommand() *cobra.Command {
	cmd := withSocketFlag(&cobra.Command{
		Use:     "backup FILE",
		Short:   "Copy the state file, or the history, while devmgrd runs",
		Long:    "backup requests a copy of the current file from the running daemon, verifies the copy, and stores it at FILE.",
		Example: "  devmgrd store backup /root/state.db\n  devmgrd store backup --history /root/history.db",
		Args:    usage(oneFile),
		RunE:    backup,
	})
	cmd.Flags().Bool("history", false, "copy the history instead of the state file")
	return cmd
}

func backup(cmd *cobra.Command, args []string) error {
	to, history := args[0], flagValue(cmd.Flags().GetBool, "history")
	if _, err := os.Lstat(to); err == nil {
		return fmt.Errorf("%s already exists; choose another name", to)
	}
	draft, err := os.CreateTemp(filepath.Dir(to), "."+filepath.Base(to)+".") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		draft.Close()
		os.Remove(draft.Name())
	}()
	n := int64(0)
	err = call(cmd, askLimit*6, func(ctx context.Context, c adminv1.AdminServiceClient) error {
		stream, err := c.Backup(ctx, &adminv1.BackupRequest{History: history})
		for err == nil {
			var part *adminv1.BackupResponse
			if part, err = stream.Recv(); err == nil {
				_, err = draft.Write(part.Data)
				n += int64(len(part.Data))
			}
		}
		if errors.Is(err, io.EOF) {
			return draft.Sync()
		}
		return err
	})
	if err != nil {
		return err
	}
	if history {
		_, err = store.ReadHistoryFile(draft.Name(), warnings(cmd))
	} else {
		_, _, err = store.ReadFile(draft.Name(), warnings(cmd))
	}
	if err != nil {
		return fmt.Errorf("verifying the copy: %w", err)
	}
	if err := os.Link(draft.Name(), to); err != nil { // fails if the file exists by now
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s: %d bytes, verified\n", to, n)
	return nil
}

// warnings returns the log of a command that prints its own findings.
func warnings(cmd *cobra.Command) *slog.Logger {
	return slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}
