// Echo sends bytes to a server that sends them back, and checks that they are the same.
//
//	echo -listen :7001
//	echo -size 1GiB 10.9.0.1:7001
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	listen := flag.String("listen", "", "serve on this `address`")
	size := bytesFlag(64 << 20)
	flag.Var(&size, "size", "how much to send: bytes, or a number with KiB, MiB or GiB")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: echo -listen ADDRESS\n       echo [-size N] ADDRESS")
		flag.PrintDefaults()
	}
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch {
	case *listen != "" && flag.NArg() == 0:
		err = serve(ctx, *listen)
	case *listen == "" && flag.NArg() == 1:
		err = send(ctx, flag.Arg(0), int64(size))
	default:
		flag.Usage()
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "echo:", err)
		os.Exit(1)
	}
}

// bytesFlag is a number of bytes on the command line.
type bytesFlag int64

func (b *bytesFlag) String() string { return strconv.FormatInt(int64(*b), 10) }

func (b *bytesFlag) Set(s string) error {
	shift := 0
	for unit, n := range map[string]int{"KiB": 10, "MiB": 20, "GiB": 30} {
		if rest, ok := strings.CutSuffix(s, unit); ok {
			s, shift = rest, n
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > 1<<62>>shift {
		return fmt.Errorf("want a number of bytes such as 1000, 64KiB or 1GiB")
	}
	*b = bytesFlag(n << shift)
	return nil
}
