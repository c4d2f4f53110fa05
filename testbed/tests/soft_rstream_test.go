//go:build guest

package tests

import (
	"io"
	"net"
	"testing"

	"github.com/rconn/rdma/internal/softiwarp"
	"github.com/rconn/rdma/rconn"
)

// Stock rstream on siw against the software device, data verified at both ends.
//
// fault: FLOW-5
func TestSiwSoftRstream(t *testing.T) {
	runs := []rstreamTest{{64, 1, 50}, {64, 2000, 1}, {64 << 10, 20, 2}, {1 << 20, 4, 1}}
	for _, crc := range []bool{false, true} {
		dev := soft(t, softiwarp.Config{CRC: crc})
		for _, host := range []string{addr, addr6} {
			mode := "n" // rstream spins; or blocks
			if crc {
				mode = "b"
			}
			t.Run(onOff("CRC", crc)+"/"+host, func(t *testing.T) {
				for _, r := range runs {
					t.Run(r.String(), func(t *testing.T) {
						t.Run("rstream dials", func(t *testing.T) { r.dialsSoft(t, dev, host, mode) })
						t.Run("rstream listens", func(t *testing.T) { r.listensForSoft(t, dev, host, mode) })
					})
				}
			})
		}
	}
}

const rstreamPort = 7471

// dialsSoft has rstream dial to the software device.
func (r rstreamTest) dialsSoft(t *testing.T, dev softDevice, host, mode string) {
	ln := dev.listen(t, join(host, rstreamPort))
	defer ln.Close()
	client := start(t, append([]string{"rstream", "-s", host}, r.args(rstreamPort, mode)...)...)
	r.serve(t, ln)
	client.wait(t)
}

// serve is the listening end.
func (r rstreamTest) serve(t *testing.T, ln net.Listener) {
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := r.talk(onSoft(t, c), false); err != nil {
		t.Error(err)
	}
	// rstream shuts down when it is done: an orderly end.
	if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("after the end: %d, %v", n, err)
	}
}

// listensForSoft has rstream wait for the software device.
func (r rstreamTest) listensForSoft(t *testing.T, dev softDevice, host, mode string) {
	server := start(t, append([]string{"rstream", "-b", host}, r.args(rstreamPort, mode)...)...)
	server.listens(t)
	r.call(t, dev, join(host, rstreamPort))
	server.wait(t)
}

// call is the dialing end. rstream closes right after its last bytes, and then siw throws away what it has not sent yet when anything
// comes in, a credit, say; two C programs lose the end that way too. So no more may be under way than TCP takes at once.
func (r rstreamTest) call(t *testing.T, dev softDevice, address string) {
	c := dev.dial(t, address, rconn.Config{RecvBuffer: 32 << 10})
	if err := r.talk(c, true); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
