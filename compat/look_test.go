package compat

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestJudge(t *testing.T) {
	for said, want := range map[string]verdict{
		"": undecided, "M": undecided, mpaKey[:15]: undecided, mpaKey: isMPA, mpaKey + "\x40\x02": isMPA,
		"m": isPlain, "GET": isPlain, mpaKey[:15] + "E": isPlain, "MPA ID Rep Frame": isPlain, "\x16\x03\x01": isPlain,
	} {
		require.Equal(t, want, judge([]byte(said)), "%q", said)
	}
}

// lookers are the ways to look at a connection.
var lookers = map[string]func(net.Conn) looker{
	"peek": newLooker,
	"read": func(c net.Conn) looker { return newLooker(otherConn{c}) },
}

// tcpPair is a TCP connection; accepted has been looked at by nobody.
func tcpPair(t testing.TB) (dialed, accepted net.Conn) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	dialed = dialTCP(t, ln.Addr())
	accepted, err = ln.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { accepted.Close() })
	return dialed, accepted
}

// A look at each byte as it comes: what was seen stays, and the verdict is there with the first byte that decides.
func TestLookByteByByte(t *testing.T) {
	for name, newLooker := range lookers {
		t.Run(name, func(t *testing.T) {
			for wrong := range len(mpaKey) + 1 {
				said := []byte(mpaKey)
				if wrong < len(said) {
					said[wrong]++
				}
				c, a := tcpPair(t)
				l := newLooker(a)
				require.Equal(t, undecided, l.now())
				for i := range said {
					write(t, c, string(said[i:i+1]))
					v := l.wait(time.Hour)
					switch {
					case i == wrong:
						require.Equal(t, isPlain, v)
					case i == len(said)-1:
						require.Equal(t, isMPA, v)
					default:
						require.Equal(t, undecided, v)
						continue
					}
					said = said[:i+1]
					break
				}
				write(t, c, "more")
				read(t, l.conn(), string(said)+"more")
			}
		})
	}
}

// The limit does not outlast the look, and what ends or breaks is known for it.
func TestLookEnds(t *testing.T) {
	for name, newLooker := range lookers {
		t.Run(name, func(t *testing.T) {
			c, a := tcpPair(t)
			l := newLooker(a)
			require.Equal(t, isPlain, l.wait(time.Millisecond))
			write(t, c, "late")
			got := make([]byte, 4)
			n, err := l.conn().Read(got) // without a deadline
			require.NoError(t, err)
			require.Equal(t, "late", string(got[:n]))

			c, a = tcpPair(t)
			require.NoError(t, c.(*net.TCPConn).CloseWrite())
			require.Equal(t, isPlain, newLooker(a).wait(time.Hour))

			c, a = tcpPair(t)
			l = newLooker(a)
			write(t, c, "MPA")
			require.Equal(t, undecided, l.wait(time.Hour))
			reset(c)
			require.Equal(t, isGone, l.wait(time.Hour))

			_, a = tcpPair(t)
			l = newLooker(a)
			require.NoError(t, a.Close())
			require.Equal(t, isGone, l.wait(time.Hour))
		})
	}
}
