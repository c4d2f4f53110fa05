package rconn

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/verbs/verbstest"
)

// transfer sends n bytes each way at once, in Writes and Reads of random sizes up to most, and compares them.
func transfer(t *testing.T, d, a *Conn, n, most int) {
	send := func(c *Conn, seed uint64) error {
		data, r := rand.NewChaCha8([32]byte{byte(seed)}), rand.New(rand.NewPCG(seed, 1))
		buf := make([]byte, most)
		for left := n; left > 0; {
			p := buf[:min(left, 1+r.IntN(most))]
			data.Read(p)
			if _, err := c.Write(p); err != nil {
				return err
			}
			left -= len(p)
		}
		return nil
	}
	receive := func(c *Conn, seed uint64) error {
		data, r := rand.NewChaCha8([32]byte{byte(seed)}), rand.New(rand.NewPCG(seed, 2))
		buf, want := make([]byte, most), make([]byte, most)
		for left := n; left > 0; {
			k, err := c.Read(buf[:min(left, 1+r.IntN(most))])
			if err != nil {
				return err
			}
			data.Read(want[:k])
			if !bytes.Equal(want[:k], buf[:k]) {
				return errors.New("bytes differ")
			}
			left -= k
		}
		return nil
	}
	errs := make(chan error, 4)
	go func() { errs <- send(d, 1) }()
	go func() { errs <- send(a, 2) }()
	go func() { errs <- receive(a, 1) }()
	go func() { errs <- receive(d, 2) }()
	within(t, func() {
		for range cap(errs) {
			require.NoError(t, <-errs)
		}
	})
}

// Rings of the default size grow under bulk, at both ends and in both directions, and not a byte is lost on the way from one ring to the other.
// Small messages do not make them grow.
func TestRingsGrow(t *testing.T) {
	n := newNetwork(t, verbstest.Config{}, Config{KeepAlive: -1})
	d, a := n.pair(t)
	buf := make([]byte, 8<<10)
	for range 1000 {
		for _, ends := range [][2]*Conn{{d, a}, {a, d}} {
			_, err := ends[0].Write(buf)
			require.NoError(t, err)
			_, err = io.ReadFull(ends[1], buf)
			require.NoError(t, err)
		}
	}
	for _, c := range []*Conn{d, a} {
		require.LessOrEqual(t, c.Info().SendBuffer+c.Info().RecvBuffer, 192<<10, "grown for small messages")
	}
	transfer(t, d, a, 32<<20, 1<<20)
	for _, c := range []*Conn{d, a} {
		require.Equal(t, defaultBulkSend, c.Info().SendBuffer)
		require.Equal(t, defaultBulkRecv, c.Info().RecvBuffer)
		require.NoError(t, c.SetLinger(0))
	}
	require.NoError(t, errors.Join(d.Close(), a.Close()))
}

// Writes that end where no segment does are cut in two, neither of which fills one: the rings grow all the same.
func TestRingsGrowForCutWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, verbstest.Config{}, Config{KeepAlive: -1})
		d, a := n.pair(t)
		_, err := d.Write(make([]byte, 16))
		require.NoError(t, err)
		_, err = io.ReadFull(a, make([]byte, 16))
		require.NoError(t, err)
		for range 2 * growAfter {
			go d.Write(make([]byte, defaultRecv/2))
			_, err = io.ReadFull(a, make([]byte, defaultRecv/2))
			require.NoError(t, err)
			synctest.Wait()
		}
		require.Equal(t, defaultBulkRecv, a.Info().RecvBuffer)
		closeBoth(d, a)
	})
}

// A message that is read in many pieces is one sign, not many.
func TestRingStaysSmallForOneMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, verbstest.Config{}, Config{KeepAlive: -1})
		d, a := n.pair(t)
		for range growAfter - 1 {
			_, err := d.Write(make([]byte, 48<<10))
			require.NoError(t, err)
			synctest.Wait()
			for range 12 {
				_, err = io.ReadFull(a, make([]byte, 4<<10))
				require.NoError(t, err)
			}
			require.Zero(t, a.registering)
		}
		require.Equal(t, defaultRecv, a.Info().RecvBuffer)
		closeBoth(d, a)
	})
}

