package main

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

	"github.com/spf13/cobra"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/store"
)

// newStoreCommand makes "devmgrd store".
func newStoreCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "store",
		Short:   "Verify, print or copy the state file",
		Long:    "store looks into the file in which devmgrd keeps who holds what.",
		Example: "  devmgrd store backup /root/state.db\n  devmgrd store verify --state /root/state.db",
		Args:    usage(noSuchCommand),
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newVerifyCommand(), newDumpCommand(), newBackupCommand())
	return cmd
}

// addStateFlag adds the flag that names a state file.
func addStateFlag(cmd *cobra.Command) {
	cmd.Flags().String("state", "/var/lib/devmgrd/state.db", "the state file, or a copy of one")
}

// look reads the state file that the flag names.
func look(cmd *cobra.Command) (path string, b store.Books, version uint64, err error) {
	if path, err = cmd.Flags().GetString("state"); err != nil {
		return "", b, 0, err
	}
	b, version, err = store.Look(path, warnings(cmd))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = fmt.Errorf("there is no state file %s; name it with --state", path)
	case err != nil && errors.As(err, new(*store.InUseError)):
		err = fmt.Errorf("%w; or make a copy with devmgrd store backup FILE, and look into that", err)
	}
	return path, b, version, err
}

func newVerifyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check that the state file is what was written",
		Long: "verify reads the whole file and checks it: its pages, its records, and that one number that stands for all of them. One\n" +
			"flipped bit is found. While devmgrd runs make a copy, with store backup, and verify that.",
		Example: "  devmgrd store verify\n  devmgrd store verify --state /root/state.db",
		Args:    usage(noArguments),
		RunE: func(cmd *cobra.Command, _ []string) error {
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
			fmt.Fprintf(cmd.OutOrStdout(), "%s is sound: schema version %d, %d pods (%d with devices), %d resources, %d cordons\n",
				path, version, len(b.Pods), held, len(b.Plugins), len(b.Cordons))
			return nil
		},
	}
	addStateFlag(cmd)
	return cmd
}

func newDumpCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dump",
		Short: "Print what the state file holds, as JSON",
		Long: "dump verifies the file and prints what it holds. Among that is what plugins have granted to containers: environment\n" +
			"variables, too.",
		Example: "  devmgrd store dump --state /root/state.db | less",
		Args:    usage(noArguments),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, b, _, err := look(cmd)
			if err != nil {
				return err
			}
			e := json.NewEncoder(cmd.OutOrStdout())
			e.SetIndent("", "  ")
			return e.Encode(dumped(b))
		},
	}
	addStateFlag(cmd)
	return cmd
}

// dumped has cordons with their names, which in the file are keys.
func dumped(b store.Books) any {
	type cordon struct {
		Resource device.ResourceName `json:"resource"`
		ID       device.ID           `json:"id"`
		device.Cordon
	}
	all := make([]cordon, len(b.Cordons))
	for i, c := range b.Cordons {
		all[i] = cordon{c.Resource, c.ID, c}
	}
	return struct {
		store.Books
		Cordons []cordon
	}{b, all}
}

func newBackupCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "backup FILE",
		Short:   "Copy the state file while devmgrd runs",
		Long:    "backup asks the running daemon for a copy of its books as they are at this moment, verifies it, and puts it at FILE.",
		Example: "  devmgrd store backup /root/state.db",
		Args:    usage(oneFile),
		RunE:    backup,
	}
	cmd.Flags().String("socket", defaultAdminSocket, "the daemon's admin.socket")
	return cmd
}

func backup(cmd *cobra.Command, args []string) (err error) {
	to := args[0]
	if _, err := os.Lstat(to); err == nil {
		return fmt.Errorf("%s is there already; choose another name", to)
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
		stream, err := c.Backup(ctx, &adminv1.BackupRequest{})
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
	if _, _, err := store.Look(draft.Name(), warnings(cmd)); err != nil {
		return fmt.Errorf("the copy is not sound: %w", err)
	}
	if err := os.Link(draft.Name(), to); err != nil { // and not over what has come to be there meanwhile
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s: %d bytes, verified\n", to, n)
	return nil
}

// warnings is the log of a command that says what it finds itself.
func warnings(cmd *cobra.Command) *slog.Logger {
	return slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}
