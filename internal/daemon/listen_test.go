package daemon

import (
	"net"
	"testing"
)

func TestWebListener_IsPlainTCP(t *testing.T) {
	l, err := webListener("127.0.0.1:0")()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var d net.Dialer
	d.SetMultipathTCP(true)
	conn, err := d.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if multipath, err := conn.(*net.TCPConn).MultipathTCP(); err != nil || multipath {
		t.Errorf("the connection is one of Multipath TCP: %v, %v", multipath, err)
	}
}
