// Package tests holds the tests that need an RDMA device, to be run in guests
// by "make vm-test". A test's name says in which:
//
//	TestRxe… TestSiw…              in a guest with that device, shared by many
//	TestBoth…                      in both of those
//	TestFreshRxe… TestFreshSiw…    alone in a guest, which it may break
//	TestPairRxe… TestPairSiw…      in both of two guests joined by a cable, as
//	TestPairNone…                  RDMA_ROLE A and B at the same time
//
// Nothing may be skipped there: a test that finds something missing fails.
package tests
