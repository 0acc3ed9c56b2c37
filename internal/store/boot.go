package store

import (
	"fmt"
	"os"
	"strings"
)

// bootFile identifies the boot of the machine: the kernel creates a random UUID at each boot.
const bootFile = "/proc/sys/kernel/random/boot_id"

// Boot identifies this boot of the machine. Records name it: grants of device plugins hold for one boot.
func Boot() (string, error) {
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
