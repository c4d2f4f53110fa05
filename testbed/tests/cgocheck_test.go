//go:build guest

package tests

import "testing"

// The data path once more, in a program built with GOEXPERIMENT=cgocheck2, which ends it when a pointer to Go's memory is stored
// where Go does not look. Garbage is collected all the time while the suite's operations are under way.
//
// fault: MEM-6
func TestRxeCgocheck(t *testing.T) {
	run(t, program("cgocheck.test"), "-test.run", "^Test(BothCoreData|BothCoreAllocs|BothCoreConnect|BothStreamFullDuplex|BothHTTPGo)$", "-test.v")
	run(t, "env", "GOGC=1", program("cgocheck.test"), "-test.v", "-test.run", "^TestRxeConformance$/^(Batch|Read|Atomic|RegMR|RegMRCollected|"+
		"SRQ|SRQMany|WriteWithImmOrder|UC|UD|UDMany|ByHandBatch|ByHandSRQMany|ConcurrentPosts|CloseWhileBusySRQ)$")
}
