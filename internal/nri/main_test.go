package nri

import (
	"testing"

	"github.com/devmgrd/devmgrd/internal/tempdir"
)

func TestMain(m *testing.M) {
	tempdir.InMemory()
	m.Run()
}
