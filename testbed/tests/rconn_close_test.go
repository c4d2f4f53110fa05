//go:build guest

package tests

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/rconn/rdma/rconn"
)

// 64 KiB are written and the connection closed at once: every byte arrives, then an orderly end; and nothing is left.
//
// fault: CLOSE-4, FLOW-5
func TestRxeStreamWriteAndClose(t *testing.T) { testWriteAndClose(t, 1000, 64<<10, 2) }

// fault: CLOSE-4
func TestSiwStreamWriteAndClose(t *testing.T) { testWriteAndClose(t, 100, 64<<10, 2) }

// The same with 1 MiB, far more than the rings hold, on more connections at a time.
//
// fault: CLOSE-4, FLOW-5
func TestRxeStreamWriteMuchAndClose(t *testing.T) { testWriteAndClose(t, 1000, 1<<20, 4) }

// fault: CLOSE-4
func TestSiwStreamWriteMuchAndClose(t *testing.T) { testWriteAndClose(t, 100, 1<<20, 4) }

// enough is how long a test of many connections goes on where a machine is too slow for all of them.
const enough = 75 * time.Second

func testWriteAndClose(t *testing.T, rounds, size, parallel int) {
	noRNR(t)
	dial, accept, from := countedStreams(t, smallStreams)
	begin := time.Now()
	var wg sync.WaitGroup
	permits := make(chan bool)
	for range parallel {
		wg.Go(func() {
			for range permits {
				c, a, err := both(dial, accept) // not always of one connection
				if err != nil {
					t.Error(err)
					continue
				}
				wrote := make(chan error, 1)
				go func() {
					_, err := io.Copy(c, io.LimitReader(new(source), int64(size)))
					wrote <- errors.Join(err, c.Close())
				}()
				a.SetDeadline(time.Now().Add(patience))
				n, err := io.Copy(new(sink), a)
				if err = errors.Join(err, a.Close(), <-wrote); err != nil || n != int64(size) {
					t.Errorf("%d bytes of %d, %v", n, size, err)
				}
			}
		})
	}
	done, rss := 0, 0
	for ; done < rounds && time.Since(begin) < enough && !t.Failed(); done++ {
		permits <- true
		if done == rounds/10 {
			rss = memory(t)
		}
	}
	close(permits)
	wg.Wait()
	grown := memory(t) - rss
	t.Logf("seen: %d connections of %d bytes in %v, resident memory grew by %d KiB in the last nine tenths", done, size,
		time.Since(begin).Round(time.Millisecond), grown>>10)
	if done < rounds/4 {
		t.Error("too few")
	}
	if grown > 8<<20 {
		t.Error("too much memory is left")
	}
	backTo(t, from, patience)
}

// fault: FLOW-5
func TestRxeStreamEndTogether(t *testing.T) { testEndTogether(t, 100) }
func TestSiwStreamEndTogether(t *testing.T) { testEndTogether(t, 40) }

// testEndTogether ends both directions at the same time: by Close, or by CloseWrite, with bytes under way both ways.
func testEndTogether(t *testing.T, rounds int) {
	noRNR(t)
	dial, accept, from := countedStreams(t, smallStreams)
	for round := range rounds {
		c, a, err := both(dial, accept)
		if err != nil {
			t.Fatal(err)
		}
		size := round % 5 * 10000
		end := endByClose
		if round%2 == 1 {
			end = endByHalves
		}
		var wg, wrote sync.WaitGroup
		wrote.Add(2)
		for _, c := range []net.Conn{c, a} {
			c.SetDeadline(time.Now().Add(patience))
			wg.Go(func() {
				_, err := io.Copy(c, io.LimitReader(new(source), int64(size))) // nobody reads, but it fits the ring
				wrote.Done()
				wrote.Wait()
				if err = errors.Join(err, end(c, size)); err != nil {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		wg.Wait()
	}
	backTo(t, from, patience)
}

// endByClose must not wait for anything: the peer closes too.
func endByClose(c net.Conn, _ int) error {
	begin := time.Now()
	err := c.Close()
	if took := time.Since(begin); took > 2*time.Second {
		err = errors.Join(err, errors.New("Close took "+took.String()))
	}
	return err
}

func endByHalves(c net.Conn, size int) error {
	err := c.(*rconn.Conn).CloseWrite()
	n, rerr := io.Copy(new(sink), c)
	if n != int64(size) {
		rerr = errors.Join(rerr, errors.New("bytes are missing"))
	}
	return errors.Join(err, rerr, c.Close())
}
