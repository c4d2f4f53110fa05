package progress

import (
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// terminal is both ends of a terminal of the kernel, width columns wide.
func terminal(t *testing.T, width uint16) (keyboard, screen *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { keyboard.Close() })
	control := func(request uintptr, arg unsafe.Pointer) {
		raw, err := keyboard.SyscallConn()
		require.NoError(t, err)
		require.NoError(t, raw.Control(func(fd uintptr) {
			_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, request, uintptr(arg))
			require.Zero(t, errno)
		}))
	}
	var number, unlock int32
	control(syscall.TIOCGPTN, unsafe.Pointer(&number))
	control(syscall.TIOCSPTLCK, unsafe.Pointer(&unlock))
	size := [4]uint16{24, width}
	control(syscall.TIOCSWINSZ, unsafe.Pointer(&size))
	screen, err = os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { screen.Close() })
	return keyboard, screen
}

func TestTerminal(t *testing.T) {
	t.Setenv("TERM", "xterm")
	keyboard, screen := terminal(t, 60)
	require.Equal(t, 60, columns(screen))
	_, unknown := terminal(t, 0)
	require.Equal(t, 80, columns(unknown))
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer null.Close()
	require.Zero(t, columns(null))

	d := New(screen, 1)
	b := d.Add("a")
	b.Start(0, 1<<20)
	write(t, b, 1<<19)
	const want = "a            [===    ] 512.0 KiB of 1.0 MiB (50%), "
	got := make([]byte, len(want))
	require.NoError(t, keyboard.SetReadDeadline(time.Now().Add(time.Minute)))
	_, err = io.ReadFull(keyboard, got)
	require.NoError(t, err)
	require.Equal(t, want, string(got))
	d.Close()

	t.Setenv("TERM", "dumb")
	require.Zero(t, columns(screen))
}
