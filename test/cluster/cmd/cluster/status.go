package main

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/devmgrd/devmgrd/test/cluster"
)

func statusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "List the clusters of this user, those of tests and demos too",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			runs, err := cluster.Runs()
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "RUN\tPROGRAM\tAGE\tPID\tKUBECONFIG")
			for _, r := range runs {
				age := time.Since(r.Began).Round(time.Second)
				fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", r.ID, r.Program, age, r.Supervisor, r.Kubeconfig())
			}
			return w.Flush()
		},
	}
}
