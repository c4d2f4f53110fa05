/*
 * An rsocket peer whose listening side speaks first, at once.
 *
 *	greet listen ADDRESS PORT TIMES
 *	greet dial ADDRESS PORT TIMES
 *
 * One connection after another: librdmacm 44 hangs now and then when a process has several that end together. On each the
 * listening side sends SIZE bytes, the dialing side reads them and answers with as many, and then the listening side ends
 * the connection. Both check what they read. The exit status is 0 if all went well.
 */
#include <errno.h>
#include <netdb.h>
#include <rdma/rsocket.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE = 300000 };

static unsigned char buf[SIZE];

static void die(const char *what)
{
	fprintf(stderr, "greet: %s: %s\n", what, strerror(errno));
	exit(1);
}

static unsigned char pattern(size_t i) { return i % 251; }

static void send_all(int s)
{
	size_t done;
	ssize_t n;

	for (done = 0; done < SIZE; done++)
		buf[done] = pattern(done);
	for (done = 0; done < SIZE; done += n) {
		n = rsend(s, buf + done, SIZE - done, 0);
		if (n < 0)
			die("send");
	}
}

static void receive_all(int s)
{
	size_t done;
	ssize_t n;

	for (done = 0; done < SIZE; done += n) {
		n = rrecv(s, buf + done, SIZE - done, 0);
		if (n == 0)
			errno = EPIPE;
		if (n <= 0)
			die("receive");
	}
	for (done = 0; done < SIZE; done++) {
		if (buf[done] != pattern(done)) {
			fprintf(stderr, "greet: byte %zu is %d\n", done, buf[done]);
			exit(1);
		}
	}
}

static void serve(int ln)
{
	int s = raccept(ln, NULL, NULL);

	if (s < 0)
		die("accept");
	send_all(s);
	receive_all(s);
	if (rshutdown(s, SHUT_RDWR) || rclose(s))
		die("close");
}

static void call(const struct addrinfo *to)
{
	int s = rsocket(to->ai_family, SOCK_STREAM, 0);

	if (s < 0)
		die("socket");
	if (rconnect(s, to->ai_addr, to->ai_addrlen))
		die("connect");
	receive_all(s);
	send_all(s);
	if (rrecv(s, buf, 1, 0) != 0)
		die("the end");
	if (rclose(s))
		die("close");
}

int main(int argc, char **argv)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM };
	struct addrinfo *at;
	int times = argc == 5 ? atoi(argv[4]) : 0;
	int ln;

	if (times < 1 || getaddrinfo(argv[2], argv[3], &hints, &at)) {
		fprintf(stderr, "usage: greet listen|dial ADDRESS PORT TIMES\n");
		return 2;
	}
	if (strcmp(argv[1], "listen")) {
		while (times--)
			call(at);
		return 0;
	}
	ln = rsocket(at->ai_family, SOCK_STREAM, 0);
	if (ln < 0 || rbind(ln, at->ai_addr, at->ai_addrlen) || rlisten(ln, 8))
		die("listen");
	while (times--)
		serve(ln);
	return 0;
}
