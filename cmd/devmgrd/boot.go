package main

import (
	"fmt"
	"os"
	"strings"
)

// bootFile names the boot of the machine: the kernel writes another random UUID into it at each one.
const bootFile = "/proc/sys/kernel/random/boot_id"

// bootID identifies this boot of the machine. What device plugins have granted holds for one boot.
func bootID() (string, error) {
	text, err := os.ReadFile(bootFile)
	id := strings.TrimSpace(string(text))
	if err == nil && id == "" {
		err = fmt.Errorf("%s is empty", bootFile)
	}
	if err != nil {
		return "", fmt.Errorf("identifying this boot of the machine: %w", err)
	}
	return id, nil
}
