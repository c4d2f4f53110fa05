package servers

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"
)

// sshKey is a key that both guests of a pair make.
func sshKey(t testing.TB, seed byte) ssh.Signer {
	s, err := ssh.NewSignerFromKey(ed25519.NewKeyFromSeed(append(make([]byte, 31), seed)))
	check(t, err)
	return s
}

func TestSSH(t *testing.T) {
	row{
		name: "SSH", modules: []string{"golang.org/x/crypto"},
		does: "password and key, refusals, 20 sessions at once on a connection with 1 MiB each way, stderr, exit status, a forwarded port, " +
			"global requests, an end from each side",
		serve: func(t *testing.T, ln net.Listener) {
			config := &ssh.ServerConfig{
				PasswordCallback: func(c ssh.ConnMetadata, password []byte) (*ssh.Permissions, error) {
					if c.User() != "gopher" || string(password) != "burrow" {
						return nil, errors.New("refused")
					}
					return nil, nil
				},
				PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
					if !bytes.Equal(key.Marshal(), sshKey(t, 2).PublicKey().Marshal()) {
						return nil, errors.New("unknown key")
					}
					return nil, nil
				},
			}
			config.AddHostKey(sshKey(t, 1))
			serveConns(t, ln, func(c net.Conn) {
				defer c.Close()
				conn, channels, requests, err := ssh.NewServerConn(c, config)
				if err != nil {
					return // refused, which the client checks
				}
				defer conn.Close()
				serveSSH(conn, channels, requests)
			})
		},
		use: func(t *testing.T, n *network) {
			connect := func(auth ssh.AuthMethod) (*ssh.Client, error) {
				c, err := n.Dial("tcp", n.addr)
				if err != nil {
					return nil, err
				}
				conn, channels, requests, err := ssh.NewClientConn(c, n.addr, &ssh.ClientConfig{
					User: "gopher", Auth: []ssh.AuthMethod{auth}, HostKeyCallback: ssh.FixedHostKey(sshKey(t, 1).PublicKey()),
				})
				if err != nil {
					return nil, errors.Join(err, c.Close())
				}
				return ssh.NewClient(conn, channels, requests), nil
			}
			for _, auth := range []ssh.AuthMethod{ssh.Password("guess"), ssh.PublicKeys(sshKey(t, 3))} {
				if _, err := connect(auth); err == nil || !strings.Contains(err.Error(), "unable to authenticate") {
					t.Errorf("not refused: %v", err)
				}
			}
			for _, auth := range []ssh.AuthMethod{ssh.Password("burrow"), ssh.PublicKeys(sshKey(t, 2))} {
				client, err := connect(auth)
				check(t, err)
				together(t, 20, func(i int) error { return sshSession(client, i) })
				sshForward(t, client)
				if ok, reply, err := client.SendRequest("hello", true, []byte("there")); !ok || string(reply) != "there" || err != nil {
					t.Errorf("%v, %q, %v", ok, reply, err)
				}
				// A session that runs while the connection is ended, by the server then by the client.
				session, err := client.NewSession()
				check(t, err)
				in, err := session.StdinPipe()
				check(t, err)
				check(t, session.Start("hash"))
				_, err = in.Write([]byte("begin"))
				check(t, err)
				if n := auth; fmt.Sprintf("%T", n) == fmt.Sprintf("%T", ssh.Password("")) {
					if _, _, err := client.SendRequest("end", true, nil); err == nil {
						t.Error("an answer to the end")
					}
				} else {
					check(t, client.Close())
				}
				var missing *ssh.ExitMissingError
				if err := session.Wait(); !errors.As(err, &missing) {
					t.Errorf("a session whose connection is over: %v", err)
				}
				if err := client.Wait(); err == nil {
					t.Error("no error at the end")
				}
				client.Close()
			}
		},
	}.run(t)
}

// serveSSH serves a connection until its end.
func serveSSH(conn *ssh.ServerConn, channels <-chan ssh.NewChannel, requests <-chan *ssh.Request) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for r := range requests {
			if r.Type == "end" {
				conn.Close()
			}
			if r.WantReply {
				r.Reply(true, r.Payload)
			}
		}
	})
	for nc := range channels {
		wg.Go(func() {
			switch nc.ChannelType() {
			case "session":
				ch, requests, err := nc.Accept()
				if err != nil {
					return
				}
				defer ch.Close()
				for r := range requests {
					if r.Type == "exec" {
						r.Reply(true, nil)
						var command struct{ Line string }
						ssh.Unmarshal(r.Payload, &command)
						wg.Go(func() {
							status := sshCommand(ch, command.Line)
							ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{status}))
							ch.Close()
						})
					} else {
						r.Reply(false, nil)
					}
				}
			case "direct-tcpip": // what is forwarded comes back
				ch, requests, err := nc.Accept()
				if err != nil {
					return
				}
				go ssh.DiscardRequests(requests)
				io.Copy(ch, ch)
				ch.CloseWrite()
				ch.Close()
			default:
				nc.Reject(ssh.UnknownChannelType, "no such type")
			}
		})
	}
	wg.Wait()
}

// sshCommand runs a command: "cat", "fail" or "hash".
func sshCommand(ch ssh.Channel, line string) uint32 {
	switch line {
	case "cat":
		if _, err := io.Copy(ch, ch); err != nil {
			return 1
		}
		fmt.Fprint(ch.Stderr(), "done")
		return 0
	case "hash":
		io.Copy(io.Discard, ch)
		return 0
	}
	fmt.Fprint(ch.Stderr(), "no such command")
	return 127
}

func sshSession(client *ssh.Client, i int) error {
	session, err := client.NewSession()
	if err != nil {
		return err
	}
	defer session.Close()
	want := noise(uint64(i), 50_000*(i+1))
	var out, stderr bytes.Buffer
	session.Stdin, session.Stdout, session.Stderr = bytes.NewReader(want), &out, &stderr
	if i%5 == 4 {
		var status *ssh.ExitError
		if err := session.Run("fail"); !errors.As(err, &status) || status.ExitStatus() != 127 || stderr.String() != "no such command" {
			return fmt.Errorf("fail: %w, %s", err, &stderr)
		}
		return nil
	}
	if err := session.Run("cat"); err != nil || !bytes.Equal(out.Bytes(), want) || stderr.String() != "done" {
		return fmt.Errorf("%d bytes of %d, %w, %s", out.Len(), len(want), err, &stderr)
	}
	return nil
}

// sshForward has a connection to a forwarded address, ended in one direction first.
func sshForward(t *testing.T, client *ssh.Client) {
	c, err := client.Dial("tcp", "192.0.2.1:80")
	check(t, err)
	defer c.Close()
	want := noise(9, 300_000)
	go func() {
		c.Write(want)
		c.(interface{ CloseWrite() error }).CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes of %d, %v", len(got), len(want), err)
	}
}
