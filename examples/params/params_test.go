package main

import (
	"bytes"
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/examples/internal/leak"
	"github.com/rconn/rdma/examples/internal/remote"
)

const patience = time.Minute

// lend has an owner serve until the test ends, and then wants nothing left of it.
func lend(t *testing.T, words int) (netip.AddrPort, *remote.Owner) {
	t.Helper()
	leak.Check(t)
	o, err := newOwner("127.0.0.1:0", words)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- o.Serve(ctx, nil) }()
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, <-served, context.Canceled)
		require.NoError(t, o.Close()) // and so had nothing open any more
	})
	return o.Addr(), o
}

func open(t *testing.T, addr netip.AddrPort, w way, words int) *pool {
	t.Helper()
	p, err := openPool(t.Context(), addr, w, words)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.mem.Close()) })
	return p
}

// Torn reads are real, and each of the ways prevents them, over many reads.
func TestWays(t *testing.T) {
	const words = 8192
	addr, _ := lend(t, words)
	l := load{words: words, readers: 2, writers: 2, every: 3 * time.Millisecond, lasts: 200 * time.Millisecond}
	for w := range wayCount {
		t.Run(w.String(), func(t *testing.T) {
			var total result
			for start := time.Now(); ; {
				r, err := run(t.Context(), addr, w, l)
				require.NoError(t, err)
				total.add(r)
				enough := total.reads >= 300 && total.updates >= 100 && (w == inPlace || total.retries > 0)
				if enough && (w != inPlace || total.torn > 0) {
					break
				}
				require.Less(t, time.Since(start), patience, "%+v", total)
			}
			if w != inPlace {
				require.Zero(t, total.torn, "%+v", total)
			}
		})
	}
}

// No update is lost: the count says as many as there were, and the last version is whole.
func TestWritersExcludeEachOther(t *testing.T) {
	const words = 512
	addr, o := lend(t, words)
	r, err := run(t.Context(), addr, twoBufs, load{words: words, writers: 4, every: time.Microsecond, lasts: 300 * time.Millisecond})
	require.NoError(t, err)
	require.Greater(t, r.updates, 100)

	p := open(t, addr, twoBufs, words)
	count, err := p.mem.Do(p.mem.Load(countAt))
	require.NoError(t, err)
	require.EqualValues(t, 2*(r.updates+1), count) // run makes the first itself
	b, err := p.read()
	require.NoError(t, err)
	n, ok := check(b)
	require.True(t, ok)
	require.EqualValues(t, r.updates+1, n)
	require.Len(t, o.Bytes(), poolSize(words))
}

func TestIntact(t *testing.T) {
	for _, c := range []struct {
		before, after uint64
		version       bool
		twoBufs       bool
	}{
		{6, 6, true, true},
		{6, 7, false, true},  // version 4 has been begun, elsewhere
		{6, 8, false, true},  // and is complete
		{6, 9, false, false}, // version 5 has been begun, where 3 was
		{6, 99, false, false},
		{7, 7, false, true}, // version 4 was under way all the time
		{7, 8, false, true},
		{7, 9, false, false},
	} {
		require.True(t, inPlace.intact(c.before, c.after))
		require.Equal(t, c.version, version.intact(c.before, c.after), c)
		require.Equal(t, c.twoBufs, twoBufs.intact(c.before, c.after), c)
	}
}

// While a writer is at work, and for ever if it has died, a version word has readers wait; two buffers give the last version.
func TestReadWhileWriting(t *testing.T) {
	const words = 64
	addr, _ := lend(t, words)
	writer, versioned, doubled := open(t, addr, twoBufs, words), open(t, addr, version, words), open(t, addr, twoBufs, words)
	require.NoError(t, writer.update())
	require.NoError(t, writer.update())
	_, err := writer.lock()
	require.NoError(t, err)

	_, err = versioned.read()
	require.ErrorIs(t, err, errOvertaken)
	b, err := doubled.read()
	require.NoError(t, err)
	n, ok := check(b)
	require.True(t, ok)
	require.EqualValues(t, 2, n)
}

func TestCheck(t *testing.T) {
	b := make([]byte, 8*wordSize)
	fill(b, 7)
	n, ok := check(b)
	require.True(t, ok)
	require.EqualValues(t, 7, n)

	newer := bytes.Clone(b)
	fill(newer, 8)
	copy(b, newer[:3*wordSize])
	_, ok = check(b)
	require.False(t, ok)
}

func TestSizesMustAgree(t *testing.T) {
	addr, _ := lend(t, 64)
	_, err := openPool(t.Context(), addr, version, 65)
	require.ErrorContains(t, err, "give both the same -words")
}

func TestDemo(t *testing.T) {
	leak.Check(t)
	err := both(t.Context(), "127.0.0.1:0", load{words: 1024, readers: 1, writers: 1, every: time.Millisecond, lasts: 50 * time.Millisecond})
	require.NoError(t, err)
	require.ErrorContains(t, both(t.Context(), "0.0.0.0:0", load{words: 1}), "listen on the address of one device")
}

// The owner's account begins with the first connection and ends with the last; its longest pause is looked at apart.
func TestAccount(t *testing.T) {
	start := time.Now()
	var a account
	at := func(conns int, seconds float64, cpu time.Duration) {
		a.changed(conns, start.Add(time.Duration(seconds*float64(time.Second))), cpu)
	}
	at(1, 0, 5*time.Second)
	at(2, 1, 6*time.Second)
	at(1, 4, 6003*time.Millisecond)
	now := moment{start.Add(5 * time.Second), 6500 * time.Millisecond}
	a.conns++
	require.Equal(t, "owner: lent for 5.00 s: 1.500 s of CPU (30.0%), with 2 connections; "+
		"longest time without connecting: 3.00 s, 0.003 s of CPU (0.1%)", a.text(now))
	at(0, 5, 6500*time.Millisecond)
	require.Equal(t, account{}, a)
}
