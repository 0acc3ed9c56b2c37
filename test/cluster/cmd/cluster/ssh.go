package main

import (
	"os"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/devmgrd/devmgrd/test/machine"
)

func sshCommand() *cobra.Command {
	var id string
	cmd := &cobra.Command{
		Use:   "ssh [-- COMMAND...]",
		Short: "Run a shell or a command on the node of a cluster that was brought up with --machine",
		RunE: func(_ *cobra.Command, args []string) error {
			r, err := findRun(id)
			if err != nil {
				return err
			}
			words, err := machine.SSH(r, args...)
			if err != nil {
				return err
			}
			ssh := exec.Command(words[0], words[1:]...)
			ssh.Stdin, ssh.Stdout, ssh.Stderr = os.Stdin, os.Stdout, os.Stderr
			return ssh.Run()
		},
	}
	cmd.Flags().StringVar(&id, "run", "", "which run, of those that `cluster status` lists (default: the only one)")
	return cmd
}
