//go:build guest

package tests

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/internal/softiwarp"
	"github.com/rconn/rdma/rconn"
)

// Our own provider of the system's devices, on siw, and the software device: 16 MiB each way at the same time.
func TestSiwSoftSystem(t *testing.T) {
	for _, crc := range []bool{false, true} {
		dev := soft(t, softiwarp.Config{CRC: crc})
		for _, host := range []string{addr, addr6} {
			for _, ends := range []struct {
				name         string
				dials, waits cm.Provider
			}{
				{"software dials", dev.provider, system}, {"system dials", system, dev.provider},
			} {
				t.Run(onOff("CRC", crc)+"/"+host+"/"+ends.name, func(t *testing.T) {
					ln := listenOn(t, ends.waits, join(host, 0))
					defer ln.Close()
					c, a, err := both(func() (net.Conn, error) { return dialerOn(ends.dials).Dial("rdma", ln.Addr().String()) }, ln.Accept)
					if err != nil {
						t.Fatal(err)
					}
					devices := []string{c.(*rconn.Conn).Info().Device, a.(*rconn.Conn).Info().Device}
					if slices.Sort(devices); !slices.Equal(devices, []string{"siw0", softiwarp.DeviceName}) {
						t.Errorf("the ends run on %q", devices)
					}
					begin := time.Now()
					done := make(chan error, 1)
					go func() { done <- exchangeNoise(a, 16<<20) }()
					if err := errors.Join(exchangeNoise(c, 16<<20), <-done); err != nil {
						t.Error(err)
					}
					t.Logf("16 MiB each way in %v", time.Since(begin).Round(time.Millisecond))
				})
			}
		}
	}
}

// concurrent is how many connections are made and used at the same time.
const concurrent = 20

func TestSiwSoftConcurrent(t *testing.T) {
	dev := soft(t, softiwarp.Config{})
	r := rstreamTest{64 << 10, 5, 2}
	t.Run("rstream dials", func(t *testing.T) {
		ln := dev.listen(t, join(addr, rstreamPort))
		defer ln.Close()
		var clients []*process
		for range concurrent {
			clients = append(clients, start(t, append([]string{"rstream", "-s", addr}, r.args(rstreamPort, "b")...)...))
		}
		var wg sync.WaitGroup
		for range concurrent {
			wg.Go(func() { r.serve(t, ln) })
		}
		wg.Wait()
		for _, c := range clients {
			c.wait(t)
		}
	})
	t.Run("rstream listens", func(t *testing.T) {
		var servers []*process
		for i := range concurrent {
			servers = append(servers, start(t, append([]string{"rstream", "-b", addr}, r.args(rstreamPort+i, "b")...)...))
		}
		for _, s := range servers {
			s.listens(t)
		}
		var wg sync.WaitGroup
		for i := range concurrent {
			wg.Go(func() { r.call(t, dev, join(addr, rstreamPort+i)) })
		}
		wg.Wait()
		for _, s := range servers {
			s.wait(t)
		}
	})
}

// A listening side that speaks first, and at once: C, then ours. The kernel as the dialing side takes nothing before it has spoken
// itself, so ours must wait for that.
func TestSiwSoftGreeting(t *testing.T) {
	const times = 10 // a race
	for _, crc := range []bool{false, true} {
		dev := soft(t, softiwarp.Config{CRC: crc})
		for _, host := range []string{addr, addr6} {
			t.Run(onOff("CRC", crc)+"/"+host+"/C greets", func(t *testing.T) {
				server := greeter(t, host, times)
				for range times {
					if err := greeted(dev, host); err != nil {
						t.Error(err)
					}
				}
				server.wait(t)
			})
			t.Run(onOff("CRC", crc)+"/"+host+"/C is greeted", func(t *testing.T) {
				ln := dev.listen(t, join(host, greetPort))
				defer ln.Close()
				client := start(t, program("greet"), "dial", host, strconv.Itoa(greetPort), strconv.Itoa(times))
				for range times {
					c, err := ln.Accept()
					if err != nil {
						t.Fatal(err)
					}
					if err := greet(onSoft(t, c), true); err != nil {
						t.Error(err)
					}
				}
				client.wait(t)
			})
		}
	}
}

const (
	greetPort = 7470
	greetSize = 300000 // as in greet.c
)

// greeter starts a C program that greets so many connections, one after another.
func greeter(t *testing.T, host string, times int) *process {
	t.Helper()
	p := start(t, program("greet"), "listen", host, strconv.Itoa(greetPort), strconv.Itoa(times))
	p.listens(t)
	return p
}

// greeted makes a connection to the greeter and plays its peer.
func greeted(dev softDevice, host string) error {
	c, err := dialerOn(dev.provider).Dial("rdma", join(host, greetPort))
	if err != nil {
		return err
	}
	return greet(c, false)
}

// greet plays one side of greet.c on c: the listening one speaks first and ends the connection.
func greet(c net.Conn, first bool) (err error) {
	c.SetDeadline(time.Now().Add(patience))
	defer func() { err = errors.Join(err, c.Close()) }()
	text := make([]byte, greetSize)
	for i := range text {
		text[i] = byte(i % 251)
	}
	got := make([]byte, greetSize)
	if first {
		if _, err := c.Write(text); err != nil {
			return err
		}
	}
	if n, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, text) {
		return fmt.Errorf("%d bytes, not the right ones: %w", n, err)
	}
	if first {
		return nil
	}
	if _, err := c.Write(text); err != nil {
		return err
	}
	if n, err := c.Read(got); n != 0 || err != io.EOF {
		return fmt.Errorf("after the end: %d, %w", n, err)
	}
	return nil
}

