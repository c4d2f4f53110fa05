package rconn

import (
	"bytes"
	"encoding/binary"
	"io"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// sparse is n bytes of zeros that take no memory as long as nobody writes to them.
func sparse(t *testing.T, n int) []byte {
	const flags = syscall.MAP_PRIVATE | syscall.MAP_ANONYMOUS | syscall.MAP_NORESERVE
	b, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, flags)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Munmap(b)) })
	const noHugePages = 15              // MADV_NOHUGEPAGE
	_ = syscall.Madvise(b, noHugePages) // a kernel without huge pages refuses it
	return b
}

// One Write of more than 2 GiB: every byte. The buffer for Read is as large.
//
// fault: MEM-4 (software)
func TestHugeWrite(t *testing.T) {
	total := 1<<31 + 12345
	if raceEnabled {
		total = 1 << 27 // make unit runs it whole, without the race detector
	}
	sent, buf := sparse(t, total), sparse(t, total)
	for at := 0; at < total-8; at += 200_003 { // at odd distances, so that what is misplaced does not fit
		binary.BigEndian.PutUint64(sent[at:], ^uint64(at))
	}
	forSome(t, func(t *testing.T, dev device) {
		writeHuge(t, dev.network(t, Config{SendBuffer: 8 << 20, RecvBuffer: 8 << 20}), sent, buf)
	})
}

func writeHuge(t *testing.T, n *network, sent, buf []byte) {
	d, a := n.pair(t)
	type result struct {
		k   int
		err error
	}
	wrote := make(chan result, 1)
	go func() {
		k, err := d.Write(sent)
		wrote <- result{k, err}
	}()
	for got := 0; got < len(sent); {
		k, err := a.Read(buf)
		require.NoError(t, err)
		require.True(t, bytes.Equal(sent[got:got+k], buf[:k]), "%d bytes behind %d", k, got)
		got += k
	}
	require.Equal(t, result{len(sent), nil}, <-wrote)
	closed := make(chan error, 1)
	go func() { closed <- d.Close() }()
	k, err := a.Read(buf)
	require.Zero(t, k)
	require.Equal(t, io.EOF, err)
	require.NoError(t, a.Close())
	require.NoError(t, <-closed)
}
