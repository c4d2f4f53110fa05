package verbstest_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/rconn/rdma/verbs"
	"github.com/rconn/rdma/verbs/verbstest"
)

func TestFabricIB(t *testing.T)    { runSuite(t, verbs.TransportIB) }
func TestFabricIWARP(t *testing.T) { runSuite(t, verbs.TransportIWARP) }

func runSuite(t *testing.T, transport verbs.Transport) {
	fab := verbstest.NewFabric(verbstest.Config{Device: verbstest.DeviceConfig{Transport: transport}})
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
