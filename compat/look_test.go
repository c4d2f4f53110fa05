package compat

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestJudge(t *testing.T) {
	for said, want := range map[string]verdict{
		"": undecided, "M": undecided, mpaKey[:15]: undecided, mpaKey: isKey, mpaKey + "\x40\x02\x00": isKey,
		mpaKey + "\x40\x02\x00\x00": isMPA, mpaKey + "\x40\x02\x00\x02x": isKey, mpaKey + "\x40\x02\x00\x02xy": isMPA,
		mpaKey + "\x40\x02\x00\x00more": isMPA, mpaKey + "\x40\x02\x02\x01": isMPA,
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
			request := mpaKey + "\x40\x02\x00\x05hello"
			for wrong := range len(mpaKey) + 1 {
				said := []byte(request)
				if wrong < len(mpaKey) {
					said[wrong]++
				}
				c, a := tcpPair(t)
				l := newLooker(a)
				require.Equal(t, undecided, l.now())
				n := 0
				for v := undecided; v != isPlain && v != isMPA; n++ {
					write(t, c, string(said[n:n+1]))
					v = l.wait(time.Now().Add(time.Hour))
					switch {
					case n == wrong && wrong < len(mpaKey):
						require.Equal(t, isPlain, v)
					case n == len(said)-1:
						require.Equal(t, isMPA, v)
					case n >= len(mpaKey)-1:
						require.Equal(t, isKey, v)
					default:
						require.Equal(t, undecided, v)
					}
				}
				write(t, c, "more")
				read(t, l.conn(), string(said[:n])+"more")
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
			require.Equal(t, isPlain, l.wait(time.Now().Add(time.Millisecond)))
			write(t, c, "late")
			got := make([]byte, 4)
			n, err := l.conn().Read(got) // without a deadline
			require.NoError(t, err)
			require.Equal(t, "late", string(got[:n]))

			c, a = tcpPair(t)
			require.NoError(t, c.(*net.TCPConn).CloseWrite())
			require.Equal(t, isPlain, newLooker(a).wait(time.Now().Add(time.Hour)))

			c, a = tcpPair(t)
			l = newLooker(a)
			write(t, c, "MPA")
			require.Equal(t, undecided, l.wait(time.Now().Add(time.Hour)))
			reset(c)
			require.Equal(t, isGone, l.wait(time.Now().Add(time.Hour)))

			// A key without the rest is nobody's.
			c, a = tcpPair(t)
			l = newLooker(a)
			write(t, c, mpaKey)
			require.Equal(t, isKey, l.wait(time.Now().Add(time.Hour)))
			require.Equal(t, isGone, l.wait(time.Now().Add(time.Millisecond)))

			// What is there when the time is over counts.
			if name == "peek" {
				c, a = tcpPair(t)
				write(t, c, mpaKey+"\x40\x02\x00\x00")
				eventually(t, func() bool { return newLooker(a).now() == isMPA })
				require.Equal(t, isMPA, newLooker(a).wait(time.Now().Add(-time.Second)))
			}

			_, a = tcpPair(t)
			l = newLooker(a)
			require.NoError(t, a.Close())
			require.Equal(t, isGone, l.wait(time.Now().Add(time.Hour)))
		})
	}
}
