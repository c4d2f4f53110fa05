//go:build guest

package tests

import "testing"

// The data path once more, in a program built with GOEXPERIMENT=cgocheck2, which ends it when a pointer to Go's memory is stored
// where Go does not look.
//
// fault: MEM-6
func TestRxeCgocheck(t *testing.T) {
	run(t, program("cgocheck.test"), "-test.run", "^Test(BothCoreData|BothCoreAllocs|BothCoreConnect|BothStreamFullDuplex|BothHTTPGo)$", "-test.v")
}
