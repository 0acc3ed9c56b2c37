package admin_test

import (
	"testing"

	"github.com/devmgrd/devmgrd/test/plugintest"
	"github.com/devmgrd/devmgrd/test/tempdir"
)

func TestMain(m *testing.M) {
	tempdir.InMemory()
	plugintest.AtOnce(8)
	m.Run()
}
