package registry_test

import (
	"testing"

	"github.com/devmgrd/devmgrd/internal/plugintest"
	"github.com/devmgrd/devmgrd/internal/tempdir"
)

func TestMain(m *testing.M) {
	tempdir.InMemory()
	plugintest.AtOnce(8)
	m.Run()
}
