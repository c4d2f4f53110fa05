//go:build guest

package tests

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"testing"

	"github.com/rconn/rdma/internal/softiwarp"
)

// CRC32C as it is on the wire, seen by a relay between rstream on siw and the software device. Who wants it sets C in its MPA frame, and
// the kernel, which never does, follows; then every FPDU has it, both ways. Else the field is there, and nobody looks at it.
func TestSiwSoftCRCOnWire(t *testing.T) {
	r := rstreamTest{64 << 10, 5, 1}
	for _, crc := range []bool{false, true} {
		dev := soft(t, softiwarp.Config{CRC: crc})
		t.Run(onOff("CRC", crc)+"/rstream listens", func(t *testing.T) {
			server := start(t, append([]string{"rstream", "-b", addr}, r.args(rstreamPort, "b")...)...)
			server.listens(t)
			w := newWiretap(t, join(addr, rstreamPort))
			r.call(t, dev, w.ln.Addr().String())
			server.wait(t)
			w.check(t, crc, crc)
		})
		t.Run(onOff("CRC", crc)+"/rstream dials", func(t *testing.T) {
			ln := dev.listen(t, join(addr, 0))
			w := newWiretap(t, ln.Addr().String())
			client := start(t, append([]string{"rstream", "-s", addr}, r.args(w.ln.Addr().(*net.TCPAddr).Port, "b")...)...)
			r.serve(t, ln)
			client.wait(t)
			w.check(t, false, crc)
		})
	}
}

// A wiretap relays one TCP connection and keeps what passed.
type wiretap struct {
	ln              net.Listener
	request, answer bytes.Buffer
	done            chan error
}

func newWiretap(t *testing.T, target string) *wiretap {
	t.Helper()
	ln, err := net.Listen("tcp", join(addr, 0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	w := &wiretap{ln: ln, done: make(chan error, 1)}
	go func() { w.done <- w.relay(target) }()
	return w
}

func (w *wiretap) relay(target string) error {
	in, err := w.ln.Accept()
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := net.Dial("tcp", target)
	if err != nil {
		return err
	}
	defer out.Close()
	answered := make(chan error, 1)
	go func() { answered <- tap(in, out, &w.answer) }()
	return errors.Join(tap(out, in, &w.request), <-answered)
}

// tap copies one direction, to its end, also into seen.
func tap(dst, src net.Conn, seen *bytes.Buffer) error {
	_, err := io.Copy(dst, io.TeeReader(src, seen))
	dst.(*net.TCPConn).CloseWrite() // fails where the peer has closed already
	return err
}

// check wants C in the request and in the answer as given, and CRCs that go with the answer's.
func (w *wiretap) check(t *testing.T, request, answer bool) {
	t.Helper()
	if err := <-w.done; err != nil {
		t.Logf("the relay: %v", err) // a reset is no fault of the wire's
	}
	for _, way := range []struct {
		name string
		seen []byte
		c    bool
	}{{"request", w.request.Bytes(), request}, {"answer", w.answer.Bytes(), answer}} {
		c, fpdus, err := parseWire(way.seen, answer)
		if err != nil || c != way.c || fpdus < 10 {
			t.Errorf("%s: %s, %d FPDUs, %v", way.name, onOff("C", c), fpdus, err)
		}
		t.Logf("%s: %s, %d FPDUs", way.name, onOff("C", c), fpdus)
	}
}

// parseWire takes one direction of a connection apart: RFC 5044, sections 4 and 7.1. It says whether C is set in the MPA frame, and checks
// every FPDU's CRC.
func parseWire(b []byte, crc bool) (c bool, fpdus int, err error) {
	const frame = 20
	if len(b) < frame {
		return false, 0, io.ErrUnexpectedEOF
	}
	c = b[16]&0x40 != 0
	private := int(binary.BigEndian.Uint16(b[18:]))
	b = b[min(len(b), frame+private):]
	for ; len(b) > 0; fpdus++ {
		if len(b) < 2 {
			return c, fpdus, io.ErrUnexpectedEOF
		}
		n := (2 + int(binary.BigEndian.Uint16(b)) + 3) &^ 3
		if len(b) < n+4 {
			return c, fpdus, io.ErrUnexpectedEOF
		}
		sum := binary.LittleEndian.Uint32(b[n:])
		if want := crc32.Checksum(b[:n], crc32.MakeTable(crc32.Castagnoli)); crc && sum != want {
			return c, fpdus, fmt.Errorf("FPDU %d has the CRC %08x, not %08x", fpdus, sum, want)
		}
		b = b[n+4:]
	}
	return c, fpdus, nil
}
