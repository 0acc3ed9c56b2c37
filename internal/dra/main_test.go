package dra

import (
	"testing"

	"github.com/devmgrd/devmgrd/test/plugintest"
)

func TestMain(m *testing.M) {

	plugintest.AtOnce(8)
	m.Run()
}
