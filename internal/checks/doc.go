// Package checks holds tests about the source itself: what may import what, where cgo is, what is documented. It has no
// code of its own.
package checks
