/*
 * The cost of an rsocket connection: connect, one byte, close; again and again, one after the other.
 *
 *	connects listen ADDRESS PORT TIMES
 *	connects dial ADDRESS PORT TIMES    prints the seconds that TIMES connections took
 *
 * The listening side takes the byte, waits for the end of the stream, and closes.
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <rdma/rsocket.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void die(const char *what)
{
	fprintf(stderr, "connects: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void serve(int ln)
{
	char byte;
	int s = raccept(ln, NULL, NULL);

	if (s < 0)
		die("accept");
	if (rrecv(s, &byte, 1, 0) != 1)
		die("receive");
	if (rrecv(s, &byte, 1, 0) != 0)
		die("the end");
	if (rclose(s))
		die("close");
}

static void call(const struct addrinfo *to)
{
	int s = rsocket(to->ai_family, SOCK_STREAM, 0);

	if (s < 0)
		die("socket");
	if (rconnect(s, to->ai_addr, to->ai_addrlen))
		die("connect");
	if (rsend(s, "x", 1, 0) != 1)
		die("send");
	if (rshutdown(s, SHUT_RDWR) || rclose(s))
		die("close");
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM };
	struct addrinfo *at;
	int i, ln, times = argc == 5 ? atoi(argv[4]) : 0;
	double start;

	if (times < 1 || getaddrinfo(argv[2], argv[3], &hints, &at)) {
		fprintf(stderr, "usage: connects listen|dial ADDRESS PORT TIMES\n");
		return 2;
	}
	if (!strcmp(argv[1], "listen")) {
		ln = rsocket(at->ai_family, SOCK_STREAM, 0);
		if (ln < 0 || rbind(ln, at->ai_addr, at->ai_addrlen) || rlisten(ln, 8))
			die("listen");
		for (i = 0; i < times; i++)
			serve(ln);
		return 0;
	}
	start = now();
	for (i = 0; i < times; i++)
		call(at);
	printf("%.6f\n", now() - start);
	return 0;
}
