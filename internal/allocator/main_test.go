package allocator_test

import (
	"testing"

	"github.com/devmgrd/devmgrd/test/tempdir"
)

func TestMain(m *testing.M) {
	tempdir.InMemory()
	m.Run()
}