// kill -9 of rstream, with data under way and with none: our calls end.
//
// fault: DEATH-1
func TestSiwSoftPeerKilled(t *testing.T) {
	dev := soft(t, softiwarp.Config{})
	endless := func(t *testing.T, side string) *process {
		args := rstreamTest{64 << 10, 1 << 20, 1}.args(rstreamPort, "b")
		return start(t, append([]string{"rstream", side, addr}, args...)...)
	}
	dials := func(t *testing.T) (*process, net.Conn) {
		ln := dev.listen(t, join(addr, rstreamPort))
		p := endless(t, "-s")
		c, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		return p, c
	}
	waits := func(t *testing.T) (*process, net.Conn) {
		p := endless(t, "-b")
		p.listens(t)
		return p, dev.dial(t, join(addr, rstreamPort), rconn.Config{})
	}
	read := func(c net.Conn) error {
		_, err := io.Copy(io.Discard, c)
		return err
	}
	counting := make([]byte, 64<<10) // what rstream wants, on and on
	for i := range counting {
		counting[i] = byte(i)
	}
	write := func(c net.Conn) error {
		for {
			if _, err := c.Write(counting); err != nil {
				return err
			}
		}
	}
	for _, k := range []struct {
		name string
		peer func(*testing.T) (*process, net.Conn)
		call func(net.Conn) error
	}{
		{"rstream dials, much comes", dials, func(c net.Conn) error {
			if _, err := c.Write(counting[:16]); err != nil { // then rstream begins
				return err
			}
			return read(c)
		}},
		{"rstream dials, nothing comes", dials, read},
		{"rstream dials, writer held up", dials, write},
		{"rstream listens, writer", waits, write},
		{"rstream listens, nothing comes", waits, read},
	} {
		t.Run(k.name, func(t *testing.T) {
			p, c := k.peer(t)
			c = onSoft(t, c)
			c.(*rconn.Conn).SetLinger(0)
			defer c.Close()
			ended := make(chan ending, 1)
			go func() {
				err := k.call(c)
				ended <- ending{k.name, err, time.Now()}
			}()
			time.Sleep(300 * time.Millisecond)
			killed := time.Now()
			if err := p.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			e := <-ended
			took := e.at.Sub(killed)
			t.Logf("%v after %v", e.err, took.Round(time.Millisecond))
			if !errors.Is(e.err, syscall.ECONNRESET) || took < 0 || took > killLimit {
				t.Errorf("want %v within %v", syscall.ECONNRESET, killLimit)
			}
		})
	}
}

// Nobody listens, or the listening side refuses; software dials to siw, and siw to software.
func TestSiwSoftRefused(t *testing.T) {
	dev := soft(t, softiwarp.Config{})
	for _, host := range []string{addr, addr6} {
		t.Run(host+"/software dials, nobody listens", func(t *testing.T) {
			begin := time.Now()
			_, err := dialerOn(dev.provider).Dial("rdma", join(host, 7999))
			if took := time.Since(begin); !errors.Is(err, syscall.ECONNREFUSED) || took > 3*time.Second { // a busy host
				t.Errorf("%v after %v", err, took)
			}
		})
		for _, ends := range []struct {
			name         string
			dials, waits cm.Provider
		}{
			{"software dials", dev.provider, system}, {"system dials", system, dev.provider},
		} {
			t.Run(host+"/"+ends.name+", refused", func(t *testing.T) { testRefused(t, host, ends.dials, ends.waits) })
		}
		t.Run(host+"/rstream dials, nobody listens", func(t *testing.T) {
			ln := dev.listen(t, join(host, rstreamPort))
			ln.Close()
			wantRefused(t, host)
		})
		t.Run(host+"/rstream dials, refused", func(t *testing.T) {
			ln, err := dev.provider.Listen(netip.AddrPortFrom(netip.MustParseAddr(host), rstreamPort), cm.ListenOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			refused := refuseOne(t, ln)
			wantRefused(t, host)
			if err := <-refused; err != nil {
				t.Error(err)
			}
		})
	}
}

// wantRefused has rstream dial.
func wantRefused(t *testing.T, host string) {
	t.Helper()
	client := start(t, append([]string{"rstream", "-s", host}, rstreamTest{64, 1, 1}.args(rstreamPort, "b")...)...)
	client.fails(t)
	if out := client.out.String(); !strings.Contains(out, "Connection refused") {
		t.Errorf("rstream says %q", out)
	}
}

// refuseOne refuses a connection.
func refuseOne(t *testing.T, ln cm.Listener) <-chan error {
	done := make(chan error, 1)
	ctx := within(t, patience)
	go func() {
		req, err := ln.Accept(ctx)
		if err == nil {
			err = errors.Join(req.Reject([]byte("not today")), req.Close())
		}
		done <- err
	}()
	return done
}

func testRefused(t *testing.T, host string, dials, waits cm.Provider) {
	ln, err := waits.Listen(netip.AddrPortFrom(netip.MustParseAddr(host), 0), cm.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	refused := refuseOne(t, ln)
	ctx := within(t, patience)
	id, err := dials.Resolve(ctx, netip.AddrPort{}, ln.Addr())
	if err != nil {
		t.Fatal(err)
	}
	e, err := newEnd(id)
	if err != nil {
		t.Fatal(err)
	}
	defer closeEnd(t, e)
	_, err = id.Connect(ctx, rpingParam)
	var rejected *cm.RejectedError
	if !errors.Is(err, syscall.ECONNREFUSED) || !errors.As(err, &rejected) || string(rejected.PrivateData) != "not today" {
		t.Errorf("%#v", err)
	}
	if err := <-refused; err != nil {
		t.Error(err)
	}
}
