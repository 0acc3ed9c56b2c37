// Package boot identifies this boot of the machine.
package boot

import (
	"fmt"
	"os"
	"strings"
)

// file identifies the boot of the machine: the kernel creates a random UUID at each boot.
const file = "/proc/sys/kernel/random/boot_id"

// ID identifies this boot of the machine. Grants of device plugins hold for one boot.
func ID() (string, error) {
	text, err := os.ReadFile(file)
	id := strings.TrimSpace(string(text))
	if err == nil && id == "" {
		err = fmt.Errorf("%s is empty", file)
	}
	if err != nil {
		return "", fmt.Errorf("identifying this boot of the machine: %w", err)
	}
	return id, nil
}
