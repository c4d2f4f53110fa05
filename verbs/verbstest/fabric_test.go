package verbstest_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/rconn/rdma/verbs"
	"github.com/rconn/rdma/verbs/verbstest"
)

func TestFabricIB(t *testing.T)   { runSuite(t, verbstest.DeviceConfig{}) }
func TestFabricRoCE(t *testing.T) { runSuite(t, verbstest.DeviceConfig{RoCE: true}) }
func TestFabricIWARP(t *testing.T) {
	runSuite(t, verbstest.DeviceConfig{Transport: verbs.TransportIWARP})
}

// All operations: on InfiniBand SEND with invalidate too, on iWARP those of RFC 7306.
func TestFabricIBAll(t *testing.T) { runSuite(t, verbstest.DeviceConfig{Attr: all}) }
func TestFabricIWARPAll(t *testing.T) {
	runSuite(t, verbstest.DeviceConfig{Transport: verbs.TransportIWARP, Attr: all})
}

func all(a *verbs.DeviceAttr) {
	a.Caps.Send = verbs.Opcodes(verbs.OpSend, verbs.OpSendWithImm, verbs.OpSendWithInv, verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm,
		verbs.OpRDMARead, verbs.OpAtomicCmpAndSwp, verbs.OpAtomicFetchAndAdd)
}

func runSuite(t *testing.T, d verbstest.DeviceConfig) {
	fab := verbstest.NewFabric(verbstest.Config{Device: d})
	defer fab.Close()
	verbstest.Run(t, verbstest.Env{
		Dial:   fab.Host("a", "10.9.0.1"),
		Listen: fab.Host("b", "10.9.0.2"),
		Addr:   netip.MustParseAddr("10.9.0.2"),
		Nobody: netip.MustParseAddr("10.9.0.99"),
		Leaks:  func() error { return leaks(fab) },
	})
}

func leaks(fab *verbstest.Fabric) error {
	if o := fab.Objects(); o != (verbstest.Objects{}) {
		return fmt.Errorf("still open: %+v", o)
	}
	return nil
}
