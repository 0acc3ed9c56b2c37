package plugintest

import (
	"flag"
	"strconv"
)

// AtOnce has n parallel tests run at once, unless -parallel says otherwise: tests that wait for sockets and pauses leave the
// processors idle. It is for TestMain.
func AtOnce(n int) {
	flag.Parse()
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "test.parallel" })
	if !said {
		_ = flag.Set("test.parallel", strconv.Itoa(n)) // the testing package has defined it
	}
}
