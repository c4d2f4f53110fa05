//go:build race

package verbstest

import (
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

// A program that uses memory while the device does is found out, although much of the fabric is not instrumented. The test runs itself
// as that program.
func TestRacesWithDeviceAreSeen(t *testing.T) {
	const variable = "VERBSTEST_RACE"
	if name := os.Getenv(variable); name != "" {
		races[name](t)
		return
	}
	for name := range races {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			program := exec.Command(os.Args[0], "-test.run=^TestRacesWithDeviceAreSeen$")
			program.Env = append(os.Environ(), variable+"="+name)
			out, err := program.CombinedOutput()
			require.Error(t, err)
			require.Contains(t, string(out), "WARNING: DATA RACE")
		})
	}
}

var races = map[string]func(t *testing.T){
	"ib payload": func(t *testing.T) { race(t, ib, verbs.OpRDMAWrite, true) },
	"ib target":  func(t *testing.T) { race(t, ib, verbs.OpRDMAWrite, false) },
	"ib read":    func(t *testing.T) { race(t, ib, verbs.OpRDMARead, true) },
	"ib send":    func(t *testing.T) { race(t, ib, verbs.OpSend, false) },
	"caller's memory": func(t *testing.T) {
		raceOn(t, ib, verbs.OpRDMAWrite, func(a, _ *side) []byte {
			mem := make([]byte, 64)
			mr, err := a.pd.RegMR(mem, verbs.AccessLocalWrite)
			require.NoError(t, err)
			a.regions, a.mr = append(a.regions, a.mr), mr // the payload is taken from it
			return mem
		})
	},
	"iwarp payload": func(t *testing.T) { race(t, iwarp, verbs.OpRDMAWrite, true) },
	"iwarp target":  func(t *testing.T) { race(t, iwarp, verbs.OpRDMAWrite, false) },
	"iwarp read":    func(t *testing.T) { race(t, iwarp, verbs.OpRDMARead, true) },
	"iwarp send":    func(t *testing.T) { race(t, iwarp, verbs.OpSend, false) },
}

// race writes to the memory of a request on this side, or to that of the peer, without waiting for a completion.
func race(t *testing.T, dc DeviceConfig, op verbs.Opcode, here bool) {
	raceOn(t, dc, op, func(a, b *side) []byte {
		if here {
			return a.mr.Bytes()
		}
		return b.mr.Bytes()
	})
}

func raceOn(t *testing.T, dc DeviceConfig, op verbs.Opcode, memory func(a, b *side) []byte) {
	fab := NewFabric(Config{Device: dc})
	defer fab.Close()
	s := &suite{Env{Dial: fab.Host("a", "10.0.0.1"), Listen: fab.Host("b", "10.0.0.2"), Addr: netip.MustParseAddr("10.0.0.2"), Patience: time.Minute}}
	a, b := s.pair(t, size{})
	mem := memory(a, b)
	b.postRecv(1, b.sge(0, 64))
	wr := a.writeWR(1, a.sge(0, 64), b, 0)
	wr.Opcode = op
	a.post(wr)
	mem[3] = 1
	time.Sleep(100 * time.Millisecond) // nothing orders the device's work before or after
}
