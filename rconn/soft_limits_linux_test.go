package rconn

import (
	"fmt"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma"
)

// kilobytes reads a number of /proc/self/status, such as VmRSS.
func kilobytes(t *testing.T, name string) int {
	text, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	found := regexp.MustCompile(`(?m)^` + name + `:\s+(\d+) kB$`).FindSubmatch(text)
	require.NotNil(t, found, name)
	n, err := strconv.Atoi(string(found[1]))
	require.NoError(t, err)
	return n
}

// The software device locks no memory, so the limit on it does not matter.
//
// fault: MEM-1 (software)
func TestSoftwareMemlock(t *testing.T) {
	const rlimitMemlock = 8 // RLIMIT_MEMLOCK
	var old syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(rlimitMemlock, &old))
	require.NoError(t, syscall.Setrlimit(rlimitMemlock, &syscall.Rlimit{Cur: 0, Max: old.Max}))
	defer func() { require.NoError(t, syscall.Setrlimit(rlimitMemlock, &old)) }()
	locked := kilobytes(t, "VmLck")
	d, a := newSoftware(t, rdma.SoftwareConfig{}, Config{SendBuffer: 64 << 20, RecvBuffer: 64 << 20}).pair(t)
	require.Equal(t, locked, kilobytes(t, "VmLck"))
	closeBoth(d, a)
}

// A thousand idle connections, with a reader on each end, use no CPU and one goroutine for each end besides the reader's. What memory they take
// is printed.
//
// fault: MEM-9 (software)
func TestSoftwareIdle(t *testing.T) {
	const conns, watched = 1000, 2 * time.Second
	type usage struct{ goroutines, files, resident, heap int }
	now := func() usage {
		var m runtime.MemStats
		debug.FreeOSMemory() // what earlier tests have left, too
		runtime.ReadMemStats(&m)
		return usage{runtime.NumGoroutine(), openFiles(t), kilobytes(t, "VmRSS") << 10, int(m.HeapAlloc + m.StackInuse)}
	}
	n := newSoftware(t, rdma.SoftwareConfig{}, Config{KeepAlive: time.Minute}) // no probe comes meanwhile
	before := now()
	ln := n.listen(t, n.addr)
	defer ln.Close()
	var ends []*Conn
	for range conns {
		d, a := n.connect(t, ln, ln.Addr().String())
		ends = append(ends, d, a)
	}
	require.Eventually(t, func() bool { return runtime.NumGoroutine()-before.goroutines <= len(ends)+10 }, time.Minute, 10*time.Millisecond,
		"those that make connections end")
	silent := now()
	var wg sync.WaitGroup
	for _, c := range ends {
		wg.Go(func() { c.Read(make([]byte, 1)) })
	}
	for _, c := range ends {
		c.waiting(t, &c.rd)
	}
	time.Sleep(gateTime) // the last ones open
	runtime.GC()         // not later
	cpu := cpuTime(t)
	time.Sleep(watched)
	cpu = cpuTime(t) - cpu
	each := func(a, b int) string { return fmt.Sprintf("%.1f", float64(b-a)/float64(len(ends))) }
	t.Logf("%d idle connections, both ends of each here: %v of CPU in %v", conns, cpu, watched)
	t.Logf("an end: %s goroutines, %s files, %d KiB resident; %d KiB of Go's heap and stacks, touched or not",
		each(before.goroutines, silent.goroutines), each(before.files, silent.files), (silent.resident-before.resident)/len(ends)>>10,
		(silent.heap-before.heap)/len(ends)>>10)
	require.Less(t, cpu, watched/20)
	for _, c := range ends {
		abort(c)
	}
	wg.Wait()
}
