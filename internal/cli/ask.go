package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"sigs.k8s.io/yaml"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/client"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/visible"
)

// askLimit bounds one call to the daemon, which answers from memory.
const askLimit = 10 * time.Second

// withAskFlags adds the flags of every command that calls the daemon.
func withAskFlags(cmd *cobra.Command) *cobra.Command { return withOutputFlag(withSocketFlag(cmd)) }

func withSocketFlag(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().String("socket", client.DefaultSocket, "the daemon's admin.socket")
	return cmd
}

func withOutputFlag(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringP("output", "o", "", "output format: json or yaml (default text)")
	return cmd
}

// A view prints an answer as text.
type view[A proto.Message] = func(to io.Writer, answer A, now time.Time)

// ask calls a method of the daemon and prints the answer in the format of -o, or else with show.
func ask[Q, A proto.Message](cmd *cobra.Command, do client.Method[Q, A], request Q, show view[A]) error {
	return askFor(cmd, askLimit, func(ctx context.Context, c adminv1.AdminServiceClient) (A, error) { return do(c, ctx, request) }, show)
}

// askFor is ask for a call that may take longer.
func askFor[A proto.Message](cmd *cobra.Command, limit time.Duration, do func(context.Context, adminv1.AdminServiceClient) (A, error), show view[A]) error {
	format, err := outputFormat(cmd, "json", "yaml")
	if err != nil {
		return err
	}
	var answer A
	err = call(cmd, limit, func(ctx context.Context, c adminv1.AdminServiceClient) (err error) {
		answer, err = do(ctx, c)
		return err
	})
	if err != nil {
		return err
	}
	return printAnswer(cmd.OutOrStdout(), format, answer, show)
}

// outputFormat returns the value of -o: one of formats, or "".
func outputFormat(cmd *cobra.Command, formats ...string) (string, error) {
	format := flagValue(cmd.Flags().GetString, "output")
	if format != "" && !slices.Contains(formats, format) {
		return "", usageError{fmt.Errorf("unknown output format %q; use -o %s", format, strings.Join(formats, " or -o "))}
	}
	return format, nil
}

// forever stands for a call without a time limit.
const forever = 365 * 24 * time.Hour

// isTerminal reports whether f is a terminal.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// printLine prints an answer as one line of JSON.
func printLine(to io.Writer, answer proto.Message) error {
	text, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(answer)
	if err != nil {
		return err
	}
	var even bytes.Buffer
	if err := json.Compact(&even, text); err != nil {
		return err
	}
	_, err = fmt.Fprintln(to, even.String())
	return err
}

// call calls the daemon on the socket that the flag names.
func call(cmd *cobra.Command, limit time.Duration, do func(context.Context, adminv1.AdminServiceClient) error) error {
	c, err := client.New(flagValue(cmd.Flags().GetString, "socket"))
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), limit)
	defer cancel()
	return c.Diagnose(do(ctx, c))
}

func printAnswer[A proto.Message](to io.Writer, format string, answer A, show view[A]) error {
	if format == "" {
		show(to, answer, time.Now())
		return nil
	}
	text, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(answer)
	if err != nil {
		return err
	}
	return printJSON(to, format, text)
}

// printJSON prints JSON in a format of -o.
func printJSON(to io.Writer, format string, text []byte) (err error) {
	if format == "yaml" {
		if text, err = yaml.JSONToYAML(text); err == nil {
			_, err = to.Write(text)
		}
		return err
	}
	// protojson varies its white space on purpose, which would break scripts and tests.
	var even bytes.Buffer
	if err := json.Indent(&even, text, "", "  "); err != nil {
		return err
	}
	_, err = fmt.Fprintln(to, even.String())
	return err
}

// splitPod reads NAMESPACE/NAME.
func splitPod(arg string) (namespace, name string, err error) {
	namespace, name, ok := strings.Cut(arg, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return "", "", usageError{fmt.Errorf("%q is not a pod; write it as NAMESPACE/NAME", arg)}
	}
	return namespace, name, nil
}

// splitDevice reads RESOURCE/ID. A resource has one slash; an ID may have more.
func splitDevice(arg string) (*adminv1.DeviceName, error) {
	parts := strings.SplitN(arg, "/", 3)
	if len(parts) < 3 || device.UnquoteID(parts[2]) == "" {
		return nil, usageError{fmt.Errorf("%q is not a device; write it as RESOURCE/ID, like %s", arg, path.Join("vendor.example/gpu", "GPU-0"))}
	}
	return &adminv1.DeviceName{ResourceName: parts[0] + "/" + parts[1], Id: string(device.UnquoteID(parts[2]))}, nil
}

// ago formats the time since t in its two largest units.
func ago(t *timestamppb.Timestamp, now time.Time) string {
	if t == nil {
		return "-"
	}
	return visible.Age(now.Sub(t.AsTime()))
}

// shown formats a device's ID so that users can read it and pass it to a command.
func shown[T ~string](id T) string { return device.QuoteID(device.ID(id)) }
