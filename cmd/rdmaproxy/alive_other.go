//go:build !unix

package main

// alive asks whether c could be written to. The error is what a Write would meet.
func alive(c conn) error {
	_, err := c.Write(nil)
	return err
}