// Small writes that come faster than the device takes them are bulk too: the larger the send ring, the larger a message that they make.
func TestSendRingGrowsForSmallWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, verbstest.Config{}, Config{KeepAlive: -1})
		d, a := n.pair(t)
		d.slowDown(burstGap / 10)
		go io.Copy(io.Discard, a)
		for range 200 {
			_, err := d.Write(make([]byte, 1024))
			require.NoError(t, err)
		}
		require.Equal(t, defaultBulkSend, d.Info().SendBuffer)
		time.Sleep(time.Second) // no post is under way: while Close waits for its mutex, time would stand still
		closeBoth(d, a)
	})
}

// Where no memory is to be had the rings stay as they are, and the connection goes on. It does not try again.
func TestRingsStaySmall(t *testing.T) {
	n := newNetwork(t, verbstest.Config{}, Config{KeepAlive: -1, Linger: -1})
	d, a := n.pair(t)
	calls := n.a.Calls(verbstest.AllocMR)
	defer n.a.On(verbstest.AllocMR, func() error { return syscall.ENOMEM })()
	transfer(t, d, a, 16<<20, 1<<20)
	require.LessOrEqual(t, n.a.Calls(verbstest.AllocMR)-calls, 2, "one attempt for each ring")
	require.Equal(t, defaultSend, d.Info().SendBuffer)
	require.Equal(t, defaultRecv, d.Info().RecvBuffer)
	require.NoError(t, errors.Join(d.Close(), a.Close()))
}

// Memory for larger rings is registered beside: calls go on with the small ones, and Close waits for it.
func TestRingsGrowBeside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, verbstest.Config{}, Config{KeepAlive: -1, Linger: -1})
		d, a := n.pair(t)
		defer n.a.On(verbstest.AllocMR, func() error {
			time.Sleep(time.Second)
			return nil
		})()
		begun := time.Now()
		transfer(t, d, a, 4<<20, 1<<20)
		require.Zero(t, time.Since(begun))
		require.Equal(t, defaultSend, d.Info().SendBuffer)
		require.Equal(t, defaultBulkSend, a.Info().SendBuffer)
		require.NoError(t, d.Close())
		require.GreaterOrEqual(t, time.Since(begun), time.Second)
		require.NoError(t, a.Close())
	})
}

// A Write that waits for room goes on in the larger ring when that is there, though the peer gives no sign.
func TestWriteGoesOnInLargeRing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, verbstest.Config{}, Config{KeepAlive: -1, Linger: -1})
		d, a := n.pair(t)
		there := make(chan struct{})
		defer n.a.On(verbstest.AllocMR, func() error {
			<-there
			return nil
		})()
		go d.Write(make([]byte, 4<<20))
		buf := make([]byte, 16<<10)
		for d.registering == 0 {
			_, err := a.Read(buf)
			require.NoError(t, err)
			synctest.Wait()
		}
		require.Equal(t, defaultSend, d.Info().SendBuffer)
		close(there)
		synctest.Wait()
		require.Equal(t, defaultBulkSend, d.Info().SendBuffer)
		closeBoth(d, a)
	})
}

// A connection that the peer leaves, that times out or is closed while its rings grow releases everything.
func TestCloseWhileRingsGrow(t *testing.T) {
	for round := range 20 {
		n := newNetwork(t, verbstest.Config{}, Config{KeepAlive: -1, Linger: -1})
		d, a := n.pair(t)
		done := make(chan struct{}, 2)
		go func() {
			io.Copy(io.Discard, struct{ io.Reader }{a})
			done <- struct{}{}
		}()
		go func() {
			buf := make([]byte, 256<<10)
			for {
				if _, err := d.Write(buf); err != nil {
					break
				}
			}
			done <- struct{}{}
		}()
		for d.Stats().BytesSent < uint64(round)*(100<<10) {
		}
		within(t, func() {
			if round%2 == 0 {
				d.Close()
				<-done
				<-done
				a.Close()
			} else {
				a.Close()
				<-done
				<-done
				d.Close()
			}
		})
	}
}
