//go:build !linux

package softiwarp

import "net"

const maxIOV = 128

// vectors scatters and gathers one by one; it is not used, because streams have no raw here.
type vectors struct{}

func newStream(conn net.Conn) *stream { return &stream{conn: conn} }

func (v *vectors) read(uintptr, [][]byte) (int, error)  { return 0, errAgain }
func (v *vectors) write(uintptr, [][]byte) (int, error) { return 0, errAgain }

// tune returns an Ethernet's usual segment size.
func tune(*net.TCPConn, *Config) (mss int) { return 1460 }
