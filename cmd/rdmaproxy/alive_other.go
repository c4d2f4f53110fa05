//go:build !unix

package main

// toldOnce says that the system tells of a reset to one call only, whichever comes first.
const toldOnce = false

// alive asks whether c could be written to. The error is what a Write would meet.
func alive(c conn) error {
	_, err := c.Write(nil)
	return err
}
